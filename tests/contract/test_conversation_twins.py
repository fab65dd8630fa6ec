"""Dialogues in memory are the oracle: random verbs on them and on the tables, side by side.

Every answer must be the same, or the same error with the same message. The memory sums whatever it
is asked for; the tables count ahead, and after every step their counts must be the sums (C6).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import count
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from forebay.conversation import ConversationSettings
from forebay.conversation.memory import MemoryConversations
from forebay.conversation.sql import SqlConversations
from forebay.conversation.sql_tables import METADATA
from forebay.core.dialogue import (
    Conversation,
    Ending,
    Item,
    Page,
    Past,
    Said,
    Turn,
    TurnState,
)
from forebay.core.errors import ForebayError
from forebay.core.usage import Usage
from forebay.testing.clock import FakeClock
from tests.contract.direct import Direct

Sayings = list[tuple[str, list[str]]]
BOUNDS = ConversationSettings(max_items=8, max_bytes=1_200, organisation_bytes=2_000)
ORGANISATIONS = ("org_a", "org_b")
CONVERSATIONS = ("conv_1", "conv_2")
TURNS = ("resp_1", "resp_2", "resp_3", "resp_4", "resp_5")
ROLES = ("system", "user", "assistant")

# Mostly of the organisation that has it.
rooms = st.sampled_from([*[("org_a", "conv_1")] * 6, ("org_b", "conv_1"), ("org_b", "conv_2")])
owners = st.sampled_from(["org_a", "org_a", "org_a", "org_b"])
turn_ids = st.sampled_from(TURNS)
usually = st.sampled_from([True, True, False])
# One of the turns that were begun last.
backs = st.integers(1, 3)
# All times are multiples of 20 s, so that much is looked at in the moment that it expires.
seconds = st.sampled_from([200.0, 60.0, 40.0, 20.0])
metadata = st.dictionaries(st.sampled_from(["a", "ä"]), st.sampled_from(["", "x" * 300]))
texts = st.sampled_from(["", "ä", "x" * 100, "x" * 300])
# What an item says; its id is the machine's to give.
sayings = st.lists(st.tuples(st.sampled_from(ROLES), st.lists(texts, max_size=2)), max_size=2)
# The differences that there may be between what the tables count and what they hold.
WRONG = {
    "bytes of an organisation": """
        SELECT organisation_id FROM dialogue_organisations AS o WHERE stored_bytes !=
        (SELECT coalesce(sum(own_bytes + item_bytes), 0) FROM conversations AS c
         WHERE c.organisation_id = o.organisation_id) +
        (SELECT coalesce(sum(own_bytes + item_bytes), 0) FROM turns AS t
         WHERE t.organisation_id = o.organisation_id) +
        (SELECT coalesce(sum(size_bytes), 0) FROM summaries AS s
         WHERE s.organisation_id = o.organisation_id)""",
    "items of a conversation": """
        SELECT id FROM conversations AS c WHERE item_count != (SELECT count(*)
        FROM dialogue_items WHERE conversation_id = c.id)""",
    "bytes of a conversation": """
        SELECT id FROM conversations AS c WHERE item_bytes != (SELECT coalesce(sum(size_bytes), 0)
        FROM dialogue_items WHERE conversation_id = c.id)""",
    "bytes of a turn": """
        SELECT id FROM turns AS t WHERE item_bytes != (SELECT coalesce(sum(size_bytes), 0)
        FROM dialogue_items WHERE turn_id = t.id AND conversation_id IS NULL)""",
    "own bytes of a turn": """
        SELECT id FROM turns AS t WHERE own_bytes != 100 + length(record) +
        coalesce(length(job), 0) + (SELECT coalesce(sum(length(events)), 0)
        FROM turn_logs WHERE turn_id = t.id)""",
    "an item of nobody": """
        SELECT id FROM dialogue_items WHERE turn_id IS NULL AND conversation_id IS NULL""",
    "an item that is seen too early": """
        SELECT i.id FROM dialogue_items AS i JOIN turns AS t ON t.id = i.turn_id
        WHERE t.state != 'shown' AND i.conversation_id IS NOT NULL""",
}


class Twins(RuleBasedStateMachine):
    """Two stores, one clock, one sequence of verbs."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = FakeClock()
        self.numbers = count(1)
        self.begun: list[str] = []
        self.database = Direct(METADATA)
        self.memory = MemoryConversations(BOUNDS, self.clock)
        self.sql = SqlConversations(self.database, BOUNDS, self.clock)

    def teardown(self) -> None:
        try:
            self.look_at_turns()
            self.look_at_conversations()
        finally:
            self.runner.close()
            self.database.engine.dispose()

    def both(self, verb: Callable[[Any], Awaitable[Any]]) -> Any:
        """Do it to both; the answers must be equal."""
        expected, found = (self.runner.run(answer_of(verb, it)) for it in (self.memory, self.sql))
        assert found == expected
        return expected

    def items(self, said: Sayings) -> tuple[Item, ...]:
        """One id in five is not fresh."""
        numbers = (next(self.numbers) for _ in said)
        ids = (f"msg_{number if number % 5 else 1}" for number in numbers)
        return tuple(
            Item(id, role, tuple(parts)) for id, (role, parts) in zip(ids, said, strict=True)
        )

    def newest(self, back: int) -> str | None:
        return self.begun[-back] if 0 < back <= len(self.begun) else None

    def item_id(self, room: tuple[str, str], choice: int) -> str:
        """Of an item that the conversation has, if it has any."""
        page = Page(100, newest_first=False)
        known = self.both(lambda it: it.items(*room, page))
        items = [each.id for each in known if isinstance(each, Item)]
        return items[choice % len(items)] if items else "msg_unknown"

    @initialize(data=metadata, said=sayings)
    def create_first(self, data: dict[str, str], said: Sayings) -> None:
        self.create(("org_a", "conv_1"), 200.0, data, said)

    @rule(room=rooms, lives=seconds, data=metadata, said=sayings)
    def create(
        self, room: tuple[str, str], lives: float, data: dict[str, str], said: Sayings
    ) -> None:
        (organisation, id), now, items = room, self.clock.now(), self.items(said)
        made = Conversation(id, organisation, now, int(lives), now + lives, data)
        self.both(lambda it: it.create(made, items))

    @rule(room=rooms, data=metadata)
    def annotate(self, room: tuple[str, str], data: dict[str, str]) -> None:
        self.both(lambda it: it.annotate(*room, data))

    @rule(room=rooms, said=sayings)
    def add(self, room: tuple[str, str], said: Sayings) -> None:
        items = self.items(said)
        self.both(lambda it: it.add(*room, items))

    @rule(room=rooms, choice=st.integers(0, 5))
    def remove_item(self, room: tuple[str, str], choice: int) -> None:
        item_id = self.item_id(room, choice)
        self.both(lambda it: it.item(*room, item_id))
        self.both(lambda it: it.remove_item(*room, item_id))

    @rule(
        room=rooms,
        limit=st.integers(0, 4),
        choice=st.none() | st.integers(0, 5),
        newest_first=st.booleans(),
    )
    def page(
        self, room: tuple[str, str], limit: int, choice: int | None, newest_first: bool
    ) -> None:
        after = None if choice is None else self.item_id(room, choice)
        self.both(lambda it: it.items(*room, Page(limit, after, newest_first)))

    @rule(room=rooms)
    def delete(self, room: tuple[str, str]) -> None:
        self.both(lambda it: it.delete(*room))

    @rule(
        room=rooms,
        id=turn_ids,
        lives=seconds,
        said=sayings,
        late=st.sampled_from([0, 0, 0, 0, 1]),
        told=usually,
    )
    def go_on(
        self,
        room: tuple[str, str],
        id: str,
        lives: float,
        said: Sayings,
        late: int,
        told: bool,
    ) -> None:
        """With a conversation."""
        organisation, conversation_id = room
        known = self.both(lambda it: it.find(*room))
        revision = known.revision + late if isinstance(known, Conversation) else 0
        turn = self.turn(organisation, id, lives, said)
        self.begin(replace(turn, conversation_id=conversation_id), revision, told)

    @rule(
        organisation=owners,
        id=turn_ids,
        back=st.sampled_from([1, 1, 1, 2, 0]),
        lives=seconds,
        said=sayings,
        told=usually,
    )
    def chain(
        self,
        organisation: str,
        id: str,
        back: int,
        lives: float,
        said: Sayings,
        told: bool,
    ) -> None:
        """After one of the newest turns, or the first of a chain."""
        turn = self.turn(organisation, id, lives, said)
        self.begin(replace(turn, previous_id=self.newest(back)), 0, told)

    def turn(self, organisation: str, id: str, lives: float, said: Sayings) -> Turn:
        """Half of them in the background."""
        now, items = self.clock.now(), self.items(said)
        turn = Turn(id, organisation, f"call_{id}", now, now + lives, items, record=id.encode())
        return replace(turn, background=True, job=b"job") if next(self.numbers) % 2 else turn

    def begin(self, turn: Turn, revision: int, told: bool) -> None:
        if self.both(lambda it: it.turns.begin(turn, revision=revision)) is not None:
            return
        self.begun.append(turn.id)
        if told:
            for attempt, text in ((1, "early"), (3, "yes"), (2, "late")):
                self.keep(turn.id, attempt, text)
            self.show(turn.id)
            self.past(turn.organisation_id, None, turn.id)

    @rule(back=backs, attempt=st.integers(1, 3), text=texts)
    def keep_newest(self, back: int, attempt: int, text: str) -> None:
        self.keep(self.newest(back) or "resp_unknown", attempt, text)

    def keep(self, id: str, attempt: int, text: str) -> None:
        number = next(self.numbers)
        said = Said(Item(f"msg_{number}", "assistant", (text,)), Usage(number, attempt), number)
        self.both(lambda it: it.turns.keep(id, attempt, said))

    @rule(back=backs)
    def show_newest(self, back: int) -> None:
        self.show(self.newest(back) or "resp_unknown")

    def show(self, id: str) -> None:
        self.both(lambda it: it.turns.show(id))

    @rule(back=backs, ending=st.sampled_from([None, Ending(TurnState.CANCELLED, "left")]))
    def drop(self, back: int, ending: Ending | None) -> None:
        id = self.newest(back) or "resp_unknown"
        self.both(lambda it: it.turns.drop(id, ending))

    @rule(back=backs, position=st.integers(0, 2), events=st.binary(max_size=300))
    def log(self, back: int, position: int, events: bytes) -> None:
        id = self.newest(back) or "resp_unknown"
        self.both(lambda it: it.logs.append(id, position, events))

    @rule(organisation=owners, back=st.integers(0, 3), share=st.integers(1, 8), text=texts)
    def summarise(self, organisation: str, back: int, share: int, text: str) -> None:
        """What was said first in a conversation (`back` 0), or up to one of the newest turns."""
        id = self.newest(back)
        where = {"conversation_id": None if id else "conv_1", "previous_id": id}
        past = self.both(lambda it: it.turns.past(organisation, **where))
        ids = [each.id for each in past.items] if isinstance(past, Past) else []
        covered = ids[:share] or ["msg_unknown"]
        self.both(lambda it: it.summaries.store(organisation, text, covered, **where))

    @rule(organisation=owners, back=backs)
    def delete_turn(self, organisation: str, back: int) -> None:
        """One of the newest; with what comes after it, or without."""
        id = self.newest(back) or "resp_unknown"
        self.past(organisation, None, id)
        self.both(lambda it: it.turns.delete(organisation, id))
        self.look_at_turns()

    @rule(passed=st.sampled_from([20.0, 20.0, 60.0]))
    def advance(self, passed: float) -> None:
        self.clock.advance(passed)
        self.look_at_turns()
        self.look_at_conversations()

    @rule(passed=st.sampled_from([0.0, 20.0]))
    def sweep(self, passed: float) -> None:
        self.clock.advance(passed)
        self.both(lambda it: it.turns.sweep())

    @rule()
    def look_at_turns(self) -> None:
        """As both organisations see them (C1)."""
        for organisation in ORGANISATIONS:
            for id in TURNS:
                self.both(lambda it, at=(organisation, id): it.turns.find(*at))
                self.past(organisation, None, id)
        for id in TURNS:
            self.both(lambda it, id=id: it.logs.read(id))
        self.both(lambda it: it.logs.unfinished())

    def look_at_conversations(self) -> None:
        for organisation in ORGANISATIONS:
            for id in CONVERSATIONS:
                self.both(lambda it, at=(organisation, id): it.find(*at))
                self.past(organisation, id, None)

    def past(self, organisation: str, conversation_id: str | None, previous_id: str | None) -> None:
        self.both(
            lambda it: it.turns.past(
                organisation, conversation_id=conversation_id, previous_id=previous_id
            )
        )

    @invariant()
    def counts_are_sums(self) -> None:
        with self.database.engine.begin() as connection:
            for what, rows in WRONG.items():
                assert connection.exec_driver_sql(rows).all() == [], f"C6: {what}"


async def answer_of(verb: Callable[[Any], Awaitable[Any]], store: Any) -> Any:
    """The answer, or the error in a form that can be compared."""
    try:
        return await verb(store)
    except (ForebayError, KeyError, ValueError) as error:
        return type(error), str(error)


Twins.TestCase.settings = settings(
    max_examples=30,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestTwins = Twins.TestCase
