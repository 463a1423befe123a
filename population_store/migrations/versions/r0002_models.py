"""Which model a request is for, and the budget of tokens and of requests in flight."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Adds columns; an older run asked models chosen by its seed, and kept neither tokens nor what was in flight."""
    op.add_column("requests", sa.Column("model", sa.Text(), nullable=False, server_default=""))
    op.add_column("spent", sa.Column("tokens", _BIG, nullable=False, server_default="0"))
    op.add_column("spent", sa.Column("held_dollars", sa.Double(), nullable=False, server_default="0"))
    op.add_column("spent", sa.Column("held_tokens", _BIG, nullable=False, server_default="0"))
