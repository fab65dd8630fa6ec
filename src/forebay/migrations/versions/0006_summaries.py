"""Summaries of what was said first in a dialogue."""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_SEQUENCE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade(op: Operations) -> None:
    op.create_table(
        "summaries",
        sa.Column(
            "item_sequence",
            _SEQUENCE,
            sa.ForeignKey("dialogue_items.sequence"),
            primary_key=True,
        ),
        sa.Column("organisation_id", sa.Text, nullable=False),
        sa.Column("item_count", sa.Integer, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
    )
