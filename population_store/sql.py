"""The population store in a SQL database: `SqlStore`, by default a single SQLite file."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from sqlalchemy import Connection, Engine, insert

from evo.errors import StoreError, StoreVersionError
from evo.records import Event, Spent, Variant
from population_store import reading, rows, schema
from population_store.appending import append
from population_store.base import Entry, PopulationStore, Ranked, RunHeader
from population_store.ownership import FileOwnership
from population_store.sqlite_file import clear_errors, path_of, reading_engine, writing_engine
from population_store.versioning import is_current, migrate

_JOURNAL_CHUNK = 500


class SqlStore(PopulationStore):
    """A store in one SQLite file, beside it SQLite's own ``-wal`` and ``-shm`` and, while it is owned, ``.lock``.

    Open it with `open`. One connection at a time writes; reads have connections of their own that cannot write, so that they see
    only what is committed. An owner that was killed leaves nothing to clean up.
    """

    def __init__(self, path: Path, ownership: FileOwnership | None) -> None:
        self._path = path
        self._ownership = ownership
        self._writing = threading.Lock()
        self._reader: Engine | None = reading_engine(path)
        self._writer = None if ownership is None else writing_engine(path)
        try:
            with self._read() as connection:
                current = is_current(connection, path)
            if not current:
                self._migrate()
            elif ownership is not None:
                with self._write():
                    pass  # so that a store one may not write to is refused now, not at the first record
            with self._read() as connection:
                self._header = reading.read_header(connection)
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, url: str, *, write: bool = False, header: RunHeader | None = None) -> Self:
        """See `PopulationStore.open`; a `header` implies `write`, and missing directories above a new store are made."""
        path = path_of(url)
        with clear_errors(path):
            if path.is_dir():
                raise StoreError(f"{path}: a directory", allowed="a file", action="add a file name, e.g. run.sqlite")
            if header is None and not path.exists():
                raise StoreError(f"{path}: no such population store", action="start one with `triton-evolve run CONFIG`")
            if header is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            if header is None and not write:
                return cls(path, None)
            ownership = FileOwnership(path)
            try:
                if header is not None:
                    _create(path, header)
                return cls(path, ownership)
            except BaseException:
                ownership.release()
                raise

    @property
    def header(self) -> RunHeader:
        """The run this store belongs to."""
        return self._header

    @property
    def spent(self) -> Spent:
        """As of the last commit."""
        with self._read() as connection:
            return reading.read_spent(connection)

    def record(self, entries: Sequence[Entry], spent: Spent) -> tuple[bool, ...]:
        """See `PopulationStore.record`."""
        with self._write() as connection:
            return append(connection, entries, spent)

    def journal(self, after: int = 0) -> Iterator[tuple[int, Entry]]:
        """See `PopulationStore.journal`. Each chunk is a transaction of its own, so a slow consumer holds nothing up."""
        while True:
            with self._read() as connection:
                chunk = reading.read_chunk(connection, after, _JOURNAL_CHUNK)
            if not chunk:
                return
            yield from chunk
            after = chunk[-1][0]

    def variant(self, variant_id: str) -> Variant | None:
        """The variant of that id."""
        with self._read() as connection:
            return reading.read_variant(connection, variant_id)

    def ranking(self, task: str, limit: int | None = None) -> tuple[Ranked, ...]:
        """See `PopulationStore.ranking`."""
        with self._read() as connection:
            return reading.read_ranking(connection, task, limit)

    def counts(self) -> dict[str, dict[str, int]]:
        """See `PopulationStore.counts`."""
        with self._read() as connection:
            return reading.read_counts(connection)

    def events(self) -> tuple[Event, ...]:
        """All events, in order."""
        with self._read() as connection:
            return reading.read_events(connection)

    def close(self) -> None:
        """Gives up ownership. Idempotent; a commit in progress is finished first."""
        with self._writing:
            reader, self._reader = self._reader, None
            writer, self._writer = self._writer, None
            # The writer last: closing the last connection folds the log back into the file, which a reader cannot.
            for engine in (reader, writer):
                if engine is not None:
                    engine.dispose(close=self._ownership is None or self._ownership.held)
            if self._ownership is not None:
                self._ownership.release()

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        reader = self._reader
        if reader is None:
            raise StoreError(f"{self._path}: closed", action="open it again")
        with clear_errors(self._path), reader.begin() as connection:
            yield connection

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        with self._writing:
            if self._writer is None or self._ownership is None or not self._ownership.held:
                reason = f"{self._path}: process {os.getpid()} does not own it"
                raise StoreError(reason, action="open it with write=True in the process that records")
            with clear_errors(self._path), self._writer.begin() as connection:
                yield connection

    def _migrate(self) -> None:
        if self._ownership is None:
            action = "open it for writing once, e.g. with `triton-evolve resume`, to migrate it"
            raise StoreVersionError(f"{self._path}: an older schema", action=action)
        with self._write() as connection:
            migrate(connection)


def _create(path: Path, header: RunHeader) -> None:
    """Makes a store under another name and renames it: whenever its maker dies, there is a whole store or none."""
    if path.exists():
        raise StoreError(f"{path}: exists already", action="go on with it by `triton-evolve resume`, or choose another path")
    draft = Path(f"{path}.new")
    draft.unlink(missing_ok=True)  # of a maker that was killed; we own the store now
    engine = writing_engine(draft, journal_mode="MEMORY")  # no files beside a draft
    try:
        with engine.begin() as connection:
            migrate(connection)
            connection.execute(insert(schema.run), rows.header_row(header))
            connection.execute(insert(schema.spent), rows.spent_row(Spent(), 0))
    except BaseException:
        engine.dispose()
        draft.unlink(missing_ok=True)
        raise
    engine.dispose()
    draft.rename(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
