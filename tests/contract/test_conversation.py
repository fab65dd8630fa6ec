"""The dialogue contracts in memory and on SQLite, and what only a store on disk can get wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from forebay.conversation import Conversations, ConversationSettings, Summaries, TurnLogs, Turns
from forebay.conversation.memory import MemoryConversations
from forebay.conversation.rules import CALL_SECONDS
from forebay.conversation.sql import SqlConversations
from forebay.conversation.sql_tables import METADATA
from forebay.core.dialogue import Pending, Summary
from forebay.migrations import Database, open_database
from forebay.testing.clock import FakeClock
from forebay.testing.contracts.conversation import *  # noqa: F403
from forebay.testing.contracts.conversation import (
    CONVERSATION,
    NOW,
    OTHER,
    SETTINGS,
    ids_of,
    message,
    past_of,
    refusal_of,
    said,
    tell,
    turn_of,
)
from forebay.testing.contracts.conversation_bounds import *  # noqa: F403
from forebay.testing.contracts.conversation_logs import *  # noqa: F403
from forebay.testing.contracts.conversation_summaries import *  # noqa: F403
from forebay.testing.contracts.conversation_turns import *  # noqa: F403


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(now=NOW)


@pytest.fixture(params=["memory", "sql"])
async def conversations(
    request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock
) -> AsyncIterator[MemoryConversations | SqlConversations]:
    if request.param == "memory":
        yield MemoryConversations(SETTINGS, clock)
        return
    database = open_database(tmp_path / "forebay.db")
    yield SqlConversations(database, SETTINGS, clock)
    database.close()


@pytest.fixture
def turns(conversations: MemoryConversations | SqlConversations) -> Turns:
    return conversations.turns


@pytest.fixture
def logs(conversations: MemoryConversations | SqlConversations) -> TurnLogs:
    return conversations.logs


@pytest.fixture
def settings() -> ConversationSettings:
    return SETTINGS


@pytest.fixture
def summaries(conversations: MemoryConversations | SqlConversations) -> Summaries:
    return conversations.summaries


def rows_of(connection: sa.Connection) -> dict[str, int]:
    """How many every table has."""
    count = sa.func.count()
    return {
        name: connection.scalar(sa.select(count).select_from(table)) or 0
        for name, table in METADATA.tables.items()
    }


async def say_all(conversations: Conversations, turns: Turns) -> None:
    """A conversation with a turn of each state that it can have, and a chain."""
    await conversations.create(OTHER, [message("msg_1")])
    await tell(turns, turn_of("resp_1", conversation_id="conv_2"))
    await turns.begin(turn_of("resp_2", conversation_id="conv_2"), revision=1)
    await tell(turns, turn_of("resp_3", previous_id="resp_1"))
    await turns.begin(turn_of("resp_4", previous_id="resp_3"))
    await turns.keep("resp_4", 1, said("resp_4"))


async def summarise_all(conversations: SqlConversations) -> None:
    """The conversation of `say_all`, and its chain."""
    ids = await ids_of(conversations, "conv_2")
    places = (("conv_2", None, ids[:2]), (None, "resp_3", [*ids, "resp_3_in"]))
    for conversation_id, previous_id, covered in places:
        where = {"conversation_id": conversation_id, "previous_id": previous_id}
        await conversations.summaries.store("org_a", "sum", covered, **where)


async def test_what_was_said_outlives_the_process(tmp_path: Path, clock: FakeClock) -> None:
    database = open_database(tmp_path / "forebay.db")
    before = SqlConversations(database, SETTINGS, clock)
    await say_all(before, before.turns)
    await summarise_all(before)
    ids = [f"resp_{number}" for number in (1, 2, 3, 4)]
    told = [await before.turns.find("org_a", id) for id in ids]
    database.close()

    database = open_database(tmp_path / "forebay.db")
    after = SqlConversations(database, SETTINGS, clock)
    until = clock.now() + CALL_SECONDS  # a call works on it
    assert await after.find("org_a", "conv_2") == replace(OTHER, revision=1, expires_at=until)
    assert [await after.turns.find("org_a", id) for id in ids] == told
    assert await ids_of(after, "conv_2") == ["msg_1", "resp_1_in", "resp_1_out"]
    assert await after.turns.sweep() == [
        Pending("resp_2", "org_a", "call_resp_2"),
        Pending("resp_4", "org_a", "call_resp_4"),
    ]
    await after.turns.show("resp_4")
    assert len(await past_of(after.turns, "resp_4")) == 7
    past = await after.turns.past("org_a", conversation_id=None, previous_id="resp_4")
    assert past.summary == Summary("sum", 4)
    database.close()


async def test_c2_what_expires_while_the_store_is_closed_is_gone_when_it_opens(
    tmp_path: Path, clock: FakeClock
) -> None:
    database = open_database(tmp_path / "forebay.db")
    before = SqlConversations(database, SETTINGS, clock)
    await say_all(before, before.turns)
    await summarise_all(before)
    database.close()

    clock.advance(CALL_SECONDS)
    database = open_database(tmp_path / "forebay.db")
    after = SqlConversations(database, SETTINGS, clock)
    assert await refusal_of(after.find("org_a", "conv_2")) == ("conv_2",)
    assert await refusal_of(after.turns.find("org_a", "resp_3")) == ("resp_3",)
    assert await after.turns.sweep() == []
    rows = await database.run(rows_of)
    assert rows.pop("dialogue_organisations") == 1
    assert set(rows.values()) == {0}
    database.close()


async def test_what_is_deleted_leaves_no_row(tmp_path: Path, clock: FakeClock) -> None:
    database = open_database(tmp_path / "forebay.db")
    conversations = SqlConversations(database, SETTINGS, clock)
    await say_all(conversations, conversations.turns)
    await summarise_all(conversations)
    await conversations.delete("org_a", "conv_2")
    rows = await database.run(rows_of)
    assert (rows["conversations"], rows["turns"], rows["dialogue_items"]) == (0, 2, 4)
    assert rows["summaries"] == 0
    await conversations.turns.drop("resp_4")
    await conversations.turns.delete("org_a", "resp_3")
    rows = await database.run(rows_of)
    assert rows.pop("dialogue_organisations") == 1
    assert set(rows.values()) == {0}
    database.close()


async def test_a_sweep_deletes_in_bounded_steps(tmp_path: Path, clock: FakeClock) -> None:
    class Watched:
        """A database that counts what each transaction deletes."""

        def __init__(self, database: Database) -> None:
            self._database = database
            self.steps: list[int] = []

        async def run(self, work: Any) -> Any:
            before = await self._database.run(rows_of)
            answer = await self._database.run(work)
            after = await self._database.run(rows_of)
            self.steps.append(sum(before.values()) - sum(after.values()))
            return answer

    database = open_database(tmp_path / "forebay.db")
    watched = Watched(database)
    settings = replace(SETTINGS, max_items=2_000, max_bytes=10**7, organisation_bytes=10**9)
    conversations = SqlConversations(watched, settings, clock)
    for number in range(3):
        items = [message(f"msg_{item}") for item in range(1_500)]
        await conversations.create(replace(CONVERSATION, id=f"conv_{number}"), items)
    for number in range(150):
        await conversations.create(replace(CONVERSATION, id=f"conv_small_{number}"), [])
        await conversations.turns.begin(turn_of(f"resp_{number}", expires_at=NOW + 10))
    clock.advance(100)
    watched.steps.clear()
    assert await conversations.turns.sweep() == []
    assert sum(watched.steps) == 3 * 1_501 + 150 + 150 * 2
    assert max(watched.steps) <= 2_000 + 100
    database.close()
