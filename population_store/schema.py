"""The tables of a population store (SQLAlchemy Core, nothing that PostgreSQL lacks) and the revisions of their schema.

Every journal entry is one row of `requests`, `outcomes`, `evaluations`, `tried` or `events` and owns one number of a common sequence,
so that merging the five tables by `seq` gives the order of commits back. What status and ranking ask for is kept beside the
journal and changed in the same transaction: `requests.state` and `standings`.
"""

from __future__ import annotations

import json
import re
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
)

REVISIONS = ("0001", "0002", "0003", "0004")
"""Schema revisions, oldest first; the last one is what this version writes. One file each in `migrations/versions`."""

VERSION_TABLE = "population_store_version"
"""Where alembic keeps the revision. Not its default name, which Optuna's storages use too."""

BigInt = BigInteger().with_variant(Integer, "sqlite")
"""64 bits everywhere; SQLite makes a primary key the row's own address only if its type is called INTEGER."""


class JsonText(TypeDecorator[Any]):
    """JSON in a text column, ASCII only.

    Text of language models and kernels may hold lone surrogates, which no database takes as text, and NUL characters, which
    PostgreSQL refuses; numbers may be infinite, which JSON types refuse. Python's escapes bring all of them back unchanged.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str:
        """The JSON text of a value; None is the JSON null, so such a column is never NULL."""
        return json.dumps(value, separators=(",", ":"))

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        """The value of a JSON text; NULL, which an outer join makes, is None."""
        return None if value is None else json.loads(value)


class WithoutNul(TypeDecorator[str]):
    """Text of PostgreSQL, which refuses NUL characters: those are escaped, and come back unchanged."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """The text with escapes."""
        return None if value is None else value.replace("\\", "\\\\").replace("\0", "\\0")

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        """Inverse of `process_bind_param`."""
        return None if value is None else re.sub(r"\\([\\0])", lambda found: "\0" if found[1] == "0" else "\\", value)


AnyText = Text().with_variant(WithoutNul(), "postgresql")
"""Names that anybody may have made up."""

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _sequence() -> Column[int]:
    return Column("seq", BigInt, primary_key=True, autoincrement=False)


run = Table(
    "run",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("name", AnyText, nullable=False),
    Column("seed", JsonText, nullable=False),  # any size of integer
    Column("config", AnyText, nullable=False),
    Column("tasks", AnyText, nullable=False),
    Column("versions", AnyText, nullable=False),
    Column("created", AnyText, nullable=False),
)
"""One row: the run's header."""

spent = Table(
    "spent",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("last_seq", BigInt, nullable=False),
    Column("evaluations", BigInt, nullable=False),
    Column("proposals", BigInt, nullable=False),
    Column("wall_s", Double, nullable=False),
    Column("gpu_s", Double, nullable=False),
    Column("dollars", Double, nullable=False),
    Column("tokens", BigInt, nullable=False),
    Column("held_dollars", Double, nullable=False),
    Column("held_tokens", BigInt, nullable=False),
)
"""One row, rewritten by every commit: the used budget and the last sequence number given out."""

requests = Table(
    "requests",
    metadata,
    _sequence(),
    Column("number", BigInt, nullable=False),
    Column("task", AnyText, nullable=False),
    Column("island", Integer, nullable=False),
    Column("lineage", AnyText, nullable=False),
    Column("operator", AnyText, nullable=False),
    Column("parents", JsonText, nullable=False),
    Column("model", AnyText, nullable=False),  # empty: the operator asks none
    Column("state", String(32), nullable=False),  # pending, no_proposal or the status of the search evaluation
    UniqueConstraint("number"),
    Index(None, "task", "state"),
)

variants = Table(
    "variants",
    metadata,
    Column("variant_id", String(24), primary_key=True),
    Column("task", AnyText, nullable=False),
    Column("source", JsonText, nullable=False),
)
"""Each module once, whoever proposed it and however often."""

