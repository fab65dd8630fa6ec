"""What every Summaries must do (C8), and what it counts. Fixtures: as in `conversation.py`, and `summaries`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from forebay.conversation import Conversations, Summaries, Turns
from forebay.core.dialogue import Summary
from forebay.core.errors import ConversationFull
from forebay.testing.clock import FakeClock
from forebay.testing.contracts.conversation import (
    CONVERSATION,
    OTHER,
    ids_of,
    message,
    past_of,
    refusal_of,
    tell,
    turn_of,
)
from forebay.testing.contracts.conversation_bounds import fill, require_free

ROW_BYTES = 100


async def summarise(
    conversations: Conversations, summaries: Summaries, items: int, text: str = "sum"
) -> None:
    """So many of the first items of conv_1."""
    covered = (await ids_of(conversations))[:items]
    await summaries.store("org_a", text, covered, conversation_id="conv_1", previous_id=None)


async def summarise_chain(
    turns: Turns, summaries: Summaries, previous_id: str, items: int, text: str = "sum"
) -> None:
    covered = (await past_of(turns, previous_id))[:items]
    await summaries.store("org_a", text, covered, conversation_id=None, previous_id=previous_id)


async def found(
    turns: Turns, *, conversation_id: str | None = None, previous_id: str | None = None
) -> Summary | None:
    where = {"conversation_id": conversation_id, "previous_id": previous_id}
    return (await turns.past("org_a", **where)).summary


async def talk(conversations: Conversations, turns: Turns) -> None:
    """conv_1 with a system message and two turns; a chain of two that begins after its first turn."""
    await conversations.create(CONVERSATION, [message("msg_1", role="system")])
    await tell(turns, turn_of("resp_1", conversation_id="conv_1"))
    await tell(turns, turn_of("resp_2", conversation_id="conv_1"), revision=1)
    await tell(turns, turn_of("resp_3", previous_id="resp_1"))
    await tell(turns, turn_of("resp_4", previous_id="resp_3"))


async def test_c8_a_summary_is_found_with_the_past_that_it_is_of(
    conversations: Conversations, turns: Turns, summaries: Summaries
) -> None:
    await talk(conversations, turns)
    assert await found(turns, conversation_id="conv_1") is None
    await summarise(conversations, summaries, 3, "one ☃")
    assert await found(turns, conversation_id="conv_1") == Summary("one ☃", 3)
    assert await found(turns, previous_id="resp_1") == Summary("one ☃", 3)
    assert await found(turns, previous_id="resp_4") == Summary("one ☃", 3)
    await tell(turns, turn_of("resp_5", conversation_id="conv_1"), revision=2)
    await conversations.add("org_a", "conv_1", [message("msg_2")])
    assert await found(turns, conversation_id="conv_1") == Summary("one ☃", 3)


async def test_c8_a_summary_of_a_chain_is_of_what_goes_on_from_it_and_of_nothing_else(
    conversations: Conversations, turns: Turns, summaries: Summaries
) -> None:
    await talk(conversations, turns)
    await summarise_chain(turns, summaries, "resp_4", 5)
    await tell(turns, turn_of("resp_5", previous_id="resp_3"))
    for previous_id in ("resp_3", "resp_4", "resp_5"):
        assert await found(turns, previous_id=previous_id) == Summary("sum", 5)
    assert await found(turns, previous_id="resp_2") is None
    assert await found(turns, conversation_id="conv_1") is None


async def test_c8_of_two_summaries_the_one_of_more_items_stays(
    conversations: Conversations, turns: Turns, summaries: Summaries
) -> None:
    await talk(conversations, turns)
    for items, text, stays in (
        (2, "a", "a"),
        (4, "b", "b"),
        (3, "late", "b"),
        (4, "again", "again"),
    ):
        await summarise(conversations, summaries, items, text)
        known = await found(turns, conversation_id="conv_1")
        assert known is not None
        assert known.text == stays
    await conversations.remove_item("org_a", "conv_1", "resp_2_in")
    assert await found(turns, conversation_id="conv_1") is None, "the older ones were replaced"


async def test_c8_what_is_not_the_beginning_of_a_past_is_not_summarised(
    conversations: Conversations, turns: Turns, summaries: Summaries
) -> None:
    """Such as what had an item that was deleted meanwhile."""
    await talk(conversations, turns)
    before = await ids_of(conversations)
    chain = await past_of(turns, "resp_4")
    await conversations.remove_item("org_a", "conv_1", "resp_1_in")
    await turns.delete("org_a", "resp_3")
    for ids, where in (
        (before[:3], {"conversation_id": "conv_1", "previous_id": None}),
        (before[1:2], {"conversation_id": "conv_1", "previous_id": None}),
        ([*before, "msg_9"], {"conversation_id": "conv_1", "previous_id": None}),
        (chain, {"conversation_id": None, "previous_id": "resp_4"}),
        (["msg_1"], {"conversation_id": None, "previous_id": None}),
    ):
        refused = summaries.store("org_a", "sum", ids, **where)
        assert await refusal_of(refused) == (ids[-1],)
    assert await found(turns, conversation_id="conv_1") is None
    assert await found(turns, previous_id="resp_4") is None


async def test_c1_anothers_past_is_not_summarised(
    conversations: Conversations, turns: Turns, summaries: Summaries
) -> None:
    await talk(conversations, turns)
    for where, id in (
        ({"conversation_id": "conv_1", "previous_id": None}, "conv_1"),
        ({"conversation_id": "conv_7", "previous_id": None}, "conv_7"),
        ({"conversation_id": None, "previous_id": "resp_4"}, "resp_4"),
    ):
        assert await refusal_of(summaries.store("org_b", "sum", ["msg_1"], **where)) == (id,)
    assert await found(turns, conversation_id="conv_1") is None


Deletion = Callable[[Conversations, Turns], Awaitable[object]]
# What is deleted, and which summaries stay: of the conversation up to resp_2_in, of the chain up to resp_3.
DELETIONS: dict[str, tuple[Deletion, tuple[bool, bool]]] = {
    "the first item": (lambda it, _: it.remove_item("org_a", "conv_1", "msg_1"), (False, False)),
    "an answer": (lambda it, _: it.remove_item("org_a", "conv_1", "resp_1_out"), (False, False)),
    "the last item": (lambda it, _: it.remove_item("org_a", "conv_1", "resp_2_in"), (False, True)),
    "a later item": (lambda it, _: it.remove_item("org_a", "conv_1", "resp_2_out"), (True, True)),
    "a turn of the chain": (lambda _, turns: turns.delete("org_a", "resp_3"), (True, False)),
    "the chain's newest": (lambda _, turns: turns.delete("org_a", "resp_4"), (True, True)),
    "where the chain begins": (lambda _, turns: turns.delete("org_a", "resp_1"), (True, False)),
    "the conversation": (lambda it, _: it.delete("org_a", "conv_1"), (False, False)),
}


@pytest.mark.parametrize(("delete", "stays"), DELETIONS.values(), ids=DELETIONS)
async def test_c8_a_summary_is_gone_with_anything_that_it_covers(
    conversations: Conversations,
    turns: Turns,
    summaries: Summaries,
    delete: Deletion,
    stays: tuple[bool, bool],
) -> None:
    """And what it counts is free again (C6)."""
    await talk(conversations, turns)
    await summarise(conversations, summaries, 4)
    await summarise_chain(turns, summaries, "resp_4", 5)
    await delete(conversations, turns)
    found_of = {"conversation": False, "chain": False}
    for what, where in (
        ("conversation", {"conversation_id": "conv_1"}),
        ("chain", {"previous_id": "resp_4"}),
        ("chain", {"previous_id": "resp_3"}),
    ):
        with suppress(KeyError):
            found_of[what] |= await found(turns, **where) is not None
    assert tuple(found_of.values()) == stays
    await turns.sweep()


async def test_c8_a_summary_is_gone_when_what_it_covers_expires(
    conversations: Conversations, turns: Turns, summaries: Summaries, clock: FakeClock
) -> None:
    await tell(turns, turn_of("resp_1", expires_at=clock.now() + 50))
    await tell(turns, turn_of("resp_2", previous_id="resp_1"))
    await summarise_chain(turns, summaries, "resp_2", 2)
    await conversations.create(CONVERSATION, [message("msg_1")])
    await tell(turns, turn_of("resp_3", conversation_id="conv_1"))
    await tell(turns, turn_of("resp_4", previous_id="resp_3"))
    await summarise_chain(turns, summaries, "resp_4", 4)
    clock.advance(49.5)
    assert await found(turns, previous_id="resp_2") == Summary("sum", 2)
    clock.advance(0.5)
    assert await found(turns, previous_id="resp_2") is None
    assert await found(turns, previous_id="resp_4") == Summary("sum", 4)
    clock.advance(50)
    assert await found(turns, previous_id="resp_4") is None
    await turns.sweep()
    assert await past_of(turns, "resp_4") == ["resp_4_in", "resp_4_out"]
    assert await found(turns, previous_id="resp_4") is None


async def test_c6_a_summary_counts_until_it_is_gone_or_replaced(
    conversations: Conversations, turns: Turns, summaries: Summaries
) -> None:
    await fill(conversations, turns)
    await summarise(conversations, summaries, 1, "x" * 50)
    await require_free(conversations, 500 - ROW_BYTES - 50)
    await summarise(conversations, summaries, 2, "ä" * 20)
    await require_free(conversations, 500 - ROW_BYTES - 40)
    with pytest.raises(ConversationFull, match="10001 bytes"):
        await summarise(conversations, summaries, 3, "x" * 401)
    assert await found(turns, conversation_id="conv_1") == Summary("ä" * 20, 2)
    await summarise(conversations, summaries, 3, "x" * 400)
    await conversations.remove_item("org_a", "conv_1", "resp_2_out")
    await require_free(conversations, 500 + 105)
    await summarise_chain(turns, summaries, "resp_1", 2, "x" * 5)
    await require_free(conversations, 500 + 105 - ROW_BYTES - 5)
    await turns.delete("org_a", "resp_1")
    await require_free(conversations, 500 + 105 + 3 * ROW_BYTES + 17)


async def test_a_conversation_begun_anew_has_no_summary(
    conversations: Conversations, turns: Turns, summaries: Summaries, clock: FakeClock
) -> None:
    """C2: nor has another one."""
    await talk(conversations, turns)
    await conversations.create(OTHER, [message("msg_1", role="system")])
    await summarise(conversations, summaries, 1)
    assert await found(turns, conversation_id="conv_2") is None
    clock.advance(100)
    again = replace(CONVERSATION, expires_at=clock.now() + 100)
    await conversations.create(again, [message("msg_1", role="system")])
    assert await found(turns, conversation_id="conv_1") is None
