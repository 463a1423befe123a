"""Any endpoint that speaks the OpenAI chat API: hosted ones, and vLLM, SGLang, llama.cpp or Ollama on a machine of one's own.

The official client is used although it is large: it stands on the HTTP library that the anthropic client brings already, reads the
stream and names the errors. Its own retries are off, for it has no hook around each of them, and every attempt must be permitted
and paid for.
"""

from __future__ import annotations

import os
import typing
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import openai
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam
from openai.types.chat.chat_completion_chunk import ChoiceDelta

from evo.errors import InputError, SpendLimitError
from operators.grammar.forms import Grammar
from operators.grammar.lark import HEADER
from operators.models.attempts import MAX_REPLY_CHARS, NEVER_SENT, back_off, checked_key, spend_code
from operators.models.base import Prompt
from operators.models.ledger import Account
from operators.models.limits import Limiter, OverloadedError
from operators.models.openai_answers import described, spoken, text_of, usage_of
from operators.models.over_http import Call, HttpModel
from operators.models.prices import known_price

Server = Literal["vllm", "sglang", "llama_cpp", "fireworks", "openai"]
"""Servers that hold a reply to a grammar, each by a field of its own; all others ignore such a field without a word."""

_TOOL = "reply"
"""The tool whose input is the reply, for OpenAI's own models: they are held to grammars in tools alone."""

_GRAMMAR_FIELDS: Mapping[Server, Callable[[Grammar], dict[str, Any]]] = {
    "vllm": lambda grammar: {"structured_outputs": {"grammar": grammar.lark}},
    "sglang": lambda grammar: {"ebnf": grammar.gbnf},
    "llama_cpp": lambda grammar: {"grammar": grammar.gbnf},
    "fireworks": lambda grammar: {"response_format": {"type": "grammar", "grammar": grammar.gbnf}},
    "openai": lambda grammar: {
        "tools": [
            {
                "type": "custom",
                "custom": {
                    "name": _TOOL,
                    "description": "Takes the whole reply.",
                    "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": grammar.lark.removeprefix(HEADER)}},
                },
            }
        ],
        "tool_choice": {"type": "custom", "custom": {"name": _TOOL}},
        "parallel_tool_calls": False,
    },
}

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal", "tool_calls": "tool_use"}
"""Into the words that exchanges use for every provider; others stay as they are."""

_RETRIED = frozenset({408, 409, 429})


class OpenAiModel(HttpModel[openai.AsyncOpenAI]):
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
        super().__init__(
            name,
            ledger=ledger,
            limiter=limiter,
            max_tokens=max_tokens,
            base_url=base_url,
            timeout_s=timeout_s,
            silence_s=silence_s,
            max_retries=max_retries,
            price=None if free else known_price(name, ledger, prices),
        )
        if not 0 <= temperature <= 2:
            raise ValueError(f"temperature {temperature} must be 0 … 2")
        if server is not None and server not in typing.get_args(Server):
            raise ValueError(f"server {server!r}; allowed: {', '.join(typing.get_args(Server))}")
        self._key_env = key_env or (None if base_url else "OPENAI_API_KEY")
        self._key = _key(name, self._key_env)
        self._temperature = temperature
        self._server = server

    @property
    def supports_grammar(self) -> bool:
        """See `Model.supports_grammar`."""
        return self._server is not None

    @property
    def _secrets(self) -> tuple[str, ...]:
        return (self._key,) if self._key else ()

    async def _send(self, prompt: Prompt, call: Call) -> None:
        arguments = self._arguments(prompt)
        for number in range(self._max_retries + 1):
            try:
                await call.attempts.begin()
            except (SpendLimitError, OverloadedError) as error:
                if isinstance(error, SpendLimitError) and not call.attempts.finish(None):
                    raise
                # What earlier attempts cost must reach the store first; the next request ends the search.
                call.failure = str(error)
                return
            headers = await self._attempt(arguments, call)
            if headers is None:
                break
            if number < self._max_retries:
                await back_off(number, headers)
        call.texts = [spoken("".join(call.texts))]

    async def _attempt(self, arguments: Mapping[str, Any], call: Call) -> Mapping[str, str] | None:
        """One attempt; the headers of its answer where another one may do better, else None."""
        call.failure = ""
        answer = _Answer(call)
        try:
            await self._stream(arguments, answer)
        except openai.APIStatusError as error:
            call.attempts.refused(error.status_code, error.response.headers)
            call.request_id = error.request_id or call.request_id
            call.spend = spend_code(error.status_code, error.body)
            call.failure = described(error, keyless=self._key is None)
            again = error.status_code in _RETRIED or error.status_code >= 500
            return error.response.headers if again and not call.spend else None
        except openai.APIConnectionError as error:
            if isinstance(error.__cause__, NEVER_SENT):
                call.attempts.unreached()
            call.failure = described(error)
            return None if answer.begun else {}  # what was begun may be billed, and its rest is seldom worth as much again
        except Exception as error:  # noqa: BLE001 - only SDK code runs here; it raises anything on an answer that is no stream
            call.spend = spend_code(0, getattr(error, "body", None))
            call.failure = described(error)
        return None

    async def _stream(self, arguments: Mapping[str, Any], answer: _Answer) -> None:
        call = answer.call
        stream: openai.AsyncStream[ChatCompletionChunk]
        async with await self._client().chat.completions.create(stream=True, **arguments) as stream:
            call.request_id = stream.response.headers.get("x-request-id", "")
            async for chunk in stream:
                answer.take(chunk)
                if answer.characters > MAX_REPLY_CHARS:
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

    def _new_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            api_key=self._key or "none",
            base_url=self._base_url,
            timeout=self._timeout,
            max_retries=0,
            http_client=openai.DefaultAsyncHttpxClient(**self._http),
        )


class _Answer:
    """Takes the stream of one attempt into its call."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.characters = 0
        self.begun = False
        self.called = False

    def take(self, chunk: ChatCompletionChunk) -> None:
        """Adds a piece of the stream: text only; reasoning, tool calls and refusals' words are no part of a reply."""
        self.begun = True
        if chunk.usage:
            usage = usage_of(chunk.usage)
            self.call.told = usage is not None
            self.call.usage = usage or self.call.usage
        for choice in chunk.choices[:1]:
            delta = choice.delta
            text = text_of(delta.content) + self._tool_input(delta)
            self.call.texts.append(text)
            # What is dropped counts as well, so that endless reasoning ends.
            self.characters += len(text) + sum(len(str(value)) for value in (delta.model_extra or {}).values())
            if delta.refusal:
                self.call.stop = "refusal"
            if choice.finish_reason and self.call.stop != "refusal":
                self.call.stop = _STOP_REASONS.get(choice.finish_reason, str(choice.finish_reason))
                if self.called and self.call.stop == "tool_use":
                    self.call.stop = "end_turn"

    def _tool_input(self, delta: ChoiceDelta) -> str:
        """What goes into our tool, which the SDK does not know in streams: its text is the reply."""
        inputs = []
        for call in delta.tool_calls or ():
            custom = (call.model_extra or {}).get("custom")
            if isinstance(custom, dict):
                self.called = self.called or custom.get("name") == _TOOL
                inputs.append(str(custom.get("input") or ""))
        return "".join(inputs) if self.called else ""


def _key(name: str, variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        action = f"no API key: set {variable} in the environment of the machine that makes the proposals"
        raise InputError(f"model {name}", action=action)
    return checked_key(key, variable, name)
