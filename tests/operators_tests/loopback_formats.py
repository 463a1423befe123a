"""How the two APIs spell the same scripted answers and requests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

_CHUNK = 4_000

_FINISH = {"end_turn": "stop", "max_tokens": "length", "refusal": "content_filter", "tool_use": "tool_calls"}


@dataclass(frozen=True)
class Bill:
    """Tokens as the server counts them: four bytes each; a prefix it has seen before is read from the cache."""

    fresh: int
    written: int
    read: int
    output: int


@dataclass(frozen=True)
class Message:
    """A message, streamed where it was asked for so.

    Attributes:
        blocks: Content blocks as the Messages API gives them; a string is a text block.
        stop_reason: As the Messages API gives it.
        delay_s: Silence before the first byte.
        stall_s: Silence in the middle.
        cut: ``end``: the stream ends in the middle; ``break``: the connection does; ``before``: it does before the first byte. None
            gives a stop reason.
        billed: Whether the reply tells its usage, which some servers of the chat API do not.
        claims: Tokens that it says it has, whatever it has; 0 for those it has.
    """

    blocks: tuple[str | Mapping[str, Any], ...]
    stop_reason: str = "end_turn"
    delay_s: float = 0.0
    stall_s: float = 0.0
    cut: Literal["", "end", "break", "before"] = ""
    billed: bool = True
    claims: int = 0


@dataclass(frozen=True)
class Failure:
    """An error as the APIs give it; `echo_key` adds the caller's credentials to its text, as a careless proxy would."""

    status: int
    type: str
    message: str = "scripted"
    code: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    echo_key: bool = False

    def body(self, authorization: str, *, chat: bool) -> dict[str, Any]:
        """As JSON, in the form of one of the APIs."""
        error: dict[str, Any] = {
            "type": self.type,
            "message": f"{self.message} {authorization}" if self.echo_key else self.message,
        }
        if chat:
            return {"error": {**error, "code": self.code or None, "param": None}}
        if self.code:
            error["details"] = {"error_code": self.code}
        return {"type": "error", "error": error}


@dataclass(frozen=True)
class Raw:
    """Any bytes with any status."""

    body: bytes
    content_type: str = "text/event-stream"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Lost:
    """What becomes of one request of a batch that gets no message; alone it is answered as overloaded."""

    type: Literal["expired", "canceled"]


Answer = Message | Failure | Raw | Lost


def reply(text: str) -> Message:
    """A whole message of one text block."""
    return Message((text,))


def asked(body: dict[str, Any]) -> tuple[str, str]:
    """The part of a request that is put into a cache, and the rest."""
    if "system" in body or not any(item["role"] == "system" for item in body["messages"]):
        system: Sequence[dict[str, Any]] = body.get("system") or []
        marked = [number for number, block in enumerate(system) if "cache_control" in block]
        cut = marked[-1] + 1 if marked else 0
        rest = [block["text"] for block in system[cut:]] + [item["content"] for item in body["messages"]]
        return "".join(block["text"] for block in system[:cut]), "".join(rest)
    texts = {item["role"]: item["content"] for item in body["messages"]}
    return texts["system"], texts["user"]


def message_json(answer: Message, bill: Bill) -> dict[str, Any]:
    """A whole message of the Messages API."""
    usage = {
        "input_tokens": bill.fresh,
        "cache_creation_input_tokens": bill.written,
        "cache_read_input_tokens": bill.read,
        "output_tokens": bill.output,
    }
    content = [{"type": "text", "text": block} if isinstance(block, str) else dict(block) for block in answer.blocks]
    ends = {"stop_reason": answer.stop_reason, "stop_sequence": None}
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "scripted",
        "content": content,
        "usage": usage,
        **ends,
    }


def message_events(answer: Message, bill: Bill) -> Iterator[bytes]:
    """The stream of the Messages API."""
    whole = message_json(answer, bill)
    begun = {**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 1}}
    yield _event({"type": "message_start", "message": begun})
    for index, content in enumerate(whole["content"]):
        deltas = list(_deltas(content))
        yield _event({"type": "content_block_start", "index": index, "content_block": content})
        for delta in deltas:
            yield _event({"type": "content_block_delta", "index": index, "delta": delta})
        yield _event({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": answer.stop_reason, "stop_sequence": None}
    yield _event({"type": "message_delta", "delta": delta, "usage": {"output_tokens": bill.output}})
    yield _event({"type": "message_stop"})


def chat_events(answer: Message, bill: Bill) -> Iterator[bytes]:
    """The stream of the chat API."""
    yield _chunk({"role": "assistant", "content": ""})
    for block in answer.blocks:
        content = {"type": "text", "text": block} if isinstance(block, str) else dict(block)
        if content["type"] == "tool_use":
            function = {"name": content["name"], "arguments": json.dumps(content["input"])}
            yield _chunk({"tool_calls": [{"index": 0, "id": content["id"], "type": "function", "function": function}]})
        if content["type"] == "custom_tool":  # the input comes in pieces, and the name with the first one
            halves = (content["input"][: len(content["input"]) // 2], content["input"][len(content["input"]) // 2 :])
            for name, part in zip((content["name"], None), halves, strict=True):
                called = {"index": 0, "id": "call_1", "type": "custom", "custom": {"name": name, "input": part}}
                yield _chunk({"tool_calls": [called]})
        names = {"text": "content", "thinking": "reasoning_content", "refusal": "refusal"}
        for delta in _deltas(content):
            kind = delta["type"].removesuffix("_delta")
            yield _chunk({names[kind]: delta[kind]})
    yield _chunk({}, _FINISH.get(answer.stop_reason, answer.stop_reason))
    if answer.billed:
        details = {"cached_tokens": bill.read, "cache_write_tokens": bill.written}
        prompt = bill.fresh + bill.read + bill.written
        usage = {"prompt_tokens": prompt, "completion_tokens": bill.output, "total_tokens": prompt + bill.output}
        yield _data({**_CHAT, "choices": [], "usage": {**usage, "prompt_tokens_details": details}})
    yield b"data: [DONE]\n\n"


_CHAT = {"id": "chat_1", "object": "chat.completion.chunk", "created": 1, "model": "scripted"}


def _chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    return _data({**_CHAT, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def _data(data: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def _event(event: dict[str, Any]) -> bytes:
    return f"event: {event['type']}\n".encode() + _data(event)


def _deltas(content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Takes the long text out of a block and gives it in pieces, as the APIs stream it."""
    for kind in ("text", "thinking", "refusal"):
        if content["type"] == kind:
            whole, content[kind] = content[kind], ""
            yield from ({"type": f"{kind}_delta", kind: whole[start : start + _CHUNK]} for start in range(0, len(whole), _CHUNK))
