"""Turns in the background: what is enqueued again, how they ended, and their logs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade(op: Operations) -> None:
    op.add_column("turns", sa.Column("completed_at", sa.Double))
    op.add_column(
        "turns", sa.Column("background", sa.Boolean, nullable=False, server_default=sa.false())
    )
    op.add_column("turns", sa.Column("job", sa.LargeBinary))
    op.add_column("turns", sa.Column("reason", sa.Text))
    op.add_column("turns", sa.Column("shown_window", sa.Text))
    op.drop_index("turns_not_shown", "turns")
    op.create_index(
        "turns_pending",
        "turns",
        ["conversation_id"],
        unique=True,
        sqlite_where=sa.text("state IN ('open', 'kept')"),
        postgresql_where=sa.text("state IN ('open', 'kept')"),
    )
    op.create_table(
        "turn_logs",
        sa.Column("turn_id", sa.Text, sa.ForeignKey("turns.id"), primary_key=True),
        sa.Column("position", sa.Integer, primary_key=True),
        sa.Column("events", sa.LargeBinary, nullable=False),
    )
