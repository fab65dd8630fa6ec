"""The tables of files and batches in forebay.db, and what their rows mean.

Not here: the schema's steps (`forebay.migrations.versions`; a test compares them with the tables), the
bytes of files (`disk`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Protocol, TypeVar

import sqlalchemy as sa

from forebay.core.batch import (
    Batch,
    BatchOrder,
    BatchState,
    Item,
    ItemState,
    LineCounts,
    LineError,
    Place,
    Spent,
    StoredFile,
)
from forebay.core.principal import Scopes

T = TypeVar("T")

METADATA = sa.MetaData()
# SQLite counts rows only in a column that is called INTEGER; other databases need the room.
_SEQUENCE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_UNFINISHED_STATES = [f"'{state}'" for state in BatchState if not state.is_ended]
_PENDING_STATES = [f"'{state}'" for state in ItemState if not state.has_outcome]
_UNFINISHED = f"state IN ({', '.join(_UNFINISHED_STATES)})"
_PENDING = f"state IN ({', '.join(_PENDING_STATES)})"

FILES = sa.Table(
    "files",
    METADATA,
    sa.Column("sequence", _SEQUENCE, primary_key=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("organisation_id", sa.Text, nullable=False),
    sa.Column("purpose", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("sha256", sa.Text, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("expires_at", sa.Double, index=True),
    # One index for both: in order, and what all of an organisation's together have.
    sa.Index(
        "files_of_organisation",
        "organisation_id",
        "created_at",
        "sequence",
        "expires_at",
        "size_bytes",
    ),
)
BATCHES = sa.Table(
    "batches",
    METADATA,
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
    # The input file, if it was there when the batch was made, until that has ended (B7).
    sa.Column("needed_file_id", sa.Text, index=True),
    sa.Index("batches_of_organisation", "organisation_id", "created_at", "sequence"),
    # An order with a key makes one batch (B5): the database's own rule, whoever inserts.
    sa.Index("batches_order", "organisation_id", "order_key", unique=True),
    sa.Index(
        "batches_unfinished",
        "created_at",
        "sequence",
        sqlite_where=sa.text(_UNFINISHED),
        postgresql_where=sa.text(_UNFINISHED),
    ),
)
ITEMS = sa.Table(
    "batch_items",
    METADATA,
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
# As the indexes have it: with parameters in their place they would not be used.
IS_UNFINISHED = BATCHES.c.state.in_([sa.literal_column(each) for each in _UNFINISHED_STATES])
IS_PENDING = ITEMS.c.state.in_([sa.literal_column(each) for each in _PENDING_STATES])


class Runner(Protocol):
    """The open database: runs a function in a transaction of its own, off the event loop."""

    async def run(self, work: Callable[[sa.Connection], T]) -> T: ...


def file_of(row: sa.Row[Any]) -> StoredFile:
    """A row of FILES."""
    return StoredFile(
        id=row.id,
        organisation_id=row.organisation_id,
        purpose=row.purpose,
        name=row.name,
        size_bytes=row.size_bytes,
        sha256=row.sha256,
        created_at=row.created_at,
        expires_at=row.expires_at,
    )


def batch_of(row: sa.Row[Any]) -> Batch:
    """A row of BATCHES."""
    return Batch(
        id=row.id,
        scopes=Scopes(row.organisation_id, row.project_id, row.key_id),
        order=BatchOrder(
            input_file_id=row.input_file_id,
            endpoint=row.endpoint,
            window=row.completion_window,
            window_seconds=row.window_seconds,
            metadata=row.metadata,
            output_ttl_seconds=row.output_ttl_seconds,
            key=row.order_key or "",
            fingerprint=row.fingerprint,
        ),
        state=BatchState(row.state),
        created_at=row.created_at,
        expires_at=row.expires_at,
        entered={BatchState(state): at for state, at in row.entered.items()},
        model=row.model,
        counts=LineCounts(row.total, row.completed, row.failed),
        spent=Spent(row.input_tokens, row.cached_input_tokens, row.output_tokens, row.amount_nanos),
        errors=tuple(LineError(**each) for each in row.errors),
        output_file_id=row.output_file_id,
        error_file_id=row.error_file_id,
    )


def item_of(row: sa.Row[Any]) -> Item:
    """A row of ITEMS."""
    place = Place(row.batch_id, row.line)
    return Item(place, ItemState(row.state), row.attempt, row.answer, row.head)


def order_values(batch: Batch) -> dict[str, Any]:
    """The columns of a batch that never change."""
    order = batch.order
    return {
        "id": batch.id,
        **batch.scopes._asdict(),
        "input_file_id": order.input_file_id,
        "endpoint": order.endpoint,
        "completion_window": order.window,
        "window_seconds": order.window_seconds,
        "metadata": dict(order.metadata),
        "output_ttl_seconds": order.output_ttl_seconds,
        "order_key": order.key or None,
        "fingerprint": order.fingerprint,
        "created_at": batch.created_at,
        "expires_at": batch.expires_at,
    }


def progress_values(batch: Batch) -> dict[str, Any]:
    """The others, but for the file that it needs."""
    return {
        "state": batch.state,
        "entered": dict(batch.entered),
        "model": batch.model,
        **asdict(batch.counts),
        **asdict(batch.spent),
        "errors": [asdict(each) for each in batch.errors],
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
    }
