"""The population store in a SQL database, whichever: `SqlStore`, which each kind of database subclasses."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import Connection, delete, insert, select

from evo.errors import StoreError, StoreVersionError
from evo.records import Event, Spent, Variant
from population_store import reading, rows, schema
from population_store.appending import append
from population_store.base import Entry, Kept, PopulationStore, Ranked, RunHeader
from population_store.database import Database
from population_store.lookup import Lookup
from population_store.versioning import is_current, migrate

_JOURNAL_CHUNK = 500


class SqlStore(PopulationStore):
    """A store over a `Database`, which it closes.

    One connection at a time writes; reads have connections of their own that cannot write, so that they see only what is committed.
    An owner that was killed leaves nothing to clean up.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._closed = False
        self._writing = threading.Lock()
        self._is_known = Lookup(database.reader, reading.known_query())
        self._plan_owner = Lookup(database.reader, reading.plan_owner_query())
        try:
            with self._read() as connection:
                current = is_current(connection, database.name)
            if not current:
                self._migrate()
            elif database.writer is not None:
                with self._write():
                    pass  # so that a store one may not write to is refused now, not at the first record
            with self._read() as connection:
                self._header = reading.read_header(connection)
        except BaseException:
            self.close()
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

    def modules(self, task: str) -> Iterator[Variant]:
        """See `PopulationStore.modules`. Each chunk is a transaction of its own."""
        after = 0
        while True:
            with self._read() as connection:
                chunk = reading.read_modules(connection, task, after, _JOURNAL_CHUNK)
            if not chunk:
                return
            yield from (variant for _, variant in chunk)
            after = chunk[-1][0]

    def is_known(self, variant_id: str, up_to: int) -> bool:
        """See `PopulationStore.is_known`."""
        with self._open():
            return bool(self._is_known.rows(variant_id=variant_id, up_to=up_to))

    def plan_owner(self, task: str, device: str, plan_hash: str, up_to: int) -> str | None:
        """See `PopulationStore.plan_owner`."""
        with self._open():
            rows = self._plan_owner.rows(plan_hash=plan_hash, up_to=up_to)
        owners = (variant_id for of_task, of_device, variant_id in rows if of_task == task and device in ("", of_device))
        return next(owners, None)

    def keep(self, name: str, key: str, text: str) -> int:
        """See `PopulationStore.keep`."""
        table = schema.snapshots
        with self._write() as connection:
            seq: int = connection.execute(select(schema.spent.c.last_seq)).scalar_one()
            connection.execute(delete(table).where(table.c.name == name))
            connection.execute(insert(table), {"name": name, "seq": seq, "key": key, "text": text})
            return seq

    def kept(self, name: str) -> Kept | None:
        """See `PopulationStore.kept`."""
        with self._read() as connection:
            return reading.read_kept(connection, name)

    def ranking(self, task: str, limit: int | None = None) -> tuple[Ranked, ...]:
        """See `PopulationStore.ranking`."""
        with self._read() as connection:
            return reading.read_ranking(connection, task, limit)

    def verified(self, task: str) -> tuple[Ranked, ...]:
        """See `PopulationStore.verified`."""
        with self._read() as connection:
            return reading.read_verified(connection, task)

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
            if not self._closed:
                self._closed = True
                for lookup in (self._is_known, self._plan_owner):
                    lookup.close()
                self._database.close()

    @contextmanager
    def _open(self) -> Iterator[None]:
        if self._closed:
            raise StoreError(f"{self._database.name}: closed", action="open it again")
        with self._database.clear_errors():
            yield

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        with self._open(), self._database.reader.begin() as connection:
            yield connection

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        with self._writing:
            writer = self._database.writer
            if self._closed or writer is None or not self._database.owned:
                reason = f"{self._database.name}: process {os.getpid()} does not own it"
                raise StoreError(reason, action="open it with write=True in the process that records")
            self._database.check_place()
            with self._database.clear_errors(), writer.begin() as connection:
                yield connection

    def _migrate(self) -> None:
        if self._database.writer is None:
            action = "open it for writing once, e.g. with `triton-evolve resume`, to migrate it"
            raise StoreVersionError(f"{self._database.name}: an older schema", action=action)
        with self._write() as connection:
            migrate(connection)


def create_tables(connection: Connection, header: RunHeader) -> None:
    """Makes an empty store of a run, in the caller's transaction."""
    migrate(connection)
    connection.execute(insert(schema.run), rows.header_row(header))
    connection.execute(insert(schema.spent), rows.spent_row(Spent(), 0))
