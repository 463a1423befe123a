"""The population store in a SQLite file, the default: `SqliteStore`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Self

from evo.errors import StoreError, StoreMissingError
from population_store.base import RunHeader
from population_store.database import Database
from population_store.ownership import FileOwnership
from population_store.sql import SqlStore, create_tables
from population_store.sqlite_file import clear_errors, path_of, reading_engine, writing_engine


class SqliteDatabase(Database):
    """One file, beside it SQLite's own ``-wal`` and ``-shm`` and, while it is owned, ``.lock``."""

    def __init__(self, path: Path, ownership: FileOwnership | None) -> None:
        self.name = str(path)
        self.reader = reading_engine(path)
        self.writer = None if ownership is None else writing_engine(path)
        self._path = path
        self._ownership = ownership
        self._file = _file_at(path)

    @property
    def owned(self) -> bool:
        """See `Database.owned`."""
        return self._ownership is not None and self._ownership.held

    def check_place(self) -> None:
        """See `Database.check_place`. SQLite itself would go on for days, in a file without a name."""
        if _file_at(self._path) != self._file:
            action = "what it recorded goes with that file: bring it back from where it is now, or start the run anew"
            raise StoreError(f"{self._path}: deleted, moved or replaced while a run wrote it", action=action)

    def clear_errors(self) -> AbstractContextManager[None]:
        """See `Database.clear_errors`."""
        return clear_errors(self._path)

    def close(self) -> None:
        """See `Database.close`."""
        # The writer last: closing the last connection folds the log back into the file, which a reader cannot.
        for engine in (self.reader, self.writer):
            if engine is not None:
                engine.dispose(close=self._ownership is None or self._ownership.held)
        if self._ownership is not None:
            self._ownership.release()


class SqliteStore(SqlStore):
    """A store in a file of its own; open it with `open`."""

    @classmethod
    def open(cls, url: str, *, write: bool = False, header: RunHeader | None = None) -> Self:
        """See `PopulationStore.open`; a `header` implies `write`, and missing directories above a new store are made."""
        path = path_of(url)
        with clear_errors(path):
            if path.is_dir():
                raise StoreError(f"{path}: a directory", allowed="a file", action="add a file name, e.g. run.sqlite")
            if header is None and not path.exists():
                raise StoreMissingError(f"{path}: no such population store", action="start one with `triton-evolve run CONFIG`")
            if header is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            if header is None and not write:
                return cls(SqliteDatabase(path, None))
            ownership = FileOwnership(path)
            try:
                if header is not None:
                    _create(path, header)
                return cls(SqliteDatabase(path, ownership))
            except BaseException:
                ownership.release()
                raise

    @classmethod
    @contextmanager
    def build(cls, url: str, header: RunHeader) -> Iterator[Self]:
        """See `PopulationStore.build`."""
        path = path_of(url)
        draft = _draft_of(path)
        with clear_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            ownership = FileOwnership(path)
            try:
                _refuse_existing(path)
                _clear(draft)  # of a process that was killed
                with cls.open(str(draft), header=header) as store:
                    yield store
                _publish(draft, path)
            except BaseException:
                _clear(draft)
                raise
            finally:
                ownership.release()

    @classmethod
    def check_url(cls, url: str) -> None:
        """See `PopulationStore.check_url`."""
        path_of(url)


def _file_at(path: Path) -> tuple[int, int] | None:
    """Which file has that name; None if none has."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _create(path: Path, header: RunHeader) -> None:
    """Makes a store under another name and renames it: whenever its maker dies, there is a whole store or none."""
    _refuse_existing(path)
    draft = _draft_of(path)
    _clear(draft)  # of a maker that was killed; we own the store now
    engine = writing_engine(draft, journal_mode="MEMORY")  # no files beside a draft
    try:
        with engine.begin() as connection:
            create_tables(connection, header)
    except BaseException:
        engine.dispose()
        _clear(draft)
        raise
    engine.dispose()
    _publish(draft, path)


def _draft_of(path: Path) -> Path:
    """Where a store is made before it is there. What a killed maker left is deleted, so nobody may have a store by such a name."""
    return path.with_name(f".{path.name}.triton-evolve-draft")


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise StoreError(f"{path}: exists already", action="go on with it by `triton-evolve resume`, or choose another path")


def _clear(path: Path) -> None:
    """Deletes a file with what SQLite keeps beside it."""
    for each in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        each.unlink(missing_ok=True)


def _publish(draft: Path, path: Path) -> None:
    # SQLite would add the log of a killed run to whatever has the name of that run's file, which somebody deleted alone.
    _clear(path)
    draft.rename(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
