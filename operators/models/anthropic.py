"""Claude through the official asynchronous client: cached prefix, streamed reply or batches, bounded retries and dollars."""

from __future__ import annotations

import asyncio
import typing
import weakref
from typing import Any, ClassVar, Literal

import anthropic
from anthropic.types import Message, TextBlockParam

from evo.errors import InputError, SpendLimitError
from evo.records import Usage
from operators.models.anthropic_attempts import AttemptHook, described
from operators.models.anthropic_batches import PRICE_FACTOR, Batches, BatchFailure, BatchTicket
from operators.models.attempts import MAX_REPLY_CHARS, checked_key, spend_code, token_count
from operators.models.base import Prompt
from operators.models.ledger import Account
from operators.models.limits import Limiter
from operators.models.over_http import Call, HttpModel
from operators.models.prices import known_price

Effort = Literal["low", "medium", "high", "xhigh", "max"]
"""How much work the model should put into a reply; dearer and slower from left to right."""

_CACHE_BREAKPOINTS = 4
"""As many as the endpoint accepts in one request."""

_BATCH_TIMEOUT_S = 90_000.0
"""The endpoint ends a batch after a day."""

_NO_KEY = "no API key: set ANTHROPIC_API_KEY in the environment of the machine that makes the proposals"

_Batches = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Batches]


class AnthropicModel(HttpModel[anthropic.AsyncAnthropic]):
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
        super().__init__(
            name,
            ledger=ledger,
            limiter=limiter,
            max_tokens=max_tokens,
            base_url=base_url,
            timeout_s=timeout_s if timeout_s is not None else _BATCH_TIMEOUT_S if batch else 600.0,
            silence_s=silence_s,
            max_retries=max_retries,
            price=known_price(name, ledger, prices),
            factor=PRICE_FACTOR if batch else 1.0,
            outlives=batch,
        )
        if effort is not None and effort not in typing.get_args(Effort):
            raise ValueError(f"effort {effort!r}; allowed: {', '.join(typing.get_args(Effort))}")
        if not 1 <= batch_size <= 100_000 or not (batch_window_s >= 0 and batch_poll_s > 0):
            raise ValueError("batch_size must be 1 … 100000, batch_window_s not negative and batch_poll_s positive")
        self._effort = effort
        self._batch = {"size": batch_size, "window_s": batch_window_s, "poll_s": batch_poll_s} if batch else None
        self._unused: anthropic.AsyncAnthropic | None = self._keyed_client()
        secrets = (("ANTHROPIC_API_KEY", self._unused.api_key), ("ANTHROPIC_AUTH_TOKEN", self._unused.auth_token))
        self._keys = tuple(checked_key(secret, variable, name) for variable, secret in secrets if secret)
        self._gathering: _Batches = weakref.WeakKeyDictionary()

    async def close(self) -> None:
        """See `Model.close`."""
        batches = self._gathering.pop(asyncio.get_running_loop(), None)
        if batches is not None:
            await batches.close()
        await super().close()

    @property
    def _secrets(self) -> tuple[str, ...]:
        return self._keys

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

    async def _send(self, prompt: Prompt, call: Call) -> None:
        await (self._batched(prompt, call) if self._batch else self._stream(prompt, call))

    async def _stream(self, prompt: Prompt, call: Call) -> None:
        client = self._client().with_options(middleware=[AttemptHook(call.attempts, self.name)])
        characters, begun = 0, False
        try:
            async with client.messages.stream(**self._params(prompt)) as stream:
                call.request_id = stream.request_id or ""
                async for event in stream:
                    begun = begun or event.type == "message_start"
                    if begun:
                        _take(stream.current_message_snapshot, call)
                    characters += len(event.text) if event.type == "text" else 0
                    if characters > MAX_REPLY_CHARS:
                        call.failure = f"the reply is longer than {MAX_REPLY_CHARS} characters"
                        return
        except SpendLimitError as error:
            if not call.attempts.finish(None):
                raise
            call.failure = str(error)  # what earlier attempts cost must reach the store first; the next request ends the search
        except anthropic.APIStatusError as error:
            call.spend = spend_code(error.status_code, error.body)
            call.request_id = error.request_id or call.request_id
            call.failure = described(error)
        except Exception as error:  # noqa: BLE001 - only SDK code runs here, and it raises anything on an answer that is no message
            call.failure = described(error)
        else:
            if not call.stop:
                call.failure = "the reply broke off before its end"

    async def _batched(self, prompt: Prompt, call: Call) -> None:
        await call.attempts.begin()
        ticket = BatchTicket(call.attempts.reservation, prompt.request)
        try:
            if call.attempts.batch:
                _take(await self._batches().fetch(call.attempts.batch, ticket), call)
            else:
                _take(await self._batches().ask(self._params(prompt), ticket), call)
            if not call.stop:
                call.failure = "the reply has no end"
            elif sum(map(len, call.texts)) > MAX_REPLY_CHARS:
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
                self._ledger,
                self.name,
                size=int(self._batch["size"]),
                window_s=self._batch["window_s"],
                poll_s=self._batch["poll_s"],
            )
        return self._gathering[loop]

    def _new_client(self) -> anthropic.AsyncAnthropic:
        client, self._unused = self._unused or self._keyed_client(), None
        return client

    def _keyed_client(self) -> anthropic.AsyncAnthropic:
        """A client with a key.

        Raises:
            InputError: There is none.
        """
        try:
            client = anthropic.AsyncAnthropic(
                base_url=self._base_url,
                timeout=self._timeout,
                max_retries=self._max_retries,
                http_client=anthropic.DefaultAsyncHttpxClient(**self._http),
            )
        except anthropic.AnthropicError as error:
            raise InputError(f"model {self.name}", action=f"{_NO_KEY} ({type(error).__name__})") from None
        headers = {header.lower() for header in client.default_headers}
        if client.credentials is None and not headers & {"authorization", "x-api-key"}:
            raise InputError(f"model {self.name}", action=_NO_KEY)
        return client


def _take(message: Message, call: Call) -> None:
    """Notes what a message says so far: text blocks alone, its end, and its counts of tokens.

    Raises:
        Exception: The counts are none; the SDK does not check.
    """
    call.texts = [block.text for block in message.content if block.type == "text" and isinstance(block.text, str)]
    call.stop = "" if message.stop_reason is None else str(message.stop_reason)
    usage = message.usage
    written = token_count(usage.cache_creation_input_tokens)
    call.hour = min(written, token_count(usage.cache_creation.ephemeral_1h_input_tokens) if usage.cache_creation else 0)
    call.usage = Usage(
        input_tokens=token_count(usage.input_tokens),
        output_tokens=token_count(usage.output_tokens),
        cache_read_tokens=token_count(usage.cache_read_input_tokens),
        cache_write_tokens=written,
    )
    # None read is no answer, for there is no empty prompt.
    call.told = None not in (usage.input_tokens, usage.output_tokens) and call.usage.tokens > call.usage.output_tokens
