"""Trials of a tuning under way, a row per configuration."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Adds the table; an older store kept trials with their evaluation only."""
    op.create_table(
        "tried",
        sa.Column("seq", _BIG, autoincrement=False),
        sa.Column("number", _BIG, nullable=False),
        sa.Column("position", _BIG, nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_tried"),
        sa.ForeignKeyConstraint(["number"], ["requests.number"], name="fk_tried_number"),
        sa.UniqueConstraint("number", "position", name="uq_tried_number_position"),
    )
