"""Dialogues in memory: the specification that the other store is compared with.

No verb awaits, so each runs to completion on the event loop: that is its atomicity.

Not here: what is kept, and what it counts (`memory_state`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice

from forebay.conversation.contract import Conversations, Summaries, TurnLogs, Turns
from forebay.conversation.memory_state import Room, State, Step, newest_summary
from forebay.conversation.rules import (
    CALL_SECONDS,
    Size,
    conversation_bytes,
    exists_already,
    items_bytes,
    require_covered,
    require_revision,
    require_room,
    summary_bytes,
    turn_bytes,
)
from forebay.conversation.settings import ConversationSettings
from forebay.core.clock import Clock
from forebay.core.dialogue import (
    Conversation,
    Ending,
    Item,
    Page,
    Past,
    Pending,
    Said,
    Summary,
    Turn,
    TurnState,
)
from forebay.core.errors import StaleAttempt


class MemoryConversations(Conversations):
    """One per process; `turns`, `logs` and `summaries` are the other contracts on the same dialogues."""

    def __init__(self, settings: ConversationSettings, clock: Clock) -> None:
        self._state = State(settings, clock)
        self.turns = MemoryTurns(self._state)
        self.logs = MemoryTurnLogs(self._state)
        self.summaries = MemorySummaries(self._state)

    async def create(self, conversation: Conversation, items: Sequence[Item]) -> None:
        state = self._state
        state.refresh()
        if conversation.id in state.rooms:
            raise exists_already(conversation.id)
        size = items_bytes(items)
        require_room(state.settings, Size(len(items), size))
        state.require_bytes(
            conversation.organisation_id, conversation_bytes(conversation.metadata) + size
        )
        room = Room(replace(conversation, metadata=dict(conversation.metadata)))
        state.rooms[conversation.id] = room
        for item in items:
            state.append(room, item)

    async def find(self, organisation_id: str, id: str) -> Conversation:
        self._state.refresh()
        return self._state.room(organisation_id, id).conversation

    async def annotate(
        self, organisation_id: str, id: str, metadata: Mapping[str, str]
    ) -> Conversation:
        self._state.refresh()
        room = self._state.room(organisation_id, id)
        room.conversation = replace(room.conversation, metadata=dict(metadata))
        return room.conversation

    async def delete(self, organisation_id: str, id: str) -> None:
        self._state.refresh()
        self._state.room(organisation_id, id)
        self._state.forget_room(id)

    async def add(self, organisation_id: str, id: str, items: Sequence[Item]) -> None:
        now = self._state.refresh()
        room = self._state.unlocked(organisation_id, id)
        size = items_bytes(items)
        require_room(
            self._state.settings, Size(room.size.items + len(items), room.size.bytes + size)
        )
        self._state.require_bytes(organisation_id, size)
        for item in items:
            self._state.append(room, item)
        revision = room.conversation.revision + 1
        room.conversation = replace(_touched(room.conversation, now), revision=revision)

    async def items(self, organisation_id: str, id: str, page: Page) -> list[Item]:
        self._state.refresh()
        room = self._state.room(organisation_id, id)
        first = 0 if page.after is None else _number(room, page.after)
        if page.newest_first:
            found = (
                each.item
                for at, each in reversed(room.entries.items())
                if page.after is None or at < first
            )
        else:
            found = (each.item for at, each in room.entries.items() if at > first)
        return list(islice(found, page.limit))

    async def item(self, organisation_id: str, id: str, item_id: str) -> Item:
        self._state.refresh()
        room = self._state.room(organisation_id, id)
        return room.entries[_number(room, item_id)].item

    async def remove_item(self, organisation_id: str, id: str, item_id: str) -> Conversation:
        self._state.refresh()
        room = self._state.unlocked(organisation_id, id)
        self._state.remove(room, _number(room, item_id))
        revision = room.conversation.revision + 1
        room.conversation = replace(room.conversation, revision=revision)
        return room.conversation


class MemoryTurns(Turns):
    """Made by `MemoryConversations`."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def past(
        self, organisation_id: str, *, conversation_id: str | None, previous_id: str | None
    ) -> Past:
        self._state.refresh()
        places = self._state.places(organisation_id, conversation_id, previous_id)
        past = Past(tuple(place.item for place in places), summary=newest_summary(places))
        if conversation_id is None:
            return past
        revision = self._state.rooms[conversation_id].conversation.revision
        return replace(past, revision=revision, locked=self._state.locked(conversation_id))

    async def begin(self, turn: Turn, *, revision: int = 0) -> None:
        state = self._state
        now = state.refresh()
        if turn.id in state.steps:
            return
        room: Room | None = None
        past = Size()
        if turn.conversation_id is not None:
            room = state.unlocked(turn.organisation_id, turn.conversation_id)
            require_revision(room.conversation.revision, revision)
            past = room.size
        elif turn.previous_id is not None:
            places = state.places(turn.organisation_id, None, turn.previous_id)
            past = Size(len(places), items_bytes(place.item for place in places))
        size = items_bytes(turn.input)
        require_room(state.settings, Size(past.items + len(turn.input) + 1, past.bytes + size))
        state.require_bytes(turn.organisation_id, turn_bytes(turn) + size)
        after_id = None if room is not None else turn.previous_id
        state.steps[turn.id] = Step(_opened(turn), after_id)
        if room is not None:
            room.conversation = _touched(room.conversation, now, CALL_SECONDS)

    async def keep(self, turn_id: str, attempt: int, said: Said) -> None:
        step = self._pending(turn_id)
        if step is not None and attempt >= step.turn.attempt:
            step.turn = replace(step.turn, state=TurnState.KEPT, attempt=attempt, said=said)

    async def show(self, turn_id: str) -> None:
        step = self._pending(turn_id)
        if step is None:
            return
        if step.turn.said is None:
            await self.drop(turn_id)
            return
        self._release(step)
        step.turn = replace(step.turn, state=TurnState.SHOWN, job=b"")
        if step.turn.conversation_id is not None:
            room = self._state.rooms[step.turn.conversation_id]
            for item in step.items:
                step.last = self._state.append(room, item, turn_id)
            revision = room.conversation.revision + 1
            room.conversation = replace(room.conversation, revision=revision)

    async def drop(self, turn_id: str, ending: Ending | None = None) -> None:
        step = self._pending(turn_id)
        if step is None:
            return
        self._release(step)
        if step.turn.background and ending is not None:
            state, reason = ending
            step.turn = replace(step.turn, state=state, reason=reason, job=b"", said=None)
        else:
            self._state.forget_step(turn_id)

    async def find(self, organisation_id: str, turn_id: str) -> Turn:
        self._state.refresh()
        return self._state.step(organisation_id, turn_id).turn

    async def delete(self, organisation_id: str, turn_id: str) -> None:
        self._state.refresh()
        if self._state.step(organisation_id, turn_id).turn.state.is_pending:
            raise KeyError(turn_id)
        self._state.forget_step(turn_id)

    async def sweep(self) -> list[Pending]:
        self._state.refresh()
        turns = [step.turn for step in self._state.steps.values()]
        return [
            Pending(turn.id, turn.organisation_id, turn.call_id)
            for turn in turns
            if turn.state.is_pending
        ]

    def _release(self, step: Step) -> None:
        """Its call does not work on its conversation any more."""
        room = self._state.rooms.get(step.turn.conversation_id or "")
        if room is not None:
            room.conversation = _touched(room.conversation, self._state.clock.now())

    def _pending(self, turn_id: str) -> Step | None:
        self._state.refresh()
        step = self._state.steps.get(turn_id)
        return step if step is not None and step.turn.state.is_pending else None


