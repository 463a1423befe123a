"""Which schema a store has, and bringing an older one up to date."""

from __future__ import annotations

import threading

from sqlalchemy import Connection, inspect, text

from evo.errors import StoreVersionError
from population_store.schema import REVISIONS, VERSION_TABLE

_MIGRATING = threading.Lock()
"""Alembic keeps what it is at in variables of its modules: two threads at a time would migrate each other's stores."""


def is_current(connection: Connection, name: str) -> bool:
    """Whether the store has the newest schema; False for an older one.

    Args:
        connection: To the store.
        name: What messages call it.

    Raises:
        StoreVersionError: A newer schema, or no population store at all.
    """
    tables = inspect(connection).get_table_names()
    if VERSION_TABLE not in tables or "run" not in tables:
        raise not_a_store(name)
    found = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalars().all()
    if len(found) == 1 and found[0] in REVISIONS:
        return bool(found[0] == REVISIONS[-1])
    given = ", ".join(found) or "none"
    raise StoreVersionError(
        f"{name}: schema revision", given=given, allowed=REVISIONS, action="install a newer version of triton-evolve"
    )


def migrate(connection: Connection) -> None:
    """Brings the schema of an empty or older store to the newest revision, in the caller's transaction."""
    # Here, so that opening an up-to-date store does not pay for importing alembic.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "population_store:migrations")
    config.attributes["connection"] = connection
    with _MIGRATING:
        command.upgrade(config, "head")


def not_a_store(name: str) -> StoreVersionError:
    """The error for a file or database that something else wrote."""
    return StoreVersionError(f"{name}: not a population store", action="name a store made by `triton-evolve run`")