outcomes = Table(
    "outcomes",
    metadata,
    _sequence(),
    Column("number", BigInt, ForeignKey(requests.c.number), nullable=False),
    Column("variant_id", String(24), ForeignKey(variants.c.variant_id)),  # NULL: no proposal
    Column("failed", Boolean),  # NULL: a proposal
    Column("text", JsonText, nullable=False),  # strategy or reason
    Column("source", JsonText, nullable=False),  # JSON null: the variant's
    UniqueConstraint("number"),
    Index(None, "variant_id"),
)

exchanges = Table(
    "exchanges",
    metadata,
    Column("seq", BigInt, ForeignKey(outcomes.c.seq), primary_key=True, autoincrement=False),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("model", AnyText, nullable=False),
    Column("prompt_hash", AnyText, nullable=False),
    Column("template_hash", AnyText, nullable=False),
    Column("stop_reason", AnyText, nullable=False),
    Column("dollars", Double, nullable=False),
    Column("record", JsonText, nullable=False),
    sqlite_with_rowid=False,
)

evaluations = Table(
    "evaluations",
    metadata,
    _sequence(),
    Column("number", BigInt, ForeignKey(requests.c.number), nullable=False),
    Column("purpose", String(16), nullable=False),
    Column("task", AnyText, nullable=False),
    Column("variant_id", String(24), ForeignKey(variants.c.variant_id), nullable=False),
    Column("status", String(32), nullable=False),
    Column("stage", String(16), nullable=False),
    Column("device", AnyText, nullable=False),
    Column("plan_hash", AnyText, nullable=False),
    Column("fitness", Double, nullable=False),
    Column("record", JsonText, nullable=False),
    UniqueConstraint("number", "purpose"),
    Index(None, "task", "purpose", "status", "fitness"),
    Index(None, "variant_id"),
    Index(None, "plan_hash"),
    Index(None, "device"),
)

trials = Table(
    "trials",
    metadata,
    Column("seq", BigInt, ForeignKey(evaluations.c.seq), primary_key=True, autoincrement=False),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("case", AnyText, nullable=False),
    Column("status", String(32), nullable=False),
    Column("latency_us", Double),
    Column("record", JsonText, nullable=False),
    sqlite_with_rowid=False,
)

tried = Table(
    "tried",
    metadata,
    _sequence(),
    Column("number", BigInt, ForeignKey(requests.c.number), nullable=False),
    Column("position", BigInt, nullable=False),
    Column("device", AnyText, nullable=False),
    Column("record", JsonText, nullable=False),
    UniqueConstraint("number", "position"),
)
"""Trials of tunings under way; those of a finished one are also in `trials`, with its evaluation."""

events = Table(
    "events",
    metadata,
    _sequence(),
    Column("kind", String(32), nullable=False),
    Column("task", AnyText, nullable=False),
    Column("island", Integer, nullable=False),
    Column("lineage", AnyText, nullable=False),
    Column("variant_id", AnyText, nullable=False),  # may be empty
    Column("reason", JsonText, nullable=False),
)

standings = Table(
    "standings",
    metadata,
    Column("variant_id", String(24), ForeignKey(variants.c.variant_id), primary_key=True),
    Column("task", AnyText, nullable=False),
    Column("search_seq", BigInt),
    Column("search_fitness", Double, nullable=False),  # 0: never passed
    Column("verify_seq", BigInt),
    Column("verify_fitness", Double),  # NULL: not verified
    Column("fitness", Double),  # what it ranks by; NULL: not ranked
    Index(None, "task", "fitness", "search_seq"),
)
"""One row per evaluated variant: its newest verdict of each purpose, so that a ranking reads only the rows it returns."""

snapshots = Table(
    "snapshots",
    metadata,
    Column("name", String(32), primary_key=True),
    Column("seq", BigInt, nullable=False),
    Column("key", Text, nullable=False),
    Column("text", Text, nullable=False),
)
"""What was worked out from the journal up to an entry, to be read instead of all of it; may be deleted at any time."""
