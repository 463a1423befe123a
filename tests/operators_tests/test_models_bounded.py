"""Hostile answers through the real SDKs: neither bombs nor endless events keep a process busy, and honest compression is read."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import time
import zlib
from pathlib import Path

import pytest

from evo.records import Exchange
from operators.models.base import Model, Prompt, RequestError
from operators.models.bounded import MAX_EVENT_BYTES
from operators.models.ledger import Ledger
from tests.operators_tests.loopback import Raw, reply
from tests.operators_tests.loopback_formats import Bill, chat_events, message_events
from tests.operators_tests.model_harness import Endpoint, http_endpoint, quiet_environment

PROMPT = Prompt(("Rules.",), "Improve this kernel.", "hash", 1_000)
GAP_S = 1.0
"""Longest time for which others in the process may be kept waiting."""
IN_ALL_S = 5.0
"""Longest time for the whole of a hostile answer. Both are seconds of the processor: other work on the machine does not add to them."""

EVENTS = {"anthropic": message_events, "openai": chat_events}


@pytest.fixture(params=list(EVENTS))
def provider(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    quiet_environment(monkeypatch, tmp_path, list(EVENTS))
    return str(request.param)


def compressed(start: bytes, pattern: bytes, mebibytes: int) -> bytes:
    packer = zlib.compressobj(1, wbits=31)
    block = pattern * ((1 << 20) // len(pattern))
    return b"".join([packer.compress(start), *(packer.compress(block) for _ in range(mebibytes)), packer.flush()])


def failure(opened: Endpoint) -> tuple[str, float, float]:
    """What went wrong, how long it kept the event loop busy, and how long without a pause for others."""
    gaps = [0.0]

    async def watch() -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.01)
            gaps.append(time.thread_time() - before)

    async def ask(client: Model) -> str:
        watching = asyncio.create_task(watch())
        try:
            with pytest.raises(RequestError) as caught:
                await client.complete(PROMPT)
            return str(caught.value)
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
            await client.close()

    started = time.thread_time()
    said = asyncio.run(ask(opened.model(Ledger(5.0), max_retries=0)))
    return said, time.thread_time() - started, max(gaps)


BOMBS = {
    "one line": (b"data: ", b"x"),
    "blank lines": (b"", b"\n"),
    "an event of lines": (b"", b"data: x\n"),
    "lines that end in two ways": (b"", b"a\r\nb\r"),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_stopped_and_keeps_nobody_waiting(provider: str, bomb: str, tmp_path: Path) -> None:
    with http_endpoint(provider, [Raw(compressed(*BOMBS[bomb], 64), headers={"content-encoding": "gzip"})], tmp_path) as opened:
        said, seconds, gap = failure(opened)
    assert f"a part of the answer has more than {MAX_EVENT_BYTES} bytes or 64 lines" in said
    assert gap < GAP_S
    assert seconds < IN_ALL_S


def test_an_error_that_does_not_end_is_stopped(provider: str, tmp_path: Path) -> None:
    bomb = Raw(compressed(b"", b"x", 64), "application/json", 400, {"content-encoding": "deflate"})
    with http_endpoint(provider, [bomb], tmp_path) as opened:
        _, seconds, gap = failure(opened)
    assert gap < GAP_S
    assert seconds < IN_ALL_S


def test_lines_without_an_end_are_stopped_where_nothing_is_compressed(provider: str, tmp_path: Path) -> None:
    with http_endpoint(provider, [Raw(b"data: " + b"x" * (MAX_EVENT_BYTES + 1))], tmp_path) as opened:
        said, _, _ = failure(opened)
    assert f"a part of the answer has more than {MAX_EVENT_BYTES} bytes" in said


@pytest.mark.parametrize(("encoding", "body"), [("br", b"\x0b\x02\x80x\x03"), ("gzip", b"no gzip"), ("gzip, gzip", b"")])
def test_what_is_not_compressed_as_asked_is_a_failed_request(provider: str, encoding: str, body: bytes, tmp_path: Path) -> None:
    with http_endpoint(provider, [Raw(body, headers={"content-encoding": encoding})], tmp_path) as opened:
        said, _, _ = failure(opened)
    assert "compressed as" in said


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_an_honest_compressed_reply_is_read(provider: str, encoding: str, tmp_path: Path) -> None:
    events = list(EVENTS[provider](reply("Strategy: tiles. é"), Bill(10, 0, 0, 5)))
    pack = gzip.compress if encoding == "gzip" else zlib.compress
    halves = b"".join(events[:3]), b"".join(events[3:])
    body = pack(halves[0]) + pack(halves[1]) if encoding == "gzip" else pack(halves[0] + halves[1])

    async def ask(client: Model) -> Exchange:
        try:
            return await client.complete(PROMPT)
        finally:
            await client.close()

    with http_endpoint(provider, [Raw(body, headers={"content-encoding": encoding})], tmp_path) as opened:
        exchange = asyncio.run(ask(opened.model(Ledger(5.0))))
    assert (exchange.reply, exchange.usage.output_tokens) == ("Strategy: tiles. é", 5)
