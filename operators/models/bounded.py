"""Answers of an endpoint that nobody need trust, bounded in bytes while they are read: after decompression, and per event.

The HTTP library decompresses what arrives as a whole and the SDKs join an event out of its lines, so a few kilobytes of a hostile
endpoint could keep a process busy for minutes or fill its memory, deaf to its own timeouts. So we decompress ourselves, in small
pieces that let others run in between, and stop at what no model would say.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator

import httpx2

ACCEPTED = "gzip, deflate"
"""Encodings that we ask for, and decompress."""

MAX_STREAM_BYTES = 128 << 20
"""Of a streamed reply: 128,000 tokens, each in an event of its own, have about 40 MB."""

MAX_RESULTS_BYTES = 2 << 30
"""Of the results of a batch: of its 100,000 requests each may be answered at length."""

MAX_DOCUMENT_BYTES = 4 << 20
"""Of errors, and of what is said about a batch."""

MAX_EVENT_BYTES = 8 << 20
"""Of one event, or of one line of results: a whole reply may be in it."""

MAX_EVENT_LINES = 64
"""Of one event; those of both APIs have two."""

PIECE_BYTES = 1 << 16
"""What is handed on at once; others run between two pieces."""

_GZIP_OR_ZLIB = 47


class TooMuchError(httpx2.DecodingError):
    """The endpoint's answer is longer than any honest one, or compressed as nobody asked for."""


async def bound_answer(response: httpx2.Response) -> None:
    """A hook for responses of an `httpx2.AsyncClient`: from here on the body is decompressed and bounded by us.

    Raises:
        TooMuchError: It is compressed in a way that we did not ask for.
    """
    told = response.headers.get("content-encoding", "identity").strip().lower()
    if told not in ("identity", "gzip", "x-gzip", "deflate", ""):
        raise TooMuchError(f"the answer is compressed as {told[:40]!r}, which was not asked for")
    stream = response.stream
    assert isinstance(stream, httpx2.AsyncByteStream)
    pieces = _pieces(stream) if told in ("identity", "") else _decompressed(stream)
    path = response.request.url.path
    if path.endswith("/results") and response.is_success:
        checks, limit = _Parts(MAX_EVENT_BYTES, lines=1), MAX_RESULTS_BYTES
    elif "/messages/batches" in path or not response.is_success:
        checks, limit = _Parts(MAX_DOCUMENT_BYTES), MAX_DOCUMENT_BYTES
    else:
        checks, limit = _Parts(MAX_EVENT_BYTES, MAX_EVENT_LINES), MAX_STREAM_BYTES
    response.stream = _Bounded(stream, pieces, checks, limit)
    response.headers.pop("content-encoding", None)  # the library must not decompress it again


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, pieces: AsyncIterator[bytes], parts: _Parts, limit: int) -> None:
        self._stream = stream
        self._pieces = pieces
        self._parts = parts
        self._limit = limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        total = 0
        async for piece in self._pieces:
            total += len(piece)
            if total > self._limit:
                raise TooMuchError(f"the answer is longer than {self._limit} bytes")
            self._parts.take(piece)
            yield piece
            await asyncio.sleep(0)

    async def aclose(self) -> None:
        await self._stream.aclose()


async def _pieces(stream: httpx2.AsyncByteStream) -> AsyncIterator[bytes]:
    async for data in stream:
        for start in range(0, len(data), PIECE_BYTES):
            yield data[start : start + PIECE_BYTES]


async def _decompressed(stream: httpx2.AsyncByteStream) -> AsyncIterator[bytes]:
    inflate = zlib.decompressobj(_GZIP_OR_ZLIB)
    async for data in stream:
        rest = data
        while rest:
            try:
                piece = inflate.decompress(rest, PIECE_BYTES)
            except zlib.error as error:
                raise TooMuchError(f"the answer is not compressed as it says ({error})") from None
            if piece:
                yield piece
            rest = inflate.unconsumed_tail
            if inflate.eof:  # what is sent in parts may be compressed in parts
                rest, inflate = inflate.unused_data, zlib.decompressobj(_GZIP_OR_ZLIB)
                await asyncio.sleep(0)


class _Parts:
    """What has come since the last end of a part. A line ends each part where one line may be in it, else a blank line after others.

    Args:
        most: Bytes in a part.
        lines: Lines in a part; 0 for any count, where nothing joins them one by one.
    """

    def __init__(self, most: int, lines: int = 0) -> None:
        self._most = most
        self._most_lines = lines
        self._bytes = 0
        self._lines = 0
        self._after_return = False

    def take(self, piece: bytes) -> None:
        """Counts a piece.

        Raises:
            TooMuchError: No part ended for too long.
        """
        for line in piece.splitlines(keepends=True) if self._most_lines else (piece,):
            half = self._after_return and line == b"\n"  # the second half of a line's end, in another piece than the first
            self._after_return = line.endswith(b"\r")
            ended = line.endswith((b"\n", b"\r")) and not half
            blank = not line.strip(b"\r\n")
            if ended and self._most_lines and (self._most_lines == 1 or (blank and self._bytes)):
                self._bytes = self._lines = 0
                continue
            self._bytes += 0 if blank else len(line)
            self._lines += ended
            if self._bytes > self._most or self._lines > self._most_lines > 0:
                raise TooMuchError(f"a part of the answer has more than {self._most} bytes or {self._most_lines} lines")
