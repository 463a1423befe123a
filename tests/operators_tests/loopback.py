"""A real HTTP server on 127.0.0.1 that speaks both chat APIs and Message Batches from a script, for tests with the real SDKs."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from tests.operators_tests.loopback_formats import (
    Answer,
    Bill,
    Failure,
    Lost,
    Message,
    Raw,
    asked,
    chat_events,
    message_events,
    message_json,
    reply,
)

__all__ = ["Answer", "Bill", "Failure", "Loopback", "Lost", "Message", "Raw", "reply"]

_BATCHES = re.compile(r"/v1/messages/batches(?:/(?P<id>\w+))?(?P<results>/results)?")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256  # of connections that wait to be accepted; the default of 5 resets those of a burst


class Loopback:
    """Answers requests, alone or in batches, in the order of the script; the last answer is repeated for ever.

    Args:
        script: What is answered; a function of the request's body where it is one.
        creating: What the first attempts to create a batch get, instead of a batch.
        looking: What the first looks at batches get.
        looks: How often a batch is still in progress when it is looked at.
        keyless: Whether it answers who sends no key.
        port: Where it listens; 0 for any free one.
        loading_s: Seconds in which ``/health`` says that it is not ready.

    Attributes:
        bodies: Parsed bodies of requests for a message, in order of arrival; those of batches one by one.
        batches: Requests in every batch that was created.
        created: Attempts to create a batch.
        authorizations: Credentials that came with all requests, empty where none did.
        arrivals: When each request for a message or a batch came, by the monotonic clock.
        bills: What every message would be billed.
    """

    def __init__(
        self,
        script: Sequence[Answer] | Callable[[dict[str, Any]], Answer],
        *,
        creating: Sequence[Answer] = (),
        looking: Sequence[Failure] = (),
        looks: int = 1,
        keyless: bool = False,
        port: int = 0,
        loading_s: float = 0.0,
    ) -> None:
        self._script = script if callable(script) else list(script)
        self._creating = list(creating)
        self._looking = list(looking)
        self._looks = looks
        self._lock = threading.Lock()
        self._cached: set[str] = set()
        self._results: dict[str, tuple[int, list[dict[str, Any]]]] = {}
        self.keyless = keyless
        self.stopping = threading.Event()
        self.bodies: list[dict[str, Any]] = []
        self.batches: list[int] = []
        self.created = 0
        self.authorizations: list[str] = []
        self.arrivals: list[float] = []
        self.bills: list[Bill] = []
        self.ready_from = time.monotonic() + loading_s
        self._server = _Server(("127.0.0.1", port), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        """What to give as `base_url`."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def count(self) -> int:
        """Requests for a message that arrived."""
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
            self.authorizations.append(authorization)
            self.arrivals.append(time.monotonic())
            return self._take(body)

    def create(self, body: dict[str, Any], authorization: str) -> Answer | dict[str, Any]:
        """Notes a batch, decides what becomes of its requests, and gives what the endpoint says of it."""
        with self._lock:
            self.authorizations.append(authorization)
            self.arrivals.append(time.monotonic())
            self.created += 1
            if self._creating:
                return self._creating.pop(0)
            lines, looks = [], self._looks
            for item in body["requests"]:
                answer, bill = self._take(item["params"])
                if isinstance(answer, Message) and answer.delay_s:
                    looks = 1_000_000  # one that never answers keeps its batch from ending
                lines.append({"custom_id": item["custom_id"], "result": _result(answer, bill)})
            name = f"batch{len(self.batches)}"
            self.batches.append(len(lines))
            self._results[name] = (looks, lines[::-1])  # in no order that anybody may rely on
            return self._described(name)

    def fail_next_batch(self, failure: Failure) -> None:
        """What the next attempt to create a batch gets."""
        self._creating.insert(0, failure)

    def redirect_batches(self) -> None:
        """Whatever is asked of the place for batches is to be asked elsewhere."""
        self._creating = [Failure(307, "moved", headers={"location": "/v1/messages/batches"})] * 50

    def end_batches(self) -> None:
        """All batches have ended when they are looked at next."""
        with self._lock:
            self._results = {name: (-1, lines) for name, (_, lines) in self._results.items()}

    def look(self, name: str) -> dict[str, Any] | Failure:
        """What the endpoint says of a batch."""
        with self._lock:
            if self._looking:
                return self._looking.pop(0)
            looks, lines = self._results[name]
            self._results[name] = (looks - 1, lines)
            return self._described(name)

    def results(self, name: str) -> bytes:
        """The results of a batch, one a line."""
        return b"".join(json.dumps(line).encode() + b"\n" for line in self._results[name][1])

    def _described(self, name: str) -> dict[str, Any]:
        looks, lines = self._results[name]
        counts = {"processing": len(lines), "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0}
        ended = looks < 0
        return {
            "id": name,
            "type": "message_batch",
            "processing_status": "ended" if ended else "in_progress",
            "request_counts": counts,
            "created_at": "2026-01-01T00:00:00Z",
            "expires_at": "2026-01-02T00:00:00Z",
            "results_url": f"{self.url}/v1/messages/batches/{name}/results" if ended else None,
        }

    def _take(self, body: dict[str, Any]) -> tuple[Answer, Bill]:
        script = self._script
        answer = script(body) if callable(script) else script[min(len(self.bodies), len(script) - 1)]
        self.bodies.append(body)
        bill = self._bill(body, answer)
        if isinstance(answer, Message):
            self.bills.append(bill)
        return answer, bill

    def _bill(self, body: dict[str, Any], answer: Answer) -> Bill:
        prefix, rest = asked(body)
        known = prefix in self._cached
        if isinstance(answer, Message):
            self._cached.add(prefix)
        output = sum(len(json.dumps(block)) for block in answer.blocks) // 4 if isinstance(answer, Message) else 0
        size = len(prefix.encode()) // 4
        limit: int = body.get("max_tokens") or body["max_completion_tokens"]
        output = min(output, limit)
        if isinstance(answer, Message) and answer.claims:
            output = answer.claims
        return Bill(len(rest.encode()) // 4, 0 if known else size, size if known else 0, output)


def _result(answer: Answer, bill: Bill) -> dict[str, Any]:
    if isinstance(answer, Message):
        return {"type": "succeeded", "message": message_json(answer, bill)}
    if isinstance(answer, Failure):
        return {"type": "errored", "error": answer.body("", chat=False)}
    return {"type": answer.type if isinstance(answer, Lost) else "unheard_of"}


def _handler(server: Loopback) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            authorization = self._authorization()
            chat = self.path.endswith("/chat/completions")
            answer: Answer | dict[str, Any]
            bill = Bill(0, 0, 0, 0)
            if _BATCHES.fullmatch(self.path):
                answer = server.create(body, authorization)
            else:
                answer, bill = server.take(body, authorization)
            if not authorization and not server.keyless:
                answer = Failure(401, "authentication_error", "no credentials")
            try:
                self._answer(answer, bill, authorization, chat)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # the client gave up, which some tests are about

        def do_GET(self) -> None:
            if self.path == "/health":
                self._send(200 if time.monotonic() >= server.ready_from else 503, "text/plain", b"", {})
                return
            found = _BATCHES.fullmatch(self.path)
            assert found is not None, self.path
            if found["results"]:
                self._send(200, "application/x-jsonl", server.results(found["id"]), {})
            else:
                self._answer(server.look(found["id"]), Bill(0, 0, 0, 0), "", False)

        def _authorization(self) -> str:
            return self.headers.get("authorization") or self.headers.get("x-api-key") or ""

        def _answer(self, answer: Answer | dict[str, Any], bill: Bill, authorization: str, chat: bool) -> None:
            if isinstance(answer, Lost):
                answer = Failure(529, "overloaded_error")
            if isinstance(answer, Message):
                self._message(answer, chat_events(answer, bill) if chat else message_events(answer, bill))
            elif isinstance(answer, Failure):
                body = answer.body(authorization, chat=chat)
                self._send(answer.status, "application/json", json.dumps(body).encode(), answer.headers)
            elif isinstance(answer, Raw):
                self._send(answer.status, answer.content_type, answer.body, answer.headers)
            else:
                self._send(200, "application/json", json.dumps(answer).encode(), {})

        def _message(self, answer: Message, stream: Iterator[bytes]) -> None:
            server.stopping.wait(answer.delay_s)
            if answer.cut == "before":
                self.close_connection = True
                return
            events = list(stream)
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
            given = {"content-type": content_type, "content-length": str(length), "request-id": "req_1", "x-request-id": "req_1"}
            for key, value in {**given, **headers}.items():
                self.send_header(key, value)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
            return

    return Handler
