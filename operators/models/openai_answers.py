"""What an answer of the chat API says: its text without reasoning, its counts of tokens, and its errors in words."""

from __future__ import annotations

import openai
from openai.types import CompletionUsage

from evo.records import Usage
from operators.models.attempts import token_count
from operators.models.over_http import stream_trouble, transport_trouble, with_hint


def text_of(content: object) -> str:
    """Of a piece of content: a string, or with some servers a list of parts, of which thinking is one."""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict) and part.get("type") == "text")
    return content if isinstance(content, str) else ""


def spoken(reply: str) -> str:
    """Without the reasoning that a server left in the text: up to its closing tag, the opening one may stand in the prompt."""
    head, tag, rest = reply.partition("</think>")
    opened = head.lstrip().startswith("<think>")
    if tag and (opened or "<think>" not in head):
        return rest.lstrip()
    return "" if opened else reply


def usage_of(usage: CompletionUsage) -> Usage | None:
    """The counts; None where one is missing, or nothing was read, which is no answer, for there is no empty prompt.

    Raises:
        Exception: They are none; the SDK does not check.
    """
    asked, replied = token_count(usage.prompt_tokens), token_count(usage.completion_tokens)
    if not asked or usage.completion_tokens is None:
        return None
    details = usage.prompt_tokens_details
    read, written = (token_count(details.cached_tokens), token_count(details.cache_write_tokens)) if details else (0, 0)
    return Usage(max(0, asked - read - written), replied, read, written)


def described(error: Exception, *, keyless: bool = False) -> str:
    """One line about an SDK error, without the request it holds."""
    if isinstance(error, openai.APIStatusError):
        body = error.body if isinstance(error.body, dict) else {}
        hint = "(no key was sent: name its variable in the option key_env)"
        text = with_hint(error, (error.type, error.code), body.get("message"))
        return f"{text} {hint}" if keyless and error.status_code in (401, 403) else text
    if isinstance(error, openai.APIError) and not isinstance(error, openai.APIConnectionError):
        return stream_trouble(error.message)
    return transport_trouble(error, (openai.APITimeoutError,), openai.APIConnectionError)
