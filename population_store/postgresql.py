"""The population store in a PostgreSQL database, for clusters whose head has no lasting disk: `PostgresqlStore`."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Self

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.schema import CreateSchema, DropSchema

from evo.errors import StoreError, StoreInUseError, StoreMissingError
from population_store.base import RunHeader
from population_store.database import Database
from population_store.ownership import DYING_S, is_dying
from population_store.postgresql_server import Place, clear_errors, place_of
from population_store.sql import SqlStore, create_tables

UNKNOWN_S = 1.0
"""How long the server may take to see that the process which owned the store is dead, where that may be a living one."""

_SETTINGS = {
    "synchronous_commit": "on",  # what was recorded survives a crash of the server
    # The server gives up a session, and the lock it holds, half a minute after its host lost power or network.
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "4",
    "tcp_user_timeout": "30s",  # nothing is kept alive while something sent has not arrived: that is sent again for a quarter of an hour
}
_KEEP_ALIVE = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
    "connect_timeout": 10,
}
"""The same for our end of a connection; seconds, but milliseconds for `tcp_user_timeout`."""

_OWNER = """
SELECT activity.application_name, activity.client_addr, activity.backend_start
FROM pg_locks AS locks JOIN pg_stat_activity AS activity USING (pid)
WHERE locks.locktype = 'advisory' AND locks.granted AND locks.objsubid = 1
  AND locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND (locks.classid::bigint << 32 | locks.objid::bigint) = :key
"""


class PostgresqlDatabase(Database):
    """One schema of a database on a server.

    The owner is the session of the writing connection: it holds an advisory lock, which the server gives back when that session
    ends, however it ends. A session that was lost is not begun again, because another owner may have written meanwhile.
    """

    def __init__(self, place: Place, *, write: bool) -> None:
        self.name = place.text
        self._place = place
        self._pid = os.getpid()
        self.reader = self._engine({"default_transaction_read_only": "on"}, isolation_level="REPEATABLE READ")
        self.writer = self._engine(_SETTINGS, pool_size=1, max_overflow=0) if write else None
        if self.writer is not None:
            self._own(self.writer)

    @property
    def owned(self) -> bool:
        """See `Database.owned`."""
        return self.writer is not None and self._pid == os.getpid()

    def clear_errors(self) -> AbstractContextManager[None]:
        """See `Database.clear_errors`."""
        return clear_errors(self.name)

    def close(self) -> None:
        """See `Database.close`."""
        for engine in (self.reader, self.writer):
            if engine is not None:
                engine.dispose(close=self._pid == os.getpid())

    def _engine(self, settings: dict[str, str], **options: Any) -> Engine:
        place = self._place
        given = " ".join(f"-c {name}={value}" for name, value in {"search_path": place.schema, **settings}.items())
        arguments = {"options": given, "application_name": _introduction(os.getpid()), **_KEEP_ALIVE}
        try:
            return create_engine(place.url, connect_args=arguments, **options)
        except ModuleNotFoundError:
            action = "install the driver: pip install 'triton-evolve[postgresql]'"
            raise StoreError(f"{self.name}: stores in PostgreSQL need psycopg", action=action) from None

    def _own(self, writer: Engine) -> None:
        """Takes the lock with the engine's one connection."""
        try:
            with self.clear_errors(), writer.connect() as connection:
                began = time.monotonic()
                while not _lock(connection, self._place.key):
                    owner = _owner(connection, self._place.key)
                    if time.monotonic() > began + (DYING_S if _is_dying(owner) else UNKNOWN_S):
                        action = "wait for it or stop it; `triton-evolve status` reads the store meanwhile"
                        raise StoreInUseError(f"{self.name}: in use by {owner}", action=action)
                    time.sleep(0.05)
        except BaseException:
            self.close()
            raise

        @event.listens_for(writer, "connect")
        def _refuse(*given: object) -> None:
            action = "the server or the network ended it; go on by `triton-evolve resume`"
            raise StoreError(f"{self.name}: the connection that owned it was lost", action=action)


class PostgresqlStore(SqlStore):
    """A store in a schema of its own; open it with `open`.

    Readers may be on any host. The password comes from ``~/.pgpass`` or ``PGPASSWORD``, never from the URL, which is recorded.
    """

    @classmethod
    def open(cls, url: str, *, write: bool = False, header: RunHeader | None = None) -> Self:
        """See `PopulationStore.open`; a `header` implies `write`, and makes the schema where it is missing."""
        place = place_of(url)
        database = PostgresqlDatabase(place, write=write or header is not None)
        try:
            with database.clear_errors():
                with database.reader.begin() as connection:
                    empty = not inspect(connection).get_table_names()
                if header is None and empty:
                    raise StoreMissingError(
                        f"{place.text}: no such population store", action="start one with `triton-evolve run CONFIG`"
                    )
                if header is not None:
                    _create(database, place, header)
        except BaseException:
            database.close()
            raise
        return cls(database)

    @classmethod
    @contextmanager
    def build(cls, url: str, header: RunHeader) -> Iterator[Self]:
        """See `PopulationStore.build`."""
        place = place_of(url)
        draft = place.beside()
        database = PostgresqlDatabase(place, write=True)
        try:
            assert database.writer is not None
            with database.clear_errors():
                with database.writer.begin() as connection:
                    _refuse_existing(connection, place)
                    connection.execute(DropSchema(draft.schema, cascade=True, if_exists=True))  # of a process that was killed
                with cls.open(draft.text, header=header) as store:
                    yield store
                with database.writer.begin() as connection:
                    connection.execute(DropSchema(place.schema, if_exists=True))  # it is empty
                    connection.execute(text(f"ALTER SCHEMA {draft.schema} RENAME TO {place.schema}"))
        finally:
            database.close()

    @classmethod
    def check_url(cls, url: str) -> None:
        """See `PopulationStore.check_url`."""
        place_of(url)


def _refuse_existing(connection: Connection, place: Place) -> None:
    if inspect(connection).get_table_names():
        raise StoreError(
            f"{place.text}: exists already", action="go on with it by `triton-evolve resume`, or choose another schema"
        )


def _create(database: PostgresqlDatabase, place: Place, header: RunHeader) -> None:
    """Makes a store in one transaction: whenever its maker dies, there is a whole store or none."""
    assert database.writer is not None
    with database.writer.begin() as connection:
        _refuse_existing(connection, place)
        if not inspect(connection).has_schema(place.schema):
            connection.execute(CreateSchema(place.schema))
        create_tables(connection, header)


def _lock(connection: Connection, key: int) -> bool:
    taken = connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": key}).scalar_one()
    connection.commit()
    return bool(taken)


def _owner(connection: Connection, key: int) -> str:
    row = connection.execute(text(_OWNER), {"key": key}).first()
    if row is None or not row.application_name:  # it is just gone, or of another user, whose sessions are not shown
        return "another session"
    return f"{row.application_name} since {row.backend_start.isoformat(timespec='seconds')}"


def _introduction(pid: int) -> str:
    return f"process {pid} on {socket.gethostname()}"[:63]  # PostgreSQL keeps no more


def _is_dying(owner: str) -> bool:
    """Whether it is one of this host's processes that was killed, and a busy server has not seen so far that its session has ended."""
    found = re.match(r"process (\d+) on ", owner)
    return found is not None and owner.startswith(f"{_introduction(int(found[1]))} since ") and is_dying(int(found[1]))
