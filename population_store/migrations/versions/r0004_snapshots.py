"""What was worked out from the journal, so that a long run resumes and is shown in seconds."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Adds the table, empty: its rows are made when they are first needed."""
    op.create_table(
        "snapshots",
        sa.Column("name", sa.String(32)),
        sa.Column("seq", _BIG, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_snapshots"),
    )
