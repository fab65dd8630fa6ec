"""What the dialogues in memory are: one object, which both contracts share as the tables are shared.

Nothing is counted ahead: sizes are summed whenever they are asked for, so they cannot be wrong.

Not here: the verbs (`memory`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from forebay.conversation.rules import (
    Size,
    conversation_bytes,
    emptied,
    items_bytes,
    require_organisation_room,
    summary_bytes,
    turn_bytes,
)
from forebay.conversation.settings import ConversationSettings
from forebay.core.clock import Clock
from forebay.core.dialogue import Conversation, Item, Summary, Turn, TurnState
from forebay.core.errors import ConversationLocked


@dataclass(slots=True)
class Entry:
    """An item of a conversation, and the turn that brought it, if there is one still."""

    item: Item
    turn_id: str | None = None


Kept = dict[int, Summary]
"""Summaries by the number of the last item that they cover."""


class Place(NamedTuple):
    """An item of a past, and where a summary up to and with it is kept."""

    item: Item
    summaries: Kept
    number: int


@dataclass(slots=True)
class Room:
    """A conversation with its items, by number: numbers grow and are not used again."""

    conversation: Conversation
    entries: dict[int, Entry] = field(default_factory=dict)
    summaries: Kept = field(default_factory=dict)

    @property
    def size(self) -> Size:
        return Size(len(self.entries), items_bytes(each.item for each in self.entries.values()))

    @property
    def stored_bytes(self) -> int:
        own = conversation_bytes(self.conversation.metadata)
        return own + self.size.bytes + _summed(self.summaries)

    def places(self, last: float = float("inf")) -> list[Place]:
        """Of its items up to and with this number."""
        known = self.entries.items()
        return [Place(each.item, self.summaries, at) for at, each in known if at <= last]


@dataclass(slots=True)
class Step:
    """A turn, the one that its past goes on with, and the number of its last item in a conversation."""

    turn: Turn
    after_id: str | None
    last: int = 0
    log: list[bytes] = field(default_factory=list)
    summaries: Kept = field(default_factory=dict)

    @property
    def items(self) -> list[Item]:
        said = self.turn.said
        return [*self.turn.input, *([] if said is None else [said.output])]

    @property
    def moved(self) -> bool:
        """Whether its items are a conversation's."""
        return self.turn.conversation_id is not None and self.turn.state is TurnState.SHOWN

    @property
    def stored_bytes(self) -> int:
        own = turn_bytes(self.turn) + sum(map(len, self.log)) + _summed(self.summaries)
        return own + (0 if self.moved else items_bytes(self.items))

    def places(self) -> list[Place]:
        return [Place(each, self.summaries, number) for number, each in enumerate(self.items)]


