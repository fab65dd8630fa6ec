"""Conversations and stored responses: what was said before, for as long as it is to be remembered.

      begin              keep                show
    ─────────▶ OPEN ───────────▶ KEPT ───────────────▶ SHOWN ──▶ gone: expired, or deleted
                 │                 │
                 └──── drop ───────┴──▶ gone: the call failed, or its client left
                                        in the background: FAILED or CANCELLED, until it expires

A turn is new input and the answer to it. It is begun when its call holds money, kept before the call
is settled, and shown once it is: whoever asks for a turn that is KEPT has to ask the ledger. OPEN and
KEPT are pending. A turn in the background is its job's owner of record: whatever process dies, it says
what is to be enqueued again, and what of the answer its readers may have seen.

Invariants
- C1 Everything belongs to one organisation: with another's id, whatever is asked, the answer is the
  one for an id that does not exist (KeyError).
- C2 What has expired is gone, at that moment, whether or not it has been swept.
- C3 A prompt shows the system messages at the beginning and the new input, and of the last K turns
  as many as fit, whole: `window.py`.
- C4 A conversation has at most one pending turn; it grows only by turns made from its present
  revision. So appends are in order, none is lost, and no two are mixed.
- C5 A turn appears in the past of others, and its items in lists, only when it is shown: with all of
  its items, or not at all. Of an answer kept twice the one of the newer attempt stays.
- C6 Counts and bytes are bounded, per conversation and per organisation; what is deleted or has
  expired counts no more.
- C7 The log of a turn grows only at its end, by whoever knows all of it: of two owners who both think
  that the turn is theirs, one is refused.
- C8 A summary covers the first items of a past, and is gone with any of them: at the moment that
  one of them, or a turn or conversation that led to it, is deleted or expires. Of two summaries of a
  past the one of more items stays.

Not here: what of the past is shown to the model (`window.py`), how a summary is made, whether a call is settled
(`forebay.ledger`), when turns are begun and shown (`forebay.pipeline`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from forebay.core.dialogue import (
    Conversation,
    Ending,
    Item,
    Page,
    Past,
    Pending,
    Said,
    Turn,
)


class Conversations(ABC):
    """Dialogues by name. Safe from any number of tasks; a cancelled caller's verb may commit all the same."""

    @abstractmethod
    async def create(self, conversation: Conversation, items: Sequence[Item]) -> None:
        """Store it with its first items. Raises ConversationFull (C6)."""

    @abstractmethod
    async def find(self, organisation_id: str, id: str) -> Conversation:
        """Raises KeyError (C1, C2)."""

    @abstractmethod
    async def annotate(
        self, organisation_id: str, id: str, metadata: Mapping[str, str]
    ) -> Conversation:
        """Replace its metadata. Raises KeyError."""

    @abstractmethod
    async def delete(self, organisation_id: str, id: str) -> None:
        """Forget it with all of its items and turns, also one that is open. Raises KeyError."""

    @abstractmethod
    async def add(self, organisation_id: str, id: str, items: Sequence[Item]) -> None:
        """Append items that no call has made. Raises KeyError, ConversationLocked, ConversationFull."""

    @abstractmethod
    async def items(self, organisation_id: str, id: str, page: Page) -> list[Item]:
        """Of a conversation. Raises KeyError, also for a `page.after` that is none of its items."""

    @abstractmethod
    async def item(self, organisation_id: str, id: str, item_id: str) -> Item:
        """One of them. Raises KeyError."""

    @abstractmethod
    async def remove_item(self, organisation_id: str, id: str, item_id: str) -> Conversation:
        """Forget one item; answers the conversation. Raises KeyError, ConversationLocked.

        Its turn lacks it too; the answer of a turn stays, without its text.
        """


class Turns(ABC):
    """What calls make of dialogues. The same store, and as safe."""

    @abstractmethod
    async def past(
        self, organisation_id: str, *, conversation_id: str | None, previous_id: str | None
    ) -> Past:
        """All that was said in a conversation, or up to and with a shown turn, and the summary of its
        oldest part. Raises KeyError."""

    @abstractmethod
    async def begin(self, turn: Turn, *, revision: int = 0) -> None:
        """Store an open turn; the same id again changes nothing.

        In a conversation: raises KeyError if it is gone, ConversationLocked if it has another
        pending turn or is not at this revision any more (C4). It does not expire under its call
        (for a day); its time to live begins anew when that ends (`show`, `drop`). After an earlier
        turn: raises KeyError unless that is shown. Raises ConversationFull (C6); what a chain of turns
        has said is bounded like a conversation.
        """

    @abstractmethod
    async def keep(self, turn_id: str, attempt: int, said: Said) -> None:
        """Store the answer, not shown yet; replaces that of an older attempt (C5).

        No-op for a turn that is gone or not pending, or has the answer of a newer attempt.
        """

    @abstractmethod
    async def show(self, turn_id: str) -> None:
        """Its call was settled: the turn is visible, and its conversation's revision goes up.

        No-op for a turn that is gone or not pending; one without an answer is dropped.
        """

    @abstractmethod
    async def drop(self, turn_id: str, ending: Ending | None = None) -> None:
        """Its call ended without a turn to show. No-op for one that is gone or not pending.

        It is forgotten; but one in the background stays, without an answer, if there is an ending
        to tell of.
        """

    @abstractmethod
    async def find(self, organisation_id: str, turn_id: str) -> Turn:
        """A turn in any state. Raises KeyError (C1, C2)."""

    @abstractmethod
    async def delete(self, organisation_id: str, turn_id: str) -> None:
        """Forget a turn that is not pending, with its items unless they are a conversation's. Raises
        KeyError, also for a pending one. The past of later turns then lacks it.
        """

    @abstractmethod
    async def sweep(self) -> list[Pending]:
        """Delete what has expired, and answer all turns that are pending."""


class TurnLogs(ABC):
    """What turns in the background need besides. The same store, and as safe."""

    @abstractmethod
    async def unfinished(self) -> list[Turn]:
        """All pending ones, oldest first."""

    @abstractmethod
    async def append(self, turn_id: str, position: int, events: bytes) -> None:
        """Store the part of a pending turn's log that comes after `position` others.

        The same part again changes nothing. Raises KeyError for a turn that is gone or not pending,
        StaleAttempt if another part is there, or the one before is not (C7).
        """

    @abstractmethod
    async def read(self, turn_id: str) -> list[bytes]:
        """All parts in order, also of a turn that has ended; none if it is gone."""


class Summaries(ABC):
    """What the oldest part of dialogues comes to; `Turns.past` answers it. The same store, and as safe."""

    @abstractmethod
    async def store(
        self,
        organisation_id: str,
        text: str,
        covered: Sequence[str],
        *,
        conversation_id: str | None,
        previous_id: str | None,
    ) -> None:
        """Keep what the first items of a past come to: those of these ids, one at least.

        It replaces what was kept of fewer of them; no-op if more are summarised already. Raises
        KeyError if that past is gone or does not begin with them any more (C8), ConversationFull (C6).
        """
