"""Files, batches, and the lines of batches that were begun."""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_SEQUENCE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_UNFINISHED = "state IN ('validating', 'in_progress', 'finalizing', 'cancelling')"
_PENDING = "state IN ('open', 'kept')"


def upgrade(op: Operations) -> None:
    _create_files(op)
    _create_batches(op)
    _create_items(op)


def _create_files(op: Operations) -> None:
    op.create_table(
        "files",
        sa.Column("sequence", _SEQUENCE, primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("organisation_id", sa.Text, nullable=False),
        sa.Column("purpose", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("sha256", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double, index=True),
        sa.Index(
            "files_of_organisation",
            "organisation_id",
            "created_at",
            "sequence",
            "expires_at",
            "size_bytes",
        ),
    )


def _create_batches(op: Operations) -> None:
    op.create_table(
        "batches",
        sa.Column("sequence", _SEQUENCE, primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("organisation_id", sa.Text, nullable=False),
        sa.Column("project_id", sa.Text, nullable=False),
        sa.Column("key_id", sa.Text, nullable=False),
        sa.Column("input_file_id", sa.Text, nullable=False),
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("completion_window", sa.Text, nullable=False),
        sa.Column("window_seconds", sa.BigInteger, nullable=False),
        sa.Column("metadata", sa.JSON, nullable=False),
        sa.Column("output_ttl_seconds", sa.BigInteger),
        sa.Column("order_key", sa.Text),
        sa.Column("fingerprint", sa.LargeBinary, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.Column("entered", sa.JSON, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("total", sa.Integer, nullable=False),
        sa.Column("completed", sa.Integer, nullable=False),
        sa.Column("failed", sa.Integer, nullable=False),
        sa.Column("input_tokens", sa.BigInteger, nullable=False),
        sa.Column("cached_input_tokens", sa.BigInteger, nullable=False),
        sa.Column("output_tokens", sa.BigInteger, nullable=False),
        sa.Column("amount_nanos", sa.BigInteger, nullable=False),
        sa.Column("errors", sa.JSON, nullable=False),
        sa.Column("output_file_id", sa.Text),
        sa.Column("error_file_id", sa.Text),
        sa.Column("needed_file_id", sa.Text, index=True),
        sa.Index("batches_of_organisation", "organisation_id", "created_at", "sequence"),
        sa.Index("batches_order", "organisation_id", "order_key", unique=True),
        sa.Index(
            "batches_unfinished",
            "created_at",
            "sequence",
            sqlite_where=sa.text(_UNFINISHED),
            postgresql_where=sa.text(_UNFINISHED),
        ),
    )


def _create_items(op: Operations) -> None:
    op.create_table(
        "batch_items",
        sa.Column("batch_id", sa.Text, sa.ForeignKey("batches.id"), primary_key=True),
        sa.Column("line", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("answer", sa.LargeBinary, nullable=False),
        sa.Column("head", sa.LargeBinary, nullable=False),
        sa.Index(
            "batch_items_pending",
            "batch_id",
            "line",
            sqlite_where=sa.text(_PENDING),
            postgresql_where=sa.text(_PENDING),
        ),
    )
