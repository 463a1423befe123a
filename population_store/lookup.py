"""One query asked very often, without what SQLAlchemy does for each: a statement compiled once, on a connection kept open."""

from __future__ import annotations

import threading
from typing import Any

from sqlalchemy import Engine, Select


class Lookup:
    """Sees what was committed when it is asked: each answer is a transaction of its own.

    Args:
        engine: Of readers.
        query: Its values are bound parameters with names.
    """

    def __init__(self, engine: Engine, query: Select[Any]) -> None:
        self._engine = engine
        self._compiled = query.compile(engine)
        self._lock = threading.Lock()
        self._connection: Any = None

    def rows(self, **values: Any) -> list[tuple[Any, ...]]:
        """All rows for these values of the parameters, as the database driver gives them."""
        compiled = self._compiled
        filled: Any = compiled.construct_params(values)
        if compiled.positiontup is not None:
            filled = tuple(filled[name] for name in compiled.positiontup)
        with self._lock:
            if self._connection is None:
                self._connection = self._engine.raw_connection()
            driver = self._connection.driver_connection
            try:
                found: list[tuple[Any, ...]] = driver.execute(compiled.string, filled).fetchall()
                driver.rollback()
            except BaseException:
                self._connection.invalidate()  # whatever ended it, the next question gets another one
                self._connection = None
                raise
            return found

    def close(self) -> None:
        """Gives the connection back."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
