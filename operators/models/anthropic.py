"""Claude through the official asynchronous client: cached prefix, streamed reply or batches, bounded retries and dollars."""

from __future__ import annotations

import asyncio
import dataclasses
import time
import typing
import weakref
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import anthropic
from anthropic.types import Message, TextBlockParam

from evo.errors import InputError, SpendLimitError
from evo.records import Exchange, Usage
from operators.models.anthropic_attempts import AttemptHook, described
from operators.models.anthropic_batches import PRICE_FACTOR, Batches, BatchFailure, BatchTicket
from operators.models.attempts import (
    MAX_REPLY_CHARS,
    Attempts,
    Bound,
    checked_limits,
    checked_url,
    cleaned,
    out_of_money,
    spend_code,
    token_count,
)
from operators.models.base import Model, Prompt, RequestError
from operators.models.ledger import Account
from operators.models.limits import Limiter, LocalLimiter
from operators.models.prices import known_price

Effort = Literal["low", "medium", "high", "xhigh", "max"]
"""How much work the model should put into a reply; dearer and slower from left to right."""

_CACHE_BREAKPOINTS = 4
"""As many as the endpoint accepts in one request."""

_BATCH_TIMEOUT_S = 90_000.0
"""The endpoint ends a batch after a day."""

_NO_KEY = "no API key: set ANTHROPIC_API_KEY in the environment of the machine that makes the proposals"

_Clients = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, anthropic.AsyncAnthropic]
_Batches = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Batches]


