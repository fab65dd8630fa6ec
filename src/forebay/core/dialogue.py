"""Dialogues: conversations, their items and turns, as the room, the corridor and the gateway exchange them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from forebay.core.usage import Usage


@dataclass(frozen=True, slots=True)
class Item:
    """One message of a dialogue. `role` is system, developer, user or assistant; `parts` are its texts.

    `complete` is false for an answer that was cut off by its maximum of tokens.
    """

    id: str
    role: str
    parts: tuple[str, ...]
    complete: bool = True

    @property
    def text(self) -> str:
        """All parts, a line each: what the model sees."""
        return "\n".join(self.parts)

    @property
    def size_bytes(self) -> int:
        """What it counts against the bounds of a store: its texts, and 100 bytes for the rest."""
        return 100 + sum(len(part.encode()) for part in self.parts)


def answer_id(call_id: str) -> str:
    """The id of the item that answers a call."""
    return "msg_" + call_id.removeprefix("req_")


@dataclass(frozen=True, slots=True)
class Conversation:
    """A named dialogue of one organisation. `expires_at` is `ttl_seconds` after it was last used.

    `revision` counts its changes: a turn is appended only to the revision that it was made from.
    """

    id: str
    organisation_id: str
    created_at: float
    ttl_seconds: int
    expires_at: float
    metadata: Mapping[str, str] = field(default_factory=dict)
    revision: int = 0


class TurnState(StrEnum):
    """How far a turn has come; it is visible when its call is settled as completed.

    The last two are of background turns, whose clients ask what became of them.
    """

    OPEN = "open"  # its call runs
    KEPT = "kept"  # its answer is stored, its call not known to be settled
    SHOWN = "shown"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_pending(self) -> bool:
        """Its call may still go on: it is to be shown, or dropped."""
        return self in (TurnState.OPEN, TurnState.KEPT)


@dataclass(frozen=True, slots=True)
class Said:
    """What a call made of a turn: its answer, what it used, and when it had it (Unix seconds; None if
    nobody noted that)."""

    output: Item
    usage: Usage
    completed_at: float | None = None


class Ending(NamedTuple):
    """How a turn ended that has no answer: FAILED or CANCELLED, and why in a word."""

    state: TurnState
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """New input and the model's answer to it. A response of the Responses API is a turn.

    `record` is what the API echoes of its request: opaque to everyone but the gateway. It continues
    a conversation, or an earlier turn, or nothing. One in the `background` outlives its client and its
    process: while it is pending, `job` is what is enqueued again; `reason` is why it has no answer.
    `window` tells what it was shown of the past, if that was not all of it.
    """

    id: str
    organisation_id: str
    call_id: str
    created_at: float
    expires_at: float
    input: tuple[Item, ...]
    conversation_id: str | None = None
    previous_id: str | None = None
    record: bytes = b""
    state: TurnState = TurnState.OPEN
    attempt: int = 0
    said: Said | None = None
    background: bool = False
    job: bytes = b""
    reason: str = ""
    window: str = ""


@dataclass(frozen=True, slots=True)
class Summary:
    """What the oldest items of a past come to: of the first `items` of them."""

    text: str
    items: int


@dataclass(frozen=True, slots=True)
class Past:
    """What was said before: items in order, oldest first. `revision` is the conversation's; `locked`:
    it has a pending turn, so that none can be begun now."""

    items: tuple[Item, ...] = ()
    revision: int = 0
    locked: bool = False
    summary: Summary | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """What of the past a call was given: whole turns, and what stands for others; the rest was
    dropped. `conversation_id`: the conversation that it goes on, `renewed` if the one asked for was
    gone."""

    kept: int = 0
    dropped: int = 0
    conversation_id: str | None = None
    renewed: bool = False
    summarised: int = 0

    def __str__(self) -> str:
        """As clients are told."""
        return f"kept={self.kept},summarised={self.summarised},dropped={self.dropped}"

    @property
    def is_whole(self) -> bool:
        """Whether all of the past was shown as it was said."""
        return not self.dropped and not self.summarised


@dataclass(frozen=True, slots=True)
class Pending:
    """A pending turn, and the call whose settlement decides."""

    turn_id: str
    organisation_id: str
    call_id: str


@dataclass(frozen=True, slots=True)
class Page:
    """Which of a list: at most `limit` after (behind, in this order) the item of this id."""

    limit: int = 20
    after: str | None = None
    newest_first: bool = True
