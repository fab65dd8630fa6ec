"""Conversations, turns, their items, and what each organisation keeps of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_SEQUENCE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade(op: Operations) -> None:
    op.create_table(
        "dialogue_organisations",
        sa.Column("organisation_id", sa.Text, primary_key=True),
        sa.Column("stored_bytes", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "conversations",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("organisation_id", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("ttl_seconds", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False, index=True),
        sa.Column("metadata", sa.JSON, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("own_bytes", sa.BigInteger, nullable=False),
        sa.Column("item_count", sa.Integer, nullable=False),
        sa.Column("item_bytes", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "turns",
        sa.Column("sequence", _SEQUENCE, primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("organisation_id", sa.Text, nullable=False),
        sa.Column("call_id", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False, index=True),
        sa.Column("conversation_id", sa.Text, sa.ForeignKey("conversations.id"), index=True),
        sa.Column("previous_id", sa.Text),
        sa.Column("after_id", sa.Text, index=True),
        sa.Column("record", sa.LargeBinary, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("usage", sa.JSON),
        sa.Column("own_bytes", sa.BigInteger, nullable=False),
        sa.Column("item_bytes", sa.BigInteger, nullable=False),
        sa.Index(
            "turns_not_shown",
            "conversation_id",
            unique=True,
            sqlite_where=sa.text("state != 'shown'"),
            postgresql_where=sa.text("state != 'shown'"),
        ),
    )
    op.create_table(
        "dialogue_items",
        sa.Column("sequence", _SEQUENCE, primary_key=True),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("conversation_id", sa.Text, sa.ForeignKey("conversations.id")),
        sa.Column("turn_id", sa.Text, sa.ForeignKey("turns.id"), index=True),
        sa.Column("answer", sa.Boolean, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("parts", sa.JSON, nullable=False),
        sa.Column("complete", sa.Boolean, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Index("items_of_conversation", "conversation_id", "sequence", "id"),
    )
