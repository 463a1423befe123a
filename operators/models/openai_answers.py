"""What an answer of the chat API says: its text without reasoning, its counts of tokens, and its errors in words."""

from __future__ import annotations

import httpx2
import openai
from openai.types import CompletionUsage

from evo.records import Usage
from operators.models.attempts import redirect_hint, token_count


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
        words = [str(error.status_code), error.type or "", error.code or ""]
        body = error.body if isinstance(error.body, dict) else {}
        said = " ".join(str(body.get("message") or "").split())[:300]
        hint = redirect_hint(error.status_code)
        if keyless and error.status_code in (401, 403):
            hint = " (no key was sent: name its variable in the option key_env)"
        return " ".join(word for word in words if word) + (f": {said}" if said else "") + hint
    if isinstance(error, openai.APITimeoutError | httpx2.TimeoutException):
        return "the endpoint was silent for too long"
    if isinstance(error, openai.APIConnectionError | httpx2.TransportError):
        return f"the connection failed ({type(error.__cause__ or error).__name__})"
    if isinstance(error, openai.APIError):
        return f"the stream ended with an error: {' '.join(str(error.message).split())[:300]}"
    return f"the answer is no message stream ({type(error).__name__})"
