"""The first schema: header and budget, the four journal tables with their children, and the standings."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# Spelled out rather than taken from `population_store.schema`, which goes on changing; JSON is kept in text columns.
_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Creates all tables."""
    _create_run()
    _create_requests_and_outcomes()
    _create_evaluations()
    _create_events()
    _create_standings()


def _create_run() -> None:
    op.create_table(
        "run",
        sa.Column("id", sa.Integer(), autoincrement=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("seed", sa.Text(), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("tasks", sa.Text(), nullable=False),
        sa.Column("versions", sa.Text(), nullable=False),
        sa.Column("created", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_run"),
    )
    op.create_table(
        "spent",
        sa.Column("id", sa.Integer(), autoincrement=False),
        sa.Column("last_seq", _BIG, nullable=False),
        sa.Column("evaluations", _BIG, nullable=False),
        sa.Column("proposals", _BIG, nullable=False),
        sa.Column("wall_s", sa.Double(), nullable=False),
        sa.Column("gpu_s", sa.Double(), nullable=False),
        sa.Column("dollars", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_spent"),
    )


def _create_requests_and_outcomes() -> None:
    op.create_table(
        "requests",
        sa.Column("seq", _BIG, autoincrement=False),
        sa.Column("number", _BIG, nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("island", sa.Integer(), nullable=False),
        sa.Column("lineage", sa.Text(), nullable=False),
        sa.Column("operator", sa.Text(), nullable=False),
        sa.Column("parents", sa.Text(), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_requests"),
        sa.UniqueConstraint("number", name="uq_requests_number"),
    )
    op.create_index("ix_requests_task_state", "requests", ["task", "state"])
    op.create_table(
        "variants",
        sa.Column("variant_id", sa.String(24), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("variant_id", name="pk_variants"),
    )
    op.create_table(
        "outcomes",
        sa.Column("seq", _BIG, autoincrement=False),
        sa.Column("number", _BIG, nullable=False),
        sa.Column("variant_id", sa.String(24)),
        sa.Column("failed", sa.Boolean()),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["number"], ["requests.number"], name="fk_outcomes_number"),
        sa.ForeignKeyConstraint(["variant_id"], ["variants.variant_id"], name="fk_outcomes_variant_id"),
        sa.PrimaryKeyConstraint("seq", name="pk_outcomes"),
        sa.UniqueConstraint("number", name="uq_outcomes_number"),
    )
    op.create_index("ix_outcomes_variant_id", "outcomes", ["variant_id"])
    op.create_table(
        "exchanges",
        sa.Column("seq", _BIG, autoincrement=False),
        sa.Column("position", sa.Integer(), autoincrement=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("prompt_hash", sa.Text(), nullable=False),
        sa.Column("template_hash", sa.Text(), nullable=False),
        sa.Column("stop_reason", sa.Text(), nullable=False),
        sa.Column("dollars", sa.Double(), nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["seq"], ["outcomes.seq"], name="fk_exchanges_seq"),
        sa.PrimaryKeyConstraint("seq", "position", name="pk_exchanges"),
        sqlite_with_rowid=False,
    )


def _create_evaluations() -> None:
    op.create_table(
        "evaluations",
        sa.Column("seq", _BIG, autoincrement=False),
        sa.Column("number", _BIG, nullable=False),
        sa.Column("purpose", sa.String(16), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("variant_id", sa.String(24), nullable=False),
        sa.Column("status", sa.String(32), nullable=False),
        sa.Column("stage", sa.String(16), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("plan_hash", sa.Text(), nullable=False),
        sa.Column("fitness", sa.Double(), nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["number"], ["requests.number"], name="fk_evaluations_number"),
        sa.ForeignKeyConstraint(["variant_id"], ["variants.variant_id"], name="fk_evaluations_variant_id"),
        sa.PrimaryKeyConstraint("seq", name="pk_evaluations"),
        sa.UniqueConstraint("number", "purpose", name="uq_evaluations_number_purpose"),
    )
    op.create_index("ix_evaluations_task_purpose_status_fitness", "evaluations", ["task", "purpose", "status", "fitness"])
    op.create_index("ix_evaluations_variant_id", "evaluations", ["variant_id"])
    op.create_index("ix_evaluations_plan_hash", "evaluations", ["plan_hash"])
    op.create_index("ix_evaluations_device", "evaluations", ["device"])
    op.create_table(
        "trials",
        sa.Column("seq", _BIG, autoincrement=False),
        sa.Column("position", sa.Integer(), autoincrement=False),
        sa.Column("case", sa.Text(), nullable=False),
        sa.Column("status", sa.String(32), nullable=False),
        sa.Column("latency_us", sa.Double()),
        sa.Column("record", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["seq"], ["evaluations.seq"], name="fk_trials_seq"),
        sa.PrimaryKeyConstraint("seq", "position", name="pk_trials"),
        sqlite_with_rowid=False,
    )


def _create_events() -> None:
    op.create_table(
        "events",
        sa.Column("seq", _BIG, autoincrement=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("island", sa.Integer(), nullable=False),
        sa.Column("lineage", sa.Text(), nullable=False),
        sa.Column("variant_id", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_events"),
    )


def _create_standings() -> None:
    op.create_table(
        "standings",
        sa.Column("variant_id", sa.String(24), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("search_seq", _BIG),
        sa.Column("search_fitness", sa.Double(), nullable=False),
        sa.Column("verify_seq", _BIG),
        sa.Column("verify_fitness", sa.Double()),
        sa.Column("fitness", sa.Double()),
        sa.ForeignKeyConstraint(["variant_id"], ["variants.variant_id"], name="fk_standings_variant_id"),
        sa.PrimaryKeyConstraint("variant_id", name="pk_standings"),
    )
    op.create_index("ix_standings_task_fitness_search_seq", "standings", ["task", "fitness", "search_seq"])
