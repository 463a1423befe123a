"""`open_store`: the backend that a URL asks for. Everyone opens stores by it."""

from __future__ import annotations

import re
from importlib.metadata import entry_points

from evo.errors import StoreError, StoreMissingError, StoreVersionError
from population_store.base import PopulationStore, RunHeader

ENTRY_POINTS = "triton_evolve.stores"
"""Entry-point group of further backends: URL scheme → a `PopulationStore` class."""


FORMS = ("path/to/file.sqlite", "sqlite:///path/to/file.sqlite", "postgresql+psycopg://user@host/database")
"""URLs of the backends that are built in."""


def open_store(url: str, *, write: bool = False, header: RunHeader | None = None) -> PopulationStore:
    """Opens the store at a URL with the backend of its scheme; a plain path is a SQLite file.

    Args:
        url: ``path/to/file.sqlite``, ``sqlite:///path/to/file.sqlite``, ``postgresql+psycopg://user@host/database?schema=NAME``, or a URL
            of an installed backend.
        write: Take ownership, migrating an older schema.
        header: Create the store for this run (and own it); it must not exist yet. Without it the store must exist.

    Raises:
        StoreInUseError: Another process owns it.
        StoreVersionError: Its schema is newer, or it is no population store.
        StoreMissingError: There is none.
        StoreError: Already existing, not writable, or no backend for its scheme.
    """
    return backend_of(url).open(url, write=write, header=header)


def store_exists(url: str) -> bool:
    """Whether there is something at a URL that a new store may not take the place of.

    Raises:
        StoreError: It cannot be told: no such backend, or its server does not answer.
    """
    try:
        open_store(url).close()
    except StoreMissingError:
        return False
    except StoreVersionError:  # an older one, or no store at all
        return True
    return True


def check_url(url: str) -> None:
    """Refuses a URL that no store can have, or that holds a password, before it is shown, sent or recorded anywhere.

    Raises:
        StoreError: It is one.
    """
    backend_of(url).check_url(url)


def backend_of(url: str) -> type[PopulationStore]:
    """The class of the stores at such URLs.

    Raises:
        StoreError: There is none.
    """
    match = re.match(r"([a-z][a-z0-9]*)(\+[a-z0-9]+)?://", url, re.IGNORECASE)
    scheme = "sqlite" if match is None else match[1].lower()
    if scheme == "sqlite":
        from population_store.sqlite import SqliteStore

        return SqliteStore
    if scheme == "postgresql":
        from population_store.postgresql import PostgresqlStore

        return PostgresqlStore
    installed = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if scheme not in installed:
        allowed = [*FORMS, *(f"{name}://…" for name in sorted(installed))]
        raise StoreError("population store", given=url, allowed=allowed)
    backend: type[PopulationStore] = installed[scheme].load()
    return backend
