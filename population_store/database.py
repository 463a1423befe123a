"""What the SQL store asks of a kind of database: connections that read, one that writes, an owner, and errors that a user understands."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager

from sqlalchemy import Engine


class Database(ABC):
    """A database that holds one store, open for reading and, where this process is to own it, for writing.

    Attributes:
        name: What messages call the store; holds no secret.
        reader: Its transactions cannot write, and see what was committed when they began.
        writer: Its transactions are the owner's; None for a reader.
    """

    name: str
    reader: Engine
    writer: Engine | None

    @property
    @abstractmethod
    def owned(self) -> bool:
        """Whether this process may write: never a reader's, nor a forked child's."""

    def check_place(self) -> None:  # noqa: B027  (a server's database cannot be taken away under its clients)
        """Refuses to write what nobody could find again.

        Raises:
            StoreError: The store is not where it was any more.
        """

    @abstractmethod
    def clear_errors(self) -> AbstractContextManager[None]:
        """Turns errors of the database into the store's own; every other exception passes unchanged."""

    @abstractmethod
    def close(self) -> None:
        """Closes the connections and gives up ownership."""