@dataclass(slots=True)
class State:
    """Call `refresh` first in every verb: afterwards nothing is here that has expired (C2)."""

    settings: ConversationSettings
    clock: Clock
    rooms: dict[str, Room] = field(default_factory=dict)
    steps: dict[str, Step] = field(default_factory=dict)
    number: int = 0

    def refresh(self) -> float:
        """Forget what has expired; answers what time it is."""
        now = self.clock.now()
        for id, room in list(self.rooms.items()):
            if room.conversation.expires_at <= now:
                self.forget_room(id)
        for id, step in list(self.steps.items()):
            if step.turn.expires_at <= now:
                self.forget_step(id)
        return now

    def room(self, organisation_id: str, id: str) -> Room:
        room = self.rooms.get(id)
        if room is None or room.conversation.organisation_id != organisation_id:
            raise KeyError(id)
        return room

    def unlocked(self, organisation_id: str, id: str) -> Room:
        """The same, if no call works on it (C4)."""
        room = self.room(organisation_id, id)
        if self.locked(id):
            raise ConversationLocked
        return room

    def locked(self, id: str) -> bool:
        """Whether it has a pending turn."""
        turns = (step.turn for step in self.steps.values() if step.turn.conversation_id == id)
        return any(turn.state.is_pending for turn in turns)

    def step(self, organisation_id: str, id: str) -> Step:
        step = self.steps.get(id)
        if step is None or step.turn.organisation_id != organisation_id:
            raise KeyError(id)
        return step

    def shown(self, organisation_id: str, id: str) -> Step:
        step = self.step(organisation_id, id)
        if step.turn.state is not TurnState.SHOWN:
            raise KeyError(id)
        return step

    def places(
        self, organisation_id: str, conversation_id: str | None, previous_id: str | None
    ) -> list[Place]:
        """Of all items of a past. Raises KeyError."""
        if conversation_id is not None:
            return self.room(organisation_id, conversation_id).places()
        return [] if previous_id is None else self._chain(organisation_id, previous_id)

    def _chain(self, organisation_id: str, previous_id: str) -> list[Place]:
        """All up to and with this turn; of a conversation that a chain begins in, what it had then."""
        step: Step | None = self.shown(organisation_id, previous_id)
        places: list[Place] = []
        while step is not None:
            room_id = step.turn.conversation_id
            places[:0] = step.places() if room_id is None else self.rooms[room_id].places(step.last)
            step = None if step.after_id is None else self.steps[step.after_id]
        return places

    def require_bytes(self, organisation_id: str, added: int) -> None:
        """Raises ConversationFull if so much more is too much for this organisation (C6)."""
        rooms = (each for each in self.rooms.values())
        stored = sum(
            each.stored_bytes
            for each in rooms
            if each.conversation.organisation_id == organisation_id
        ) + sum(
            each.stored_bytes
            for each in self.steps.values()
            if each.turn.organisation_id == organisation_id
        )
        require_organisation_room(self.settings, stored + added)

    def append(self, room: Room, item: Item, turn_id: str | None = None) -> int:
        """As the last of the conversation; answers its number."""
        self.number += 1
        room.entries[self.number] = Entry(item, turn_id)
        return self.number

    def remove(self, room: Room, at: int) -> None:
        """One item, also from the turn that brought it."""
        entry = room.entries.pop(at)
        for number in [each for each in room.summaries if each >= at]:
            del room.summaries[number]
        for id, brought in self.steps.items():
            if brought.turn.conversation_id == room.conversation.id and brought.last >= at:
                self._forget_summaries_after(id)
        step = None if entry.turn_id is None else self.steps[entry.turn_id]
        if step is None:
            return
        if step.turn.said is not None and at == step.last:
            said = replace(step.turn.said, output=emptied(entry.item))
            step.turn = replace(step.turn, said=said)
        else:
            kept = tuple(each for each in step.turn.input if each is not entry.item)
            step.turn = replace(step.turn, input=kept)

    def forget_room(self, id: str) -> None:
        for turn_id, step in list(self.steps.items()):
            if step.turn.conversation_id == id:
                self.forget_step(turn_id)
        del self.rooms[id]

    def forget_step(self, id: str) -> None:
        """Its items of a conversation stay; what came after it now goes on from what it went on from."""
        self._forget_summaries_after(id)
        gone = self.steps.pop(id)
        for step in self.steps.values():
            if step.after_id == id:
                step.after_id = gone.after_id
        room = self.rooms.get(gone.turn.conversation_id or "")
        for entry in room.entries.values() if room else ():
            if entry.turn_id == id:
                entry.turn_id = None

    def _forget_summaries_after(self, id: str) -> None:
        """Of this turn, and of all that goes on from it: they cover what it said (C8)."""
        self.steps[id].summaries.clear()
        for later, step in self.steps.items():
            if step.after_id == id:
                self._forget_summaries_after(later)


def newest_summary(places: Sequence[Place]) -> Summary | None:
    """The one that covers the most of this past."""
    for count, place in reversed(list(enumerate(places, start=1))):
        found = place.summaries.get(place.number)
        if found is not None:
            assert found.items == count, "C8: it covers something that is gone"
            return found
    return None


def _summed(summaries: Kept) -> int:
    return sum(summary_bytes(each.text) for each in summaries.values())
