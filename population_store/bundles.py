"""Bundles: a stretch of a run's journal as one file that can be carried to another machine and is checked there, line by line.

A bundle is text in ASCII, one JSON document a line (``Infinity`` where a figure is infinite), plain or compressed by gzip::

    {"format": "triton-evolve bundle", "version": 1, "run": HEADER, "base": {"entries": N, "head": HASH}}
    {"kind": "request", …}                       one line per entry of the journal, see `population_store.entries`
    {"kind": "end", "head": {"entries": M, "head": HASH}, "spent": SPENT}

The hash of a journal is a chain: that of no entry is the hash of the run's header, that of one entry more is the hash of the one before and
of the entry. So two journals with equal heads are equal, and a bundle fits wherever the journal up to its base is the same. The chain
finds damage and mistakes, not forgery: who carries a bundle is believed about times and verdicts. No text in it is ever run by whoever
reads it, and its modules go through the same judge as any other.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import stat
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from evo.errors import BundleError
from evo.records import Spent
from population_store.base import Entry, PopulationStore, RunHeader
from population_store.entries import canonical, entry_from_json, entry_to_json, record_from_json, whole

FORMAT = "triton-evolve bundle"
VERSION = 1

MAX_BYTES = 1 << 30
"""Of a bundle, uncompressed: tens of thousands of proposals with their prompts."""

MAX_LINE = 1 << 26
"""Bytes of one line. An entry is at most a few prompts and replies."""

_GZIP = b"\x1f\x8b"
_HASH_DIGITS = 64


@dataclass(frozen=True)
class Point:
    """A place in a journal: after so many entries, with the hash of all of them (hex)."""

    entries: int
    head: str

    def __str__(self) -> str:
        return f"{self.entries} entries, {self.head[:12]}"


@dataclass(frozen=True)
class Bundle:
    """A stretch of a journal.

    Attributes:
        header: Of the run.
        base: Where it begins.
        points: The place after each of its entries.
        entries: In order.
        spent: As of its end.
    """

    header: RunHeader
    base: Point
    points: tuple[Point, ...]
    entries: tuple[Entry, ...]
    spent: Spent

    @property
    def head(self) -> Point:
        """Where it ends."""
        return self.points[-1] if self.points else self.base


class Chain:
    """Follows a journal from its beginning, or from a known place on.

    Args:
        start: The header of a run, or a place in its journal.
    """

    def __init__(self, start: RunHeader | Point) -> None:
        if isinstance(start, Point):
            self._point = start
        else:
            self._point = Point(0, hashlib.sha256(canonical(start.to_json()).encode()).hexdigest())

    @property
    def point(self) -> Point:
        """After everything added so far."""
        return self._point

    def add(self, entry: Entry) -> Point:
        """The place after one entry more."""
        text = canonical(entry_to_json(entry)).encode()
        digest = hashlib.sha256(bytes.fromhex(self._point.head) + text).hexdigest()
        self._point = Point(self._point.entries + 1, digest)
        return self._point


def bundle_of(store: PopulationStore, begin: int = 0) -> Bundle:
    """The journal of a store from after its first `begin` entries on."""
    chain = Chain(store.header)
    base, points, entries = chain.point, [], []
    for count, (_, entry) in enumerate(store.journal(), start=1):
        point = chain.add(entry)
        if count <= begin:
            base = point
        else:
            points.append(point)
            entries.append(entry)
    return Bundle(store.header, base, tuple(points), tuple(entries), store.spent)


def write_bundle(bundle: Bundle, path: Path) -> None:
    """Writes a bundle, whole or not at all; an equal bundle gives an equal file. A bundle of the same run that is there is replaced.

    Raises:
        BundleError: Another file is there, or it cannot be written.
    """
    _refuse_to_replace(path, bundle.header)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            if path.name.endswith(".gz"):
                with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
                    packed.writelines(_lines(bundle))
            else:
                file.writelines(_lines(bundle))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except (OSError, ValueError) as error:
        raise BundleError(str(path), action=f"cannot be written: {error}") from None
    finally:
        draft.unlink(missing_ok=True)


def read_bundle(path: Path, *, max_bytes: int = MAX_BYTES) -> Bundle:
    """Reads and checks a bundle, whoever wrote it.

    Args:
        path: Of the file.
        max_bytes: See `MAX_BYTES`.

    Raises:
        BundleError: It cannot be read, is too large, is damaged or is no bundle; says in which line.
    """
    number = 1
    try:
        with _opened(path) as file:
            lines = _bounded(file, max_bytes)
            header, base = _first(_json(next(lines, b"")))
            chain, points, entries = Chain(base), list[Point](), list[Entry]()
            for line in lines:
                number += 1
                document = _json(line)
                if document.get("kind") == "end":
                    spent = _end(document, chain.point)
                    if next(lines, None) is not None:
                        raise ValueError("more follows after its end")
                    return Bundle(header, base, tuple(points), tuple(entries), spent)
                entries.append(entry_from_json(document))
                points.append(chain.add(entries[-1]))
            raise ValueError("its end is missing: it was not copied whole")
    except (OSError, EOFError, zlib.error) as error:
        raise BundleError(str(path), action=f"cannot be read: {error}") from None
    except (ValueError, RecursionError) as error:
        raise BundleError(
            f"{path}:{number}", action=f"this bundle cannot be used: {str(error) or type(error).__name__}"
        ) from None


def _lines(bundle: Bundle) -> Iterator[bytes]:
    base = _point_to_json(bundle.base)
    yield _line({"format": FORMAT, "version": VERSION, "run": bundle.header.to_json(), "base": base})
    for entry in bundle.entries:
        yield _line(entry_to_json(entry))
    yield _line({"kind": "end", "head": _point_to_json(bundle.head), "spent": bundle.spent.to_json()})


def _line(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def _refuse_to_replace(path: Path, header: RunHeader) -> None:
    if not path.exists():
        return
    try:
        with _opened(path) as file:
            found, _ = _first(_json(next(_bounded(file, MAX_BYTES), b"")))
    except (OSError, EOFError, zlib.error, ValueError, RecursionError):
        raise BundleError(str(path), action="exists already and is no bundle: give another path") from None
    if found != header:
        raise BundleError(str(path), action="exists already and is a bundle of another run: give another path")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would block
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is no regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            packed = file.read(len(_GZIP)) == _GZIP
            file.seek(0)
            if packed:
                with gzip.GzipFile(fileobj=file, mode="rb") as unpacked:
                    yield unpacked  # type: ignore[misc]
            else:
                yield file
    finally:
        os.close(descriptor)


def _bounded(file: IO[bytes], max_bytes: int) -> Iterator[bytes]:
    """Lines, as long as they and all of them are not too long: a small file may unpack to any size."""
    total = 0
    while line := file.readline(MAX_LINE + 1):
        total += len(line)
        if len(line) > MAX_LINE or total > max_bytes:
            raise ValueError(f"it is too large: allowed are lines of {MAX_LINE} bytes and {max_bytes} bytes in all")
        yield line


def _json(line: bytes) -> dict[str, Any]:
    if not line.endswith(b"\n"):
        raise ValueError("a line without an end: it was not copied whole, or it is no bundle")
    try:
        document = json.loads(line, parse_constant=_infinite)
    except UnicodeDecodeError:
        raise ValueError("no text") from None
    if not isinstance(document, dict):
        raise ValueError("no JSON object")
    return document


def _infinite(name: str) -> float:
    if name == "NaN":
        raise ValueError("NaN is no figure")
    return float(name)


def _first(document: dict[str, Any]) -> tuple[RunHeader, Point]:
    if document.get("format") != FORMAT:
        raise ValueError("no bundle of triton-evolve")
    if document.get("version") != VERSION:
        raise ValueError(f"of another version of the format than {VERSION}: use the same triton-evolve on both machines")
    header = record_from_json(RunHeader, document.get("run"))
    _check_texts(header)
    base = _point(document.get("base"))
    if base.entries == 0 and base != Chain(header).point:
        raise ValueError("its hash at the beginning is not that of its run")
    return header, base


def _check_texts(header: RunHeader) -> None:
    for name, text in {"config": header.config, "tasks": header.tasks, "versions": header.versions}.items():
        if not isinstance(json.loads(text), dict):
            raise ValueError(f"{name} of the run is no JSON object")
    if not all(isinstance(text, str) for text in json.loads(header.tasks).values()):
        raise ValueError("tasks of the run are no texts")


def _end(document: dict[str, Any], reached: Point) -> Spent:
    if _point(document.get("head")) != reached:
        raise ValueError("its entries are not those that were written: the hash at its end is another one")
    spent = record_from_json(Spent, document.get("spent"))
    if any(value < 0 for value in spent.to_json().values()):
        raise ValueError("what was spent is negative")
    return spent


def _point_to_json(point: Point) -> dict[str, Any]:
    return {"entries": point.entries, "head": point.head}


def _point(document: object) -> Point:
    if not isinstance(document, dict) or set(document) != {"entries", "head"}:
        raise ValueError("a place in a journal has entries and head")
    head = document["head"]
    if not isinstance(head, str) or len(head) != _HASH_DIGITS or set(head) - set("0123456789abcdef"):
        raise ValueError(f"head must be a hash of {_HASH_DIGITS} hex digits")
    return Point(whole(document, "entries"), head)


def points_of(header: RunHeader, entries: Iterable[Entry]) -> Iterator[Point]:
    """The place before the first entry of a run, and after each."""
    chain = Chain(header)
    yield chain.point
    for entry in entries:
        yield chain.add(entry)
