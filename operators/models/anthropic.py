"""Claude through the official asynchronous client: cached prefix, streamed reply, bounded retries and dollars."""

from __future__ import annotations

import asyncio
import time
import typing
import weakref
from dataclasses import dataclass
from typing import ClassVar, Literal

import anthropic
from anthropic.types import Message, OutputConfigParam, TextBlockParam

from evo.errors import InputError, SpendLimitError
from evo.records import Exchange, Usage
from operators.models.attempts import Attempts, described, out_of_money, spend_code
from operators.models.base import Model, Prompt, RequestError
from operators.models.ledger import Ledger
from operators.models.prices import Price, read_prices

Effort = Literal["low", "medium", "high", "xhigh", "max"]
"""How much work the model should put into a reply; dearer and slower from left to right."""

_CACHE_BREAKPOINTS = 4
"""As many as the endpoint accepts in one request."""

_OVERHEAD_TOKENS = 2_000
"""What the endpoint may add around our text (roles, system scaffolding), generously."""

_MAX_REPLY_CHARS = 2_000_000
"""A reply of 128,000 tokens has about 500,000 characters; what is longer is no answer of a model."""

_NO_KEY = "no API key: set ANTHROPIC_API_KEY in the environment of the machine that makes the proposals"

_Clients = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, anthropic.AsyncAnthropic]


