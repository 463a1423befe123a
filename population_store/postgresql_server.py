"""PostgreSQL's part: which database and schema a URL names, texts that it refuses, and what its errors mean to a user."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from evo.errors import StoreError, StoreFullError, StoreInUseError

FORM = "postgresql+psycopg://user@host:5432/database?schema=name"
_SCHEMA = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")
_DRIVERS = ("postgresql", "postgresql+psycopg")

_FULL_DISK = "53100"
_NOT_ALLOWED = ("28", "42501")
_DAMAGED = ("XX001", "XX002")
_WAITING = ("55P03", "57014")


@dataclass(frozen=True)
class Place:
    """Where a store is.

    Attributes:
        url: Of the database.
        schema: That holds the store, and nothing else.
        text: The URL as it was given, which is also what messages call it.
    """

    url: URL
    schema: str
    text: str

    def beside(self) -> Place:
        """Another place in that database, for a store that is not whole yet. It is cleared first, so nobody may have a store there."""
        schema = f"draft_{hashlib.sha256(self.schema.encode()).hexdigest()[:8]}_{self.schema}"[:63]
        return Place(self.url, schema, self.url.update_query_dict({"schema": schema}).render_as_string())

    @property
    def key(self) -> int:
        """Of the advisory lock of its owner: a signed 64-bit number."""
        digest = hashlib.sha256(f"triton-evolve population store {self.schema}".encode()).digest()
        return int.from_bytes(digest[:8], "big", signed=True)


def place_of(url: str) -> Place:
    """The place that a URL names.

    Raises:
        StoreError: No URL of that kind, or one that holds a password, which would be recorded and shown.
    """
    try:
        given = make_url(url)
    except (ArgumentError, ValueError):
        raise StoreError("population store", given=url, allowed=FORM) from None
    if given.password is not None or "password" in given.query:
        shown = given.difference_update_query(["password"]).render_as_string(hide_password=True)
        action = "its password would be kept in the store and shown in logs: put it into ~/.pgpass or PGPASSWORD"
        raise StoreError("population store", given=shown, action=action)
    schema = given.query.get("schema", "public")
    if given.drivername.lower() not in _DRIVERS or not given.database:
        raise StoreError("population store", given=url, allowed=FORM)
    if not isinstance(schema, str) or not _SCHEMA.fullmatch(schema):
        raise StoreError(f"{url}: schema", given=schema, allowed="a name of small letters, digits and _, at most 63")
    plain = given.set(drivername="postgresql+psycopg").difference_update_query(["schema"])
    return Place(plain, schema, url)


@contextmanager
def clear_errors(name: str) -> Iterator[None]:
    """Turns errors of the server and the connection into the store's own; every other exception passes unchanged."""
    try:
        yield
    except DBAPIError as error:
        raise _meaning(name, error, error.orig, lost=error.connection_invalidated) from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:  # what we wrote is neither
        raise _damaged(name, error) from error
    except Exception as error:
        if _is_of_the_driver(error):  # a `Lookup` asks it directly
            raise _meaning(name, error, error, lost=False) from error
        raise


def _is_of_the_driver(error: Exception) -> bool:
    """Without importing it: where it is not installed, nothing is of it."""
    return any(cls.__module__ == "psycopg" and cls.__name__ == "Error" for cls in type(error).__mro__)


def _meaning(name: str, error: Exception, cause: BaseException | None, *, lost: bool) -> Exception:
    state = getattr(cause, "sqlstate", None) or ""
    said = " ".join(str(cause).split())
    if state == _FULL_DISK:
        action = "free some space on the server, then go on by `triton-evolve resume`; everything recorded before is kept"
        return StoreFullError(f"{name}: the server's disk is full", action=action)
    if state.startswith(_NOT_ALLOWED):
        return StoreError(f"{name}: {said}", action="see the user, ~/.pgpass and what the user may do in that database")
    if state in _WAITING:
        return StoreInUseError(f"{name}: another program holds a lock on it", action="close it, then try again")
    if state in _DAMAGED:
        return _damaged(name, error)
    if not state or lost or state.startswith(("08", "57P")):
        action = (
            "see that the server runs and can be reached, that the database exists, and what ~/.pgpass says; what was recorded is "
            "safe: `triton-evolve resume` goes on"
        )
        return StoreError(f"{name}: no connection to the server: {said}"[:600], action=action)
    return error


def _damaged(name: str, error: Exception) -> StoreError:
    return StoreError(f"{name}: the database is damaged ({str(error)[:200]})", action="restore it from a copy")