class AnthropicModel(Model):
    """A Claude model. The SDK takes the key from the environment (``ANTHROPIC_API_KEY``); it is never stored, logged or pickled.

    Another model of this provider needs no code: give its name, and its price in a file (`prices`) if `prices.toml` lacks it.
    Another provider is another file: see `operators.models.base`.

    Args:
        name: E.g. ``claude-opus-5-5``.
        ledger: Pays for the requests. Under a dollar cap the model's price must be known; without one an unknown price is 0.
        limiter: Of the endpoint; None for one of its own, which only heeds pauses.
        max_tokens: Longest reply that operators ask it for, thinking included.
        base_url: Another endpoint that speaks the Messages API; None for the SDK's choice (``ANTHROPIC_BASE_URL`` or its own).
        timeout_s: Longest time of one `complete` from when it may be sent, retries included; None for ten minutes, or for a batch 25 hours.
        silence_s: Longest silence of the endpoint within it.
        max_retries: Further attempts after 408, 409, 429, 5xx and transport errors; the SDK waits between them, as long as
            ``retry-after`` says.
        effort: See `Effort`; None leaves it to the endpoint.
        prices: A price file that comes before ours.
        batch: Ask through Message Batches: half the price, and a reply within a day, mostly within an hour. For large populations.
        batch_size, batch_window_s: A batch is sent with so many requests, or so long after its first one.
        batch_poll_s: Time to the first look whether it has ended.

    Raises:
        InputError: No key in the environment, or no known price under a dollar cap.
        ValueError: A malformed argument.
    """

    provider: ClassVar[str] = "anthropic"

    def __init__(
        self,
        name: str,
        *,
        ledger: Account,
        limiter: Limiter | None = None,
        max_tokens: int = 16_000,
        base_url: str | None = None,
        timeout_s: float | None = None,
        silence_s: float = 120.0,
        max_retries: int = 2,
        effort: Effort | None = None,
        prices: str | None = None,
        batch: bool = False,
        batch_size: int = 100,
        batch_window_s: float = 30.0,
        batch_poll_s: float = 10.0,
    ) -> None:
        super().__init__(name, max_tokens=max_tokens)
        self._timeout_s = timeout_s if timeout_s is not None else _BATCH_TIMEOUT_S if batch else 600.0
        checked_limits(self._timeout_s, silence_s, max_retries)
        if effort is not None and effort not in typing.get_args(Effort):
            raise ValueError(f"effort {effort!r}; allowed: {', '.join(typing.get_args(Effort))}")
        if not 1 <= batch_size <= 100_000 or not (batch_window_s >= 0 and batch_poll_s > 0):
            raise ValueError("batch_size must be 1 … 100000, batch_window_s not negative and batch_poll_s positive")
        self._ledger = ledger
        self._limiter = limiter or LocalLimiter()
        self._base_url = checked_url(base_url)
        self._silence_s = silence_s
        self._max_retries = max_retries
        self._effort = effort
        self._price = known_price(name, ledger, prices)
        self._batch = {"size": batch_size, "window_s": batch_window_s, "poll_s": batch_poll_s} if batch else None
        self._factor = PRICE_FACTOR if batch else 1.0
        self._unused: anthropic.AsyncAnthropic | None = self._new_client()
        self._secrets = tuple(secret for secret in (self._unused.api_key, self._unused.auth_token) if secret)
        self._clients: _Clients = weakref.WeakKeyDictionary()
        self._gathering: _Batches = weakref.WeakKeyDictionary()

    @property
    def least_dollars(self) -> float:
        """See `Model.least_dollars`."""
        return Bound.of(Prompt((), "?", "", self.max_tokens), self._price, self._factor).dollars

    async def complete(self, prompt: Prompt) -> Exchange:
        """See `Model.complete`."""
        call = _Call(Attempts(self._ledger, self._limiter, Bound.of(prompt, self._price, self._factor)))
        await call.attempts.prepare()
        started = time.perf_counter()
        try:
            async with asyncio.timeout(self._timeout_s):
                await (self._batched(prompt, call) if self._batch else self._stream(prompt, call))
        except TimeoutError:
            call.failure = f"no whole reply within {self._timeout_s:g} s"
        finally:
            # Also on cancellation: what was sent may be billed, so an unknown bill counts in full.
            dollars = call.attempts.finish(self._bill(call))
        exchange = self._exchange(prompt, call, dollars, time.perf_counter() - started)
        if call.failure:
            # Raised here and not where the error was caught: an SDK error holds the request and, with it, the key.
            text = f"{self.name}: {call.failure} (requests sent: {call.attempts.sent})"
            raise RequestError(cleaned(text, self._secrets), exchange)
        return exchange

    async def close(self) -> None:
        """See `Model.close`."""
        loop = asyncio.get_running_loop()
        batches = self._gathering.pop(loop, None)
        if batches is not None:
            await batches.close()
        client = self._clients.pop(loop, None)
        if client is not None:
            await client.close()

    def _params(self, prompt: Prompt) -> dict[str, Any]:
        blocks: list[TextBlockParam] = [{"type": "text", "text": text} for text in prompt.stable]
        for block in blocks[-_CACHE_BREAKPOINTS:]:
            block["cache_control"] = {"type": "ephemeral"}
        params: dict[str, Any] = {
            "model": self.name,
            "max_tokens": prompt.max_tokens,
            "messages": [{"role": "user", "content": prompt.body}],
        }
        if blocks:
            params["system"] = blocks
        if self._effort:
            params["output_config"] = {"effort": self._effort}
        return params

    async def _stream(self, prompt: Prompt, call: _Call) -> None:
        client = self._client().with_options(middleware=[AttemptHook(call.attempts, self.name)])
        characters = 0
        spend = ""
        try:
            async with client.messages.stream(**self._params(prompt)) as stream:
                call.request_id = stream.request_id or ""
                async for event in stream:
                    if call.message is not None or event.type == "message_start":
                        call.message = stream.current_message_snapshot
                        call.count()
                    characters += len(event.text) if event.type == "text" else 0
                    if characters > MAX_REPLY_CHARS:
                        call.failure = f"the reply is longer than {MAX_REPLY_CHARS} characters"
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

    async def _batched(self, prompt: Prompt, call: _Call) -> None:
        await call.attempts.begin()
        ticket = BatchTicket()
        try:
            call.message = await self._batches().ask(self._params(prompt), ticket)
            call.count()
            if sum(len(text) for text in call.texts) > MAX_REPLY_CHARS:
                call.failure = f"the reply is longer than {MAX_REPLY_CHARS} characters"
        except BatchFailure as error:
            call.failure = error.reason
            if not error.billed:
                call.attempts.finish((0.0, 0))
        except SpendLimitError:
            call.attempts.finish((0.0, 0))
            raise
        except Exception as error:  # noqa: BLE001 - as above
            call.failure = described(error)
        finally:
            call.request_id = ticket.batch_id
            if not ticket.sent:
                call.attempts.finish((0.0, 0))

    def _batches(self) -> Batches:
        loop = asyncio.get_running_loop()
        if loop not in self._gathering:
            assert self._batch is not None
            self._gathering[loop] = Batches(
                self._client(),
                self._limiter,
                self.name,
                size=int(self._batch["size"]),
                window_s=self._batch["window_s"],
                poll_s=self._batch["poll_s"],
            )
        return self._gathering[loop]

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
            client = anthropic.AsyncAnthropic(
                base_url=self._base_url,
                timeout=timeout,
                max_retries=self._max_retries,
                http_client=anthropic.DefaultAsyncHttpxClient(follow_redirects=False),
            )
        except anthropic.AnthropicError as error:
            raise InputError(f"model {self.name}", action=f"{_NO_KEY} ({type(error).__name__})") from None
        headers = {header.lower() for header in client.default_headers}
        if client.credentials is None and not headers & {"authorization", "x-api-key"}:
            raise InputError(f"model {self.name}", action=_NO_KEY)
        return client

    def _bill(self, call: _Call) -> tuple[float, int] | None:
        if not call.finished or not call.told:
            return None
        dollars = self._price.of(call.usage, call.hour) * self._factor if self._price else 0.0
        return dollars, call.usage.tokens

    def _exchange(self, prompt: Prompt, call: _Call, dollars: float, latency_s: float) -> Exchange:
        return Exchange(
            model=self.name,
            prompt_hash=prompt.prompt_hash,
            template_hash=prompt.template_hash,
            prompt=prompt.text,
            reply=cleaned("".join(call.texts), self._secrets),
            stop_reason=str(call.message.stop_reason) if call.finished and call.message else "error",
            request_id=cleaned(call.request_id, self._secrets),
            latency_s=latency_s,
            usage=dataclasses.replace(call.usage, dollars=dollars),
        )