class AnthropicModel(Model):
    """A Claude model. The SDK takes the key from the environment (``ANTHROPIC_API_KEY``); it is never stored, logged or pickled.

    Another model of this provider needs no code: give its name, and its price in a file (`prices`) if `prices.toml` lacks it.
    Another provider is another file: see `operators.models.base`.

    Args:
        name: E.g. ``claude-opus-5-5``.
        ledger: Pays for the requests. Under a dollar cap the model's price must be known; without one an unknown price is 0.
        max_tokens: Longest reply that operators ask it for, thinking included.
        base_url: Another endpoint that speaks the Messages API; None for the SDK's choice (``ANTHROPIC_BASE_URL`` or its own).
        timeout_s: Longest time of one `complete`, retries and their waiting included.
        silence_s: Longest silence of the endpoint within it.
        max_retries: Further attempts after 408, 409, 429, 5xx and transport errors; the SDK waits between them, as long as
            ``retry-after`` says.
        effort: See `Effort`; None leaves it to the endpoint.
        prices: A price file that comes before ours.

    Raises:
        InputError: No key in the environment, or no known price under a dollar cap.
        ValueError: A malformed argument.
    """

    provider: ClassVar[str] = "anthropic"

    def __init__(
        self,
        name: str,
        *,
        ledger: Ledger,
        max_tokens: int = 16_000,
        base_url: str | None = None,
        timeout_s: float = 600.0,
        silence_s: float = 120.0,
        max_retries: int = 2,
        effort: Effort | None = None,
        prices: str | None = None,
    ) -> None:
        super().__init__(name, max_tokens=max_tokens)
        if timeout_s <= 0 or silence_s <= 0:
            raise ValueError(f"timeout_s {timeout_s} and silence_s {silence_s} must be positive")
        if not 0 <= max_retries <= 10:
            raise ValueError(f"max_retries {max_retries} must be 0 … 10")
        if effort is not None and effort not in typing.get_args(Effort):
            raise ValueError(f"effort {effort!r}; allowed: {', '.join(typing.get_args(Effort))}")
        if base_url is not None and (not base_url.startswith(("http://", "https://")) or "@" in base_url):
            raise ValueError("base_url must begin with http:// or https:// and hold no password: keys come from the environment")
        self._ledger = ledger
        self._base_url = base_url
        self._timeout_s = timeout_s
        self._silence_s = silence_s
        self._max_retries = max_retries
        self._effort = effort
        self._price = _known_price(name, ledger, prices)
        self._unused: anthropic.AsyncAnthropic | None = self._new_client()
        self._secrets = tuple(secret for secret in (self._unused.api_key, self._unused.auth_token) if secret)
        self._clients: _Clients = weakref.WeakKeyDictionary()

    async def complete(self, prompt: Prompt) -> Exchange:
        """See `Model.complete`."""
        call = _Call(Attempts(self._ledger, self._bound(prompt), self.name))
        started = time.perf_counter()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._stream(prompt, call)
        except TimeoutError:
            call.failure = f"no whole reply within {self._timeout_s:g} s"
        finally:
            # Also on cancellation: what was sent may be billed, so an unknown bill counts in full.
            dollars = call.attempts.finish(self._bill(call.message) if call.finished else None)
        exchange = self._exchange(prompt, call, dollars, time.perf_counter() - started)
        if call.failure:
            # Raised here and not where the error was caught: an SDK error holds the request and, with it, the key.
            raise RequestError(self._cleaned(f"{self.name}: {call.failure} (requests sent: {call.attempts.sent})"), exchange)
        return exchange

    async def close(self) -> None:
        """See `Model.close`."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    async def _stream(self, prompt: Prompt, call: _Call) -> None:
        client = self._client().with_options(middleware=[call.attempts])
        blocks: list[TextBlockParam] = [{"type": "text", "text": text} for text in prompt.stable]
        for block in blocks[-_CACHE_BREAKPOINTS:]:
            block["cache_control"] = {"type": "ephemeral"}
        output_config: OutputConfigParam | anthropic.Omit = {"effort": self._effort} if self._effort else anthropic.omit
        characters = 0
        spend = ""
        try:
            async with client.messages.stream(
                model=self.name,
                max_tokens=prompt.max_tokens,
                system=blocks or anthropic.omit,
                messages=[{"role": "user", "content": prompt.body}],
                output_config=output_config,
            ) as stream:
                call.request_id = stream.request_id or ""
                async for event in stream:
                    if call.message is not None or event.type == "message_start":
                        call.message = stream.current_message_snapshot
                    characters += len(event.text) if event.type == "text" else 0
                    if characters > _MAX_REPLY_CHARS:
                        call.failure = f"the reply is longer than {_MAX_REPLY_CHARS} characters"
                        return
        except SpendLimitError as error:
            if not call.attempts.finish(None):
                raise
            call.failure = str(error)  # what earlier attempts cost must reach the store first; the next request ends the search
        except anthropic.APIStatusError as error:
            spend = spend_code(error.status_code, error.body)
            call.request_id = error.request_id or call.request_id
            call.failure = described(error)
        except Exception as error:  # noqa: BLE001 - only SDK code runs here, and it raises anything on an answer that is no message
            call.failure = described(error)
        else:
            if not call.finished:
                call.failure = "the reply broke off before its end"
        if spend:
            raise out_of_money(self.name, spend, call.request_id)

    def _client(self) -> anthropic.AsyncAnthropic:
        """One client per event loop, for connections cannot be used from another."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients[loop] = self._unused or self._new_client()
            self._unused = None
        return self._clients[loop]

    def _new_client(self) -> anthropic.AsyncAnthropic:
        """A client with a key.

        Raises:
            InputError: There is none.
        """
        timeout = anthropic.Timeout(self._silence_s, connect=min(10.0, self._silence_s))
        try:
            client = anthropic.AsyncAnthropic(base_url=self._base_url, timeout=timeout, max_retries=self._max_retries)
        except anthropic.AnthropicError as error:
            raise InputError(f"model {self.name}", action=f"{_NO_KEY} ({type(error).__name__})") from None
        headers = {header.lower() for header in client.default_headers}
        if client.credentials is None and not headers & {"authorization", "x-api-key"}:
            raise InputError(f"model {self.name}", action=_NO_KEY)
        return client

    def _bound(self, prompt: Prompt) -> float:
        """The most that one attempt can cost: a token has at least one byte."""
        if self._price is None:
            return 0.0
        return self._price.bound(len(prompt.text.encode()) + _OVERHEAD_TOKENS, prompt.max_tokens)

    def _bill(self, message: Message | None) -> float:
        if message is None or self._price is None:
            return 0.0
        usage = message.usage
        written = usage.cache_creation_input_tokens or 0
        hour = usage.cache_creation.ephemeral_1h_input_tokens if usage.cache_creation else 0
        return self._price.dollars(
            fresh=usage.input_tokens,
            output=usage.output_tokens,
            write_5m=max(written - hour, 0),
            write_1h=hour,
            read=usage.cache_read_input_tokens or 0,
        )

    def _exchange(self, prompt: Prompt, call: _Call, dollars: float, latency_s: float) -> Exchange:
        message = call.message
        texts = [block.text for block in message.content if block.type == "text"] if message else []
        usage = Usage(dollars=dollars)
        if message:
            usage = Usage(
                input_tokens=message.usage.input_tokens or 0,
                output_tokens=message.usage.output_tokens or 0,
                cache_read_tokens=message.usage.cache_read_input_tokens or 0,
                cache_write_tokens=message.usage.cache_creation_input_tokens or 0,
                dollars=dollars,
            )
        return Exchange(
            model=self.name,
            prompt_hash=prompt.prompt_hash,
            template_hash=prompt.template_hash,
            prompt=prompt.text,
            reply=self._cleaned("".join(texts)),
            stop_reason="error" if call.failure or not message else str(message.stop_reason),
            request_id=call.request_id,
            latency_s=latency_s,
            usage=usage,
        )

    def _cleaned(self, text: str) -> str:
        """Without our key, which a proxy might echo, and without characters that a store cannot hold."""
        for secret in self._secrets:
            text = text.replace(secret, "[key]")
        return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


@dataclass
class _Call:
    """What is known so far about one `complete`."""

    attempts: Attempts
    message: Message | None = None
    request_id: str = ""
    failure: str = ""

    @property
    def finished(self) -> bool:
        return self.message is not None and self.message.stop_reason is not None and not self.failure


def _known_price(name: str, ledger: Ledger, prices: str | None) -> Price | None:
    table = read_prices(prices)
    price = table.find(name)
    if price is None and ledger.cap is not None:
        action = f"no price is known (table of {table.dated}); name a price file in its option `prices`, or set no budget.dollars"
        raise InputError(f"model {name}", allowed=sorted(table.models), action=action)
    return price
