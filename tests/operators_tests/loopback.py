"""A real HTTP server on 127.0.0.1 that speaks the Anthropic Messages API from a script, for tests with the real SDK."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal, Self

_CHUNK = 4_000


@dataclass(frozen=True)
class Bill:
    """Tokens as the server counts them: four bytes each; a prefix it has seen before is read from the cache."""

    fresh: int
    written: int
    read: int
    output: int


@dataclass(frozen=True)
class Message:
    """A streamed message.

    Attributes:
        blocks: Content blocks as the API gives them; a string is a text block.
        stop_reason: As the API gives it.
        delay_s: Silence before the first byte.
        stall_s: Silence in the middle.
        cut: ``end``: the stream ends in the middle; ``break``: the connection does. Neither gives a stop reason.
    """

    blocks: tuple[str | Mapping[str, Any], ...]
    stop_reason: str = "end_turn"
    delay_s: float = 0.0
    stall_s: float = 0.0
    cut: Literal["", "end", "break"] = ""


@dataclass(frozen=True)
class Failure:
    """An error as the API gives it; `echo_key` adds the caller's credentials to its text, as a careless proxy would."""

    status: int
    type: str
    message: str = "scripted"
    code: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    echo_key: bool = False


@dataclass(frozen=True)
class Raw:
    """Any bytes with any status."""

    body: bytes
    content_type: str = "text/event-stream"
    status: int = 200


Answer = Message | Failure | Raw


def reply(text: str) -> Message:
    """A whole message of one text block."""
    return Message((text,))


class Loopback:
    """Answers requests in the order of the script; the last answer is repeated for ever.

    Attributes:
        bodies: Parsed request bodies, in order of arrival.
        authorizations: Credentials that came with them.
        bills: What every message would be billed.
    """

    def __init__(self, script: Sequence[Answer]) -> None:
        self._script = list(script)
        self._lock = threading.Lock()
        self._cached: set[str] = set()
        self.stopping = threading.Event()
        self.bodies: list[dict[str, Any]] = []
        self.authorizations: list[str] = []
        self.bills: list[Bill] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        """What to give as `base_url`."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def count(self) -> int:
        """Requests that arrived."""
        return len(self.bodies)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def take(self, body: dict[str, Any], authorization: str) -> tuple[Answer, Bill]:
        """Notes a request and gives its answer and bill."""
        with self._lock:
            answer = self._script[min(len(self.bodies), len(self._script) - 1)]
            self.bodies.append(body)
            self.authorizations.append(authorization)
            bill = self._bill(body, answer)
            if isinstance(answer, Message):
                self.bills.append(bill)
            return answer, bill

    def _bill(self, body: dict[str, Any], answer: Answer) -> Bill:
        system = body.get("system") or []
        marked = [number for number, block in enumerate(system) if "cache_control" in block]
        cut = marked[-1] + 1 if marked else 0
        prefix = "".join(block["text"] for block in system[:cut])
        rest = "".join(block["text"] for block in system[cut:]) + "".join(item["content"] for item in body["messages"])
        known = prefix in self._cached
        if isinstance(answer, Message):
            self._cached.add(prefix)
        output = sum(len(json.dumps(block)) for block in answer.blocks) // 4 if isinstance(answer, Message) else 0
        size = len(prefix.encode()) // 4
        return Bill(len(rest.encode()) // 4, 0 if known else size, size if known else 0, min(output, body["max_tokens"]))


def _handler(server: Loopback) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            authorization = self.headers.get("authorization") or self.headers.get("x-api-key") or ""
            answer, bill = server.take(body, authorization)
            if not authorization:
                answer = Failure(401, "authentication_error", "no credentials")
            try:
                self._answer(answer, bill, authorization)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # the client gave up, which some tests are about

        def _answer(self, answer: Answer, bill: Bill, authorization: str) -> None:
            if isinstance(answer, Message):
                self._message(answer, bill)
            elif isinstance(answer, Failure):
                said = f"{answer.message} {authorization}" if answer.echo_key else answer.message
                error: dict[str, Any] = {"type": answer.type, "message": said}
                if answer.code:
                    error["details"] = {"error_code": answer.code}
                self._send(
                    answer.status, "application/json", json.dumps({"type": "error", "error": error}).encode(), answer.headers
                )
            else:
                self._send(answer.status, answer.content_type, answer.body, {})

        def _message(self, answer: Message, bill: Bill) -> None:
            server.stopping.wait(answer.delay_s)
            events = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in _events(answer, bill)]
            half = len(events) // 2
            first, second = b"".join(events[:half]), b"".join(events[half:])
            if answer.cut:
                self._head(200, "text/event-stream", len(first) + (len(second) if answer.cut == "break" else 0), {})
                self.wfile.write(first)
                self.wfile.flush()
                self.close_connection = True
                return
            self._head(200, "text/event-stream", len(first) + len(second), {})
            self.wfile.write(first)
            self.wfile.flush()
            server.stopping.wait(answer.stall_s)
            self.wfile.write(second)

        def _send(self, status: int, content_type: str, body: bytes, headers: Mapping[str, str]) -> None:
            self._head(status, content_type, len(body), headers)
            self.wfile.write(body)

        def _head(self, status: int, content_type: str, length: int, headers: Mapping[str, str]) -> None:
            self.send_response(status)
            for key, value in {
                "content-type": content_type,
                "content-length": str(length),
                "request-id": "req_1",
                **headers,
            }.items():
                self.send_header(key, value)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
            return

    return Handler


def _events(answer: Message, bill: Bill) -> Iterator[dict[str, Any]]:
    usage = {
        "input_tokens": bill.fresh,
        "cache_creation_input_tokens": bill.written,
        "cache_read_input_tokens": bill.read,
        "output_tokens": 1,
    }
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "scripted", "content": [], "usage": usage}
    yield {"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None}}
    for index, block in enumerate(answer.blocks):
        content = {"type": "text", "text": block} if isinstance(block, str) else dict(block)
        deltas = list(_deltas(content))
        yield {"type": "content_block_start", "index": index, "content_block": content}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    delta = {"stop_reason": answer.stop_reason, "stop_sequence": None}
    yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": bill.output}}
    yield {"type": "message_stop"}


def _deltas(content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Takes the long text out of a block and gives it in pieces, as the API streams it."""
    for kind in ("text", "thinking"):
        if content["type"] == kind:
            whole, content[kind] = content[kind], ""
            yield from ({"type": f"{kind}_delta", kind: whole[start : start + _CHUNK]} for start in range(0, len(whole), _CHUNK))
