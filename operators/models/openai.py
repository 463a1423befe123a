"""Any endpoint that speaks the OpenAI chat API: hosted ones, and vLLM, SGLang, llama.cpp or Ollama on a machine of one's own.

The official client is used although it is large: it stands on the HTTP library that the anthropic client brings already, reads the
stream and names the errors. Its own retries are off, for it has no hook around each of them, and every attempt must be permitted
and paid for.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
import typing
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import openai
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam

from evo.errors import InputError, SpendLimitError
from evo.records import Exchange, Usage
from operators.models.attempts import (
    MAX_REPLY_CHARS,
    NEVER_SENT,
    Attempts,
    Bound,
    back_off,
    checked_limits,
    checked_url,
    cleaned,
    out_of_money,
    spend_code,
)
from operators.models.base import Model, Prompt, RequestError
from operators.models.ledger import Account
from operators.models.limits import Limiter, LocalLimiter
from operators.models.openai_answers import described, spoken, text_of, usage_of
from operators.models.prices import known_price

Server = Literal["vllm", "sglang", "llama_cpp", "fireworks"]
"""Servers that hold a reply to a grammar, each by a field of its own; all others ignore such a field without a word."""

_GRAMMAR_FIELDS: Mapping[Server, Callable[[str], dict[str, Any]]] = {
    "vllm": lambda text: {"structured_outputs": {"grammar": text}},
    "sglang": lambda text: {"ebnf": text},
    "llama_cpp": lambda text: {"grammar": text},
    "fireworks": lambda text: {"response_format": {"type": "grammar", "grammar": text}},
}

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal", "tool_calls": "tool_use"}
"""Into the words that exchanges use for every provider; others stay as they are."""

_RETRIED = frozenset({408, 409, 429})

_Clients = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, openai.AsyncOpenAI]


class OpenAiModel(Model):
    """A model behind ``/chat/completions``. Another server needs no code: give its `base_url`, and `key_env` where it wants a key.

    Args:
        name: As the endpoint knows it.
        ledger: Pays for the requests. Under a dollar cap the model's price must be known, or it must be `free`.
        limiter: Of the endpoint; None for one of its own, which only heeds pauses.
        max_tokens: Longest reply that operators ask it for, reasoning included.
        base_url: Where the API is, e.g. ``http://127.0.0.1:8000/v1``; None for OpenAI (or ``OPENAI_BASE_URL``).
        key_env: The environment variable with the key. None: ``OPENAI_API_KEY`` for OpenAI, and no key at all for a `base_url`,
            which must never be sent the key of somebody else by accident.
        temperature: Of sampling.
        server: Which one it is, where replies shall be held to a grammar.
        free: It costs nothing, e.g. because it is your own.
        timeout_s: Longest time of one `complete` from when it may be sent, retries included.
        silence_s: Longest silence of the endpoint within it.
        max_retries: Further attempts after 408, 409, 429, 5xx and transport errors.
        prices: A price file that comes before ours.

    Raises:
        InputError: No key in the environment, or no known price under a dollar cap.
        ValueError: A malformed argument.
    """

    provider: ClassVar[str] = "openai"

    def __init__(
        self,
        name: str,
        *,
        ledger: Account,
        limiter: Limiter | None = None,
        max_tokens: int = 16_000,
        base_url: str | None = None,
        key_env: str | None = None,
        temperature: float = 1.0,
        server: Server | None = None,
        free: bool = False,
        timeout_s: float = 600.0,
        silence_s: float = 120.0,
        max_retries: int = 2,
        prices: str | None = None,
    ) -> None:
        super().__init__(name, max_tokens=max_tokens)
        checked_limits(timeout_s, silence_s, max_retries)
        if not 0 <= temperature <= 2:
            raise ValueError(f"temperature {temperature} must be 0 … 2")
        if server is not None and server not in typing.get_args(Server):
            raise ValueError(f"server {server!r}; allowed: {', '.join(typing.get_args(Server))}")
        self._ledger = ledger
        self._limiter = limiter or LocalLimiter()
        self._base_url = checked_url(base_url)
        self._key_env = key_env or (None if base_url else "OPENAI_API_KEY")
        self._key = _key(name, self._key_env)
        self._temperature = temperature
        self._server = server
        self._timeout_s = timeout_s
        self._silence_s = silence_s
        self._max_retries = max_retries
        self._price = None if free else known_price(name, ledger, prices)
        self._clients: _Clients = weakref.WeakKeyDictionary()

    @property
    def least_dollars(self) -> float:
        """See `Model.least_dollars`."""
        return Bound.of(Prompt((), "?", "", self.max_tokens), self._price).dollars

    @property
    def supports_grammar(self) -> bool:
        """See `Model.supports_grammar`."""
        return self._server is not None

    async def complete(self, prompt: Prompt) -> Exchange:
        """See `Model.complete`."""
        call = _Call(Attempts(self._ledger, self._limiter, Bound.of(prompt, self._price)))
        await call.attempts.prepare()
        started = time.perf_counter()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._attempts(prompt, call)
        except TimeoutError:
            call.failure = f"no whole reply within {self._timeout_s:g} s"
        finally:
            # Also on cancellation: what was sent may be billed, so an unknown bill counts in full.
            dollars = call.attempts.finish(self._bill(call))
        if call.spend and not dollars:
            raise out_of_money(self.name, call.spend, call.request_id)
        exchange = self._exchange(prompt, call, dollars, time.perf_counter() - started)
        if call.failure:
            # Raised here and not where the error was caught: an SDK error holds the request and, with it, the key.
            text = f"{self.name}: {call.failure} (requests sent: {call.attempts.sent})"
            raise RequestError(cleaned(text, self._secrets), exchange)
        return exchange

    async def close(self) -> None:
        """See `Model.close`."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    @property
    def _secrets(self) -> tuple[str, ...]:
        return (self._key,) if self._key else ()

    async def _attempts(self, prompt: Prompt, call: _Call) -> None:
        arguments = self._arguments(prompt)
        for number in range(self._max_retries + 1):
            try:
                await call.attempts.begin()
            except SpendLimitError as error:
                if not call.attempts.finish(None):
                    raise
                # What earlier attempts cost must reach the store first; the next request ends the search.
                call.failure = str(error)
                return
            call.failure = ""
            headers: Mapping[str, str] | None = {}
            try:
                await self._stream(arguments, call)
            except openai.APIStatusError as error:
                call.attempts.refused(error.status_code, error.response.headers)
                call.request_id = error.request_id or call.request_id
                call.spend = spend_code(error.status_code, error.body)
                call.failure = described(error, keyless=self._key is None)
                again = error.status_code in _RETRIED or error.status_code >= 500
                headers = error.response.headers if again and not call.spend else None
            except openai.APIConnectionError as error:
                if isinstance(error.__cause__, NEVER_SENT):
                    call.attempts.finish((0.0, 0))
                call.failure = described(error)
                headers = None if call.begun else {}  # what was begun may be billed, and its rest is seldom worth as much again
            except Exception as error:  # noqa: BLE001 - only SDK code runs here; it raises anything on an answer that is no stream
                call.spend = spend_code(0, getattr(error, "body", None))
                call.failure = described(error)
                headers = None
            else:
                headers = None
            if headers is None:
                return
            if number < self._max_retries:
                await back_off(number, headers)

    async def _stream(self, arguments: Mapping[str, Any], call: _Call) -> None:
        stream: openai.AsyncStream[ChatCompletionChunk]
        async with await self._client().chat.completions.create(stream=True, **arguments) as stream:
            call.request_id = stream.response.headers.get("x-request-id", "")
            async for chunk in stream:
                call.take(chunk)
                if call.characters > MAX_REPLY_CHARS:
                    call.failure = f"the reply is longer than {MAX_REPLY_CHARS} characters"
                    return
        if not call.stop:
            call.failure = "the reply broke off before its end"

    def _arguments(self, prompt: Prompt) -> dict[str, Any]:
        messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": prompt.body}]
        if prompt.stable:  # first, and in this order: servers reuse what they computed for a prefix they have seen
            messages.insert(0, {"role": "system", "content": "\n\n".join(prompt.stable)})
        # OpenAI's own models refuse the old name of the limit, other servers do not know the new one.
        limit = "max_tokens" if self._base_url else "max_completion_tokens"
        arguments: dict[str, Any] = {
            "model": self.name,
            "messages": messages,
            "temperature": self._temperature,
            "stream_options": {"include_usage": True},
            limit: prompt.max_tokens,
        }
        headers: dict[str, Any] = {}
        if self._base_url:  # the environment's account at OpenAI is nobody else's business
            headers |= {"OpenAI-Organization": openai.Omit(), "OpenAI-Project": openai.Omit()}
        if self._key is None:
            headers["Authorization"] = openai.Omit()
        if headers:
            arguments["extra_headers"] = headers
        if self._server and prompt.grammar:
            arguments["extra_body"] = _GRAMMAR_FIELDS[self._server](prompt.grammar)
        return arguments

    def _client(self) -> openai.AsyncOpenAI:
        """One client per event loop, for connections cannot be used from another."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients[loop] = openai.AsyncOpenAI(
                api_key=self._key or "none",
                base_url=self._base_url,
                timeout=openai.Timeout(self._silence_s, connect=min(10.0, self._silence_s)),
                max_retries=0,
                http_client=openai.DefaultAsyncHttpxClient(follow_redirects=False),
            )
        return self._clients[loop]

    def _bill(self, call: _Call) -> tuple[float, int] | None:
        """What the last attempt cost; None where the endpoint did not tell."""
        if call.failure or not call.stop or call.usage is None:
            return None
        return (0.0 if self._price is None else self._price.of(call.usage)), call.usage.tokens

    def _exchange(self, prompt: Prompt, call: _Call, dollars: float, latency_s: float) -> Exchange:
        return Exchange(
            model=self.name,
            prompt_hash=prompt.prompt_hash,
            template_hash=prompt.template_hash,
            prompt=prompt.text,
            reply=cleaned(spoken("".join(call.texts)), self._secrets),
            stop_reason="error" if call.failure else call.stop,
            request_id=cleaned(call.request_id, self._secrets),
            latency_s=latency_s,
            usage=dataclasses.replace(call.usage or Usage(), dollars=dollars),
        )


@dataclass
class _Call:
    """What is known so far about one `complete`."""

    attempts: Attempts
    texts: list[str] = field(default_factory=list)
    characters: int = 0
    stop: str = ""
    usage: Usage | None = None
    begun: bool = False
    request_id: str = ""
    failure: str = ""
    spend: str = ""

    def take(self, chunk: ChatCompletionChunk) -> None:
        """Adds a piece of the stream: text only; reasoning, tool calls and refusals' words are no part of a reply."""
        self.begun = True
        self.usage = usage_of(chunk.usage) if chunk.usage else self.usage
        for choice in chunk.choices[:1]:
            delta = choice.delta
            text = text_of(delta.content)
            self.texts.append(text)
            # What is dropped counts as well, so that endless reasoning ends.
            self.characters += len(text) + sum(len(str(value)) for value in (delta.model_extra or {}).values())
            if delta.refusal:
                self.stop = "refusal"
            if choice.finish_reason and self.stop != "refusal":
                self.stop = _STOP_REASONS.get(choice.finish_reason, str(choice.finish_reason))


def _key(name: str, variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        action = f"no API key: set {variable} in the environment of the machine that makes the proposals"
        raise InputError(f"model {name}", action=action)
    return key
