"""SQLite's part: where the file is, how connections to it behave, and what its errors mean to a user."""

from __future__ import annotations

import errno
import json
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Connection, Engine, QueuePool, create_engine, event
from sqlalchemy.exc import DBAPIError

from evo.errors import StoreError, StoreFullError, StoreInUseError
from population_store.versioning import not_a_store

BUSY_TIMEOUT_S = 10.0
"""Only recovery after a crash, or somebody's own SQL shell, can hold a lock that one of us waits for."""

_FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+]*)://(?P<rest>.*)", re.IGNORECASE | re.DOTALL)


def path_of(url: str) -> Path:
    """The file of a plain path or of a ``sqlite:///`` URL, with symbolic links resolved: one store, one lock.

    Raises:
        StoreError: Another kind of URL, or one without a file.
    """
    match = _URL.fullmatch(url)
    name = url
    if match is not None:
        known = match["scheme"].lower() in ("sqlite", "sqlite+pysqlite") and match["rest"].startswith("/") and "?" not in url
        name = match["rest"][1:] if known else ""
    if not name:
        raise StoreError("population store", given=url, allowed=["path/to/file.sqlite", "sqlite:///path/to/file.sqlite"])
    return Path(os.path.realpath(Path(name).expanduser()))


def writing_engine(path: Path, *, journal_mode: str = "WAL", busy_timeout_s: float = BUSY_TIMEOUT_S) -> Engine:
    """An engine whose transactions take the write lock at once.

    Write-ahead logging, because readers then never wait for the writer nor it for them. ``synchronous=FULL``: for `kill -9` alone
    even OFF would do, since what a commit wrote is already the kernel's; FULL adds one fsync per commit, so that a power cut or a
    crash of the machine loses nothing either. Commits are grouped and an evaluation costs far more than an fsync.
    """

    def prepare(connection: sqlite3.Connection) -> None:
        (granted,) = connection.execute(f"PRAGMA journal_mode={journal_mode}").fetchone()
        if granted.upper() != journal_mode:
            raise StoreError(f"{path}: its file system cannot share memory between processes", action="use a local disk")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")

    return _engine(f"file:{quote(str(path))}?mode=rwc", "BEGIN IMMEDIATE", busy_timeout_s, prepare)


def reading_engine(path: Path) -> Engine:
    """An engine that cannot write, and works in a read-only directory too."""
    mode = "mode=ro"
    if not os.access(path.parent, os.W_OK) and not Path(f"{path}-wal").exists():
        mode += "&immutable=1"  # SQLite would want to create its shared-memory file; nobody can be writing here
    return _engine(f"file:{quote(str(path))}?{mode}", "BEGIN", BUSY_TIMEOUT_S, lambda connection: None)


def _engine(uri: str, begin: str, busy_timeout_s: float, prepare: Callable[[sqlite3.Connection], None]) -> Engine:
    def connect() -> sqlite3.Connection:
        # Transactions are begun below; the pool hands a connection to one thread at a time.
        connection = sqlite3.connect(uri, uri=True, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False)
        try:
            prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    engine = create_engine("sqlite://", creator=connect, poolclass=QueuePool)

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


@contextmanager
def clear_errors(path: Path) -> Iterator[None]:
    """Turns errors of the disk and of SQLite into the store's own; every other exception passes unchanged."""
    try:
        yield
    except DBAPIError as error:
        if isinstance(error.orig, sqlite3.Error):
            raise _meaning(path, error.orig) from error
        raise
    except sqlite3.Error as error:
        raise _meaning(path, error) from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:  # what we wrote is neither
        raise _damaged(path, error) from error
    except OSError as error:
        if error.errno in _FULL_DISK:
            raise _full(path) from error
        raise StoreError(f"{path}: {error.strerror or error}", action="choose a store in a directory you may write to") from error


def _meaning(path: Path, error: sqlite3.Error) -> Exception:
    extended = getattr(error, "sqlite_errorcode", None)  # absent where Python, not SQLite, refused
    if extended is None:
        return _damaged(path, error) if "decode to UTF-8" in str(error) else error
    code = extended & 0xFF
    # A full disk shows as SHMSIZE where SQLite cannot extend its shared-memory file.
    if code == sqlite3.SQLITE_FULL or extended == sqlite3.SQLITE_IOERR_SHMSIZE:
        return _full(path)
    if code == sqlite3.SQLITE_NOTADB:
        return not_a_store(str(path))
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreInUseError(f"{path}: another program holds a lock on it", action="close it, then try again")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return StoreError(f"{path}: {error}", action="choose a store in a directory you may write to")
    if code == sqlite3.SQLITE_CORRUPT:
        return _damaged(path, error)
    if code == sqlite3.SQLITE_IOERR:
        return StoreError(f"{path}: {error}", action="check the disk, its quota and its free space")
    return error


def _damaged(path: Path, error: Exception) -> StoreError:
    return StoreError(f"{path}: the file is damaged ({str(error)[:200]})", action="restore it from a copy")


def _full(path: Path) -> StoreFullError:
    action = "free some space, then go on (`triton-evolve resume`, or the same `tune`); everything recorded before is kept"
    return StoreFullError(f"{path}: the disk is full", action=action)
