"""The tables of dialogues in forebay.db, and what their rows mean.

An item is one row, whichever ways lead to it: of its turn, and of its conversation once the turn is
shown. `own_bytes` are what a row counts itself, `item_bytes` what its items do; those of a turn count
with the turn until they are a conversation's.

Not here: the schema's steps (`forebay.migrations.versions`; a test compares them with the tables).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from forebay.core.delta import FinishReason
from forebay.core.dialogue import Conversation, Item, Said, Summary, Turn, TurnState
from forebay.core.usage import Usage

METADATA = sa.MetaData()
# SQLite counts rows only in a column that is called INTEGER; other databases need the room.
_SEQUENCE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

_PENDING = "state IN ('open', 'kept')"

ORGANISATIONS = sa.Table(
    "dialogue_organisations",
    METADATA,
    sa.Column("organisation_id", sa.Text, primary_key=True),
    sa.Column("stored_bytes", sa.BigInteger, nullable=False),
)
CONVERSATIONS = sa.Table(
    "conversations",
    METADATA,
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
TURNS = sa.Table(
    "turns",
    METADATA,
    sa.Column("sequence", _SEQUENCE, primary_key=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("organisation_id", sa.Text, nullable=False),
    sa.Column("call_id", sa.Text, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("expires_at", sa.Double, nullable=False, index=True),
    sa.Column("conversation_id", sa.Text, sa.ForeignKey("conversations.id"), index=True),
    sa.Column("previous_id", sa.Text),
    # The turn that its past goes on with: `previous_id`, or what is left of the chain before it.
    sa.Column("after_id", sa.Text, index=True),
    sa.Column("record", sa.LargeBinary, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("usage", sa.JSON(none_as_null=True)),
    sa.Column("own_bytes", sa.BigInteger, nullable=False),
    sa.Column("item_bytes", sa.BigInteger, nullable=False),
    sa.Column("completed_at", sa.Double),
    sa.Column("background", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("job", sa.LargeBinary),
    sa.Column("reason", sa.Text),
    sa.Column("shown_window", sa.Text),
    # At most one of a conversation is pending (C4): the database's own rule, whoever inserts.
    sa.Index(
        "turns_pending",
        "conversation_id",
        unique=True,
        sqlite_where=sa.text(_PENDING),
        postgresql_where=sa.text(_PENDING),
    ),
)
TURN_LOGS = sa.Table(
    "turn_logs",
    METADATA,
    sa.Column("turn_id", sa.Text, sa.ForeignKey("turns.id"), primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True),
    sa.Column("events", sa.LargeBinary, nullable=False),
)
ITEMS = sa.Table(
    "dialogue_items",
    METADATA,
    sa.Column("sequence", _SEQUENCE, primary_key=True),
    sa.Column("id", sa.Text, nullable=False),
    sa.Column("conversation_id", sa.Text, sa.ForeignKey("conversations.id")),
    sa.Column("turn_id", sa.Text, sa.ForeignKey("turns.id"), index=True),
    sa.Column("answer", sa.Boolean, nullable=False),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("parts", sa.JSON, nullable=False),
    sa.Column("complete", sa.Boolean, nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    # One index for both: in order, and by id within a conversation.
    sa.Index("items_of_conversation", "conversation_id", "sequence", "id"),
)
# What the items of a past up to and with one of them come to, `item_count` of them.
SUMMARIES = sa.Table(
    "summaries",
    METADATA,
    sa.Column(
        "item_sequence", _SEQUENCE, sa.ForeignKey("dialogue_items.sequence"), primary_key=True
    ),
    sa.Column("organisation_id", sa.Text, nullable=False),
    sa.Column("item_count", sa.Integer, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
)
# As the index has it: with parameters in their place the index would not be used.
_PENDING_STATES: tuple[sa.ColumnElement[str], ...] = (
    sa.literal_column("'open'"),
    sa.literal_column("'kept'"),
)
IS_PENDING = TURNS.c.state.in_(_PENDING_STATES)
_OPEN = TURNS.alias("open_turns")
_IS_OPEN = sa.and_(
    _OPEN.c.conversation_id == CONVERSATIONS.c.id, _OPEN.c.state.in_(_PENDING_STATES)
)
EVERY_CONVERSATION = sa.select(
    CONVERSATIONS, _OPEN.c.id.label("open_id"), _OPEN.c.expires_at.label("open_expires_at")
).select_from(CONVERSATIONS.outerjoin(_OPEN, _IS_OPEN))
EVERY_TURN = sa.select(
    TURNS, CONVERSATIONS.c.expires_at.label("conversation_expires_at")
).select_from(TURNS.outerjoin(CONVERSATIONS, CONVERSATIONS.c.id == TURNS.c.conversation_id))


# What a row of ITEMS, joined with them, may have beside it.
SUMMARY_COLUMNS = (SUMMARIES.c.text.label("summary"), SUMMARIES.c.item_count.label("summarised"))
IS_SUMMARISED = SUMMARIES.c.item_sequence == ITEMS.c.sequence


def conversation_of(row: sa.Row[Any]) -> Conversation:
    """A row of EVERY_CONVERSATION."""
    return Conversation(
        id=row.id,
        organisation_id=row.organisation_id,
        created_at=row.created_at,
        ttl_seconds=row.ttl_seconds,
        expires_at=row.expires_at,
        metadata=row.metadata,
        revision=row.revision,
    )


def item_of(row: sa.Row[Any]) -> Item:
    """A row of ITEMS."""
    return Item(row.id, row.role, tuple(row.parts), row.complete)


def summary_of(past: Sequence[sa.Row[Any]]) -> Summary | None:
    """The one that covers the most of a past, of its rows with SUMMARY_COLUMNS; one that covers what
    has expired is none (C2)."""
    for count, row in reversed(list(enumerate(past, start=1))):
        if row.summarised == count:
            return Summary(row.summary, count)
    return None


def turn_of(row: sa.Row[Any], items: Iterable[sa.Row[Any]]) -> Turn:
    """A row of EVERY_TURN, and all of its items in order."""
    found = [(each.answer, item_of(each)) for each in items]
    answer = next((item for is_answer, item in found if is_answer), None)
    return Turn(
        id=row.id,
        organisation_id=row.organisation_id,
        call_id=row.call_id,
        created_at=row.created_at,
        expires_at=row.expires_at,
        input=tuple(item for is_answer, item in found if not is_answer),
        conversation_id=row.conversation_id,
        previous_id=row.previous_id,
        record=row.record,
        state=TurnState(row.state),
        attempt=row.attempt,
        said=None if answer is None else Said(answer, _usage(row.usage), row.completed_at),
        background=row.background,
        job=row.job or b"",
        reason=row.reason or "",
        window=row.shown_window or "",
    )


def conversation_values(conversation: Conversation) -> dict[str, Any]:
    """The columns that it is stored in, but for its sizes."""
    return {**asdict(conversation), "metadata": dict(conversation.metadata)}


def turn_values(turn: Turn) -> dict[str, Any]:
    """The columns that an open one is stored in, but for its sizes and its place in a chain."""
    return {
        "id": turn.id,
        "organisation_id": turn.organisation_id,
        "call_id": turn.call_id,
        "created_at": turn.created_at,
        "expires_at": turn.expires_at,
        "conversation_id": turn.conversation_id,
        "previous_id": turn.previous_id,
        "record": turn.record,
        "state": TurnState.OPEN,
        "attempt": 0,
        "background": turn.background,
        "job": turn.job or None,
        "shown_window": turn.window or None,
    }


def item_values(
    item: Item,
    *,
    conversation_id: str | None = None,
    turn_id: str | None = None,
    answer: bool = False,
) -> dict[str, Any]:
    """The columns that it is stored in."""
    return {
        "id": item.id,
        "conversation_id": conversation_id,
        "turn_id": turn_id,
        "answer": answer,
        "role": item.role,
        "parts": list(item.parts),
        "complete": item.complete,
        "size_bytes": item.size_bytes,
    }


def _usage(stored: dict[str, Any]) -> Usage:
    reasons = (None if each is None else FinishReason(each) for each in stored["finish_reasons"])
    return Usage(**{**stored, "finish_reasons": tuple(reasons)})