class MemoryTurnLogs(TurnLogs):
    """Made by `MemoryConversations`."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def unfinished(self) -> list[Turn]:
        self._state.refresh()
        turns = [step.turn for step in self._state.steps.values()]
        return [turn for turn in turns if turn.background and turn.state.is_pending]

    async def append(self, turn_id: str, position: int, events: bytes) -> None:
        self._state.refresh()
        step = self._state.steps.get(turn_id)
        if step is None or not step.turn.state.is_pending:
            raise KeyError(turn_id)
        if step.log[position : position + 1] == [events]:
            return
        if position != len(step.log):
            raise StaleAttempt
        step.log.append(events)

    async def read(self, turn_id: str) -> list[bytes]:
        self._state.refresh()
        step = self._state.steps.get(turn_id)
        return [] if step is None else list(step.log)


class MemorySummaries(Summaries):
    """Made by `MemoryConversations`."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def store(
        self,
        organisation_id: str,
        text: str,
        covered: Sequence[str],
        *,
        conversation_id: str | None,
        previous_id: str | None,
    ) -> None:
        self._state.refresh()
        places = self._state.places(organisation_id, conversation_id, previous_id)
        first = places[: len(covered)]
        require_covered([place.item.id for place in first], covered)
        known = newest_summary(places)
        if known is not None and known.items > len(covered):
            return
        older = [place for place in first if place.number in place.summaries]
        freed = sum(summary_bytes(each.summaries[each.number].text) for each in older)
        self._state.require_bytes(organisation_id, summary_bytes(text) - freed)
        for place in older:
            del place.summaries[place.number]
        last = first[-1]
        last.summaries[last.number] = Summary(text, len(covered))


def _touched(conversation: Conversation, now: float, least: int = 0) -> Conversation:
    return replace(conversation, expires_at=now + max(conversation.ttl_seconds, least))


def _opened(turn: Turn) -> Turn:
    return replace(turn, state=TurnState.OPEN, attempt=0, said=None)


def _number(room: Room, item_id: str) -> int:
    """The first of this id. Raises KeyError."""
    for at, entry in room.entries.items():
        if entry.item.id == item_id:
            return at
    raise KeyError(item_id)