@dataclass
class _Call:
    """What is known so far about one `complete`.

    Attributes:
        hour: Tokens put into the cache for an hour, of all those put there.
        told: The endpoint told how many tokens it read and wrote; none read is no answer, for there is no empty prompt.
    """

    attempts: Attempts
    message: Message | None = None
    usage: Usage = dataclasses.field(default_factory=Usage)
    hour: int = 0
    told: bool = False
    request_id: str = ""
    failure: str = ""

    @property
    def finished(self) -> bool:
        return self.message is not None and self.message.stop_reason is not None and not self.failure

    @property
    def texts(self) -> list[str]:
        content = self.message.content if self.message else ()
        return [block.text for block in content if block.type == "text" and isinstance(block.text, str)]

    def count(self) -> None:
        """Reads the counts of tokens.

        Raises:
            Exception: They are none; the SDK does not check.
        """
        if self.message is not None:
            usage = self.message.usage
            self.hour = token_count(usage.cache_creation.ephemeral_1h_input_tokens) if usage.cache_creation else 0
            self.usage = Usage(
                input_tokens=token_count(usage.input_tokens),
                output_tokens=token_count(usage.output_tokens),
                cache_read_tokens=token_count(usage.cache_read_input_tokens),
                cache_write_tokens=token_count(usage.cache_creation_input_tokens),
            )
            self.told = None not in (usage.input_tokens, usage.output_tokens) and self.usage.tokens > self.usage.output_tokens
