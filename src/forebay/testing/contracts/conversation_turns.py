"""What every Turns must do: C4, C5 and chains. Fixtures: as in `conversation.py`.

Not here: bounds (`conversation_bounds.py`), whose a turn is and when it expires (`conversation.py`).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from forebay.conversation import Conversations, Turns
from forebay.core.delta import FinishReason
from forebay.core.dialogue import Item, Said, TurnState
from forebay.core.errors import ConversationLocked
from forebay.core.usage import Usage
from forebay.testing.clock import FakeClock
from forebay.testing.contracts.conversation import (
    CONVERSATION,
    NOW,
    ids_of,
    message,
    past_of,
    refusal_of,
    said,
    tell,
    turn_of,
)


async def test_a_turn_is_found_in_every_state_as_it_was_told(turns: Turns) -> None:
    turn = turn_of("resp_1", record=b"\x00{}", input=(message("msg_1"), message("msg_2", "☃")))
    await turns.begin(turn)
    assert await turns.find("org_a", "resp_1") == turn
    answer = Item("msg_3", "assistant", ("it", "is"), complete=False)
    told = Said(answer, Usage(5, 2, 1, (FinishReason.LENGTH, None), "text"))
    await turns.keep("resp_1", 2, told)
    kept = replace(turn, state=TurnState.KEPT, attempt=2, said=told)
    assert await turns.find("org_a", "resp_1") == kept
    await turns.show("resp_1")
    assert await turns.find("org_a", "resp_1") == replace(kept, state=TurnState.SHOWN)


async def test_the_same_turn_begun_again_changes_nothing(
    conversations: Conversations, turns: Turns
) -> None:
    await conversations.create(CONVERSATION, [])
    turn = turn_of("resp_1", conversation_id="conv_1")
    await turns.begin(turn)
    await turns.keep("resp_1", 1, said("resp_1"))
    await turns.begin(replace(turn, input=()), revision=5)
    assert (await turns.find("org_a", "resp_1")).state is TurnState.KEPT
    await turns.show("resp_1")
    await turns.begin(turn, revision=1)
    assert (await turns.find("org_a", "resp_1")).state is TurnState.SHOWN
    assert await ids_of(conversations) == ["resp_1_in", "resp_1_out"]


async def test_c4_a_conversation_has_one_turn_at_a_time(
    conversations: Conversations, turns: Turns
) -> None:
    await conversations.create(CONVERSATION, [])
    await turns.begin(turn_of("resp_1", conversation_id="conv_1"))
    for _ in range(2):
        with pytest.raises(ConversationLocked, match="Another call is working"):
            await turns.begin(turn_of("resp_2", conversation_id="conv_1"))
        assert (await turns.past("org_a", conversation_id="conv_1", previous_id=None)).locked
        await turns.keep("resp_1", 1, said("resp_1"))
    await refusal_of(turns.find("org_a", "resp_2"))
    await turns.drop("resp_1")
    assert not (await turns.past("org_a", conversation_id="conv_1", previous_id=None)).locked
    await turns.begin(turn_of("resp_2", conversation_id="conv_1"))


async def test_c4_a_turn_is_made_from_the_present_revision_only(
    conversations: Conversations, turns: Turns
) -> None:
    await conversations.create(CONVERSATION, [message("msg_1")])
    await conversations.add("org_a", "conv_1", [message("msg_2")])
    late = turn_of("resp_1", conversation_id="conv_1")
    for revision in (0, 2):
        with pytest.raises(ConversationLocked, match="changed while the call was prepared"):
            await turns.begin(late, revision=revision)
    await tell(turns, late, revision=1)
    await conversations.remove_item("org_a", "conv_1", "msg_1")
    past = await turns.past("org_a", conversation_id="conv_1", previous_id=None)
    assert past.revision == 3
    with pytest.raises(ConversationLocked):
        await turns.begin(turn_of("resp_2", conversation_id="conv_1"), revision=2)


async def test_c4_of_calls_that_go_on_from_it_at_once_one_is_let_in(
    conversations: Conversations, turns: Turns
) -> None:
    await conversations.create(CONVERSATION, [])
    ids = [f"resp_{number}" for number in range(20)]
    outcomes = await asyncio.gather(
        *(tell(turns, turn_of(id, conversation_id="conv_1")) for id in ids),
        return_exceptions=True,
    )
    refused = [each for each in outcomes if isinstance(each, ConversationLocked)]
    assert len(refused) == 19
    (told,) = [each for each in outcomes if each not in refused]
    assert not isinstance(told, BaseException)
    assert await ids_of(conversations) == [f"{told.id}_in", f"{told.id}_out"]


async def test_c5_nothing_of_a_turn_is_seen_before_it_is_shown(
    conversations: Conversations, turns: Turns
) -> None:
    await conversations.create(CONVERSATION, [message("msg_1")])
    await turns.begin(turn_of("resp_1", conversation_id="conv_1"))
    for _ in range(2):
        assert await ids_of(conversations) == ["msg_1"]
        past = await turns.past("org_a", conversation_id="conv_1", previous_id=None)
        assert [item.id for item in past.items] == ["msg_1"]
        assert await refusal_of(past_of(turns, "resp_1")) == ("resp_1",)
        assert await refusal_of(turns.delete("org_a", "resp_1")) == ("resp_1",)
        await refusal_of(turns.begin(turn_of("resp_2", previous_id="resp_1")))
        await refusal_of(conversations.item("org_a", "conv_1", "resp_1_in"))
        await turns.keep("resp_1", 1, said("resp_1"))
    await turns.show("resp_1")
    assert await ids_of(conversations) == ["msg_1", "resp_1_in", "resp_1_out"]
    assert (await conversations.item("org_a", "conv_1", "resp_1_out")).role == "assistant"


async def test_c5_of_an_answer_kept_twice_the_newer_attempts_stays(turns: Turns) -> None:
    await turns.begin(turn_of("resp_1"))
    newest = ((2, "second", 2), (1, "first", 2), (3, "third", 3), (2, "second", 3))
    for attempt, text, stays in newest:
        await turns.keep("resp_1", attempt, said("resp_1", text))
        assert (await turns.find("org_a", "resp_1")).attempt == stays
    await turns.keep("resp_1", 3, said("resp_1", "third again"))
    found = await turns.find("org_a", "resp_1")
    assert found.attempt == 3
    assert found.said == said("resp_1", "third again")
    await turns.show("resp_1")
    await turns.keep("resp_1", 4, said("resp_1", "late"))
    assert (await turns.find("org_a", "resp_1")).said == said("resp_1", "third again")


async def test_showing_dropping_and_keeping_may_be_repeated_in_every_state(
    conversations: Conversations, turns: Turns
) -> None:
    await conversations.create(CONVERSATION, [])
    for id in ("resp_unknown", "resp_1"):
        await turns.keep(id, 1, said(id))
        await turns.show(id)
        await turns.drop(id)
        assert await turns.sweep() == []
    told = await tell(turns, turn_of("resp_1", conversation_id="conv_1"))
    await turns.drop("resp_1")
    await turns.show("resp_1")
    assert await turns.find("org_a", "resp_1") == told
    assert (await conversations.find("org_a", "conv_1")).revision == 1
    await turns.begin(turn_of("resp_2", conversation_id="conv_1"), revision=1)
    await turns.keep("resp_2", 1, said("resp_2"))
    await turns.drop("resp_2")
    await turns.show("resp_2")
    await refusal_of(turns.find("org_a", "resp_2"))
    assert await ids_of(conversations) == ["resp_1_in", "resp_1_out"]
    assert (await conversations.find("org_a", "conv_1")).revision == 1


async def test_a_turn_shown_without_an_answer_is_dropped(
    conversations: Conversations, turns: Turns
) -> None:
    await conversations.create(CONVERSATION, [])
    await turns.begin(turn_of("resp_1", conversation_id="conv_1"))
    await turns.show("resp_1")
    await refusal_of(turns.find("org_a", "resp_1"))
    assert await turns.sweep() == []
    assert await ids_of(conversations) == []
    await turns.begin(turn_of("resp_2", conversation_id="conv_1"))


async def test_the_past_of_a_chain_is_its_turns_in_order_and_it_may_fork(turns: Turns) -> None:
    await tell(turns, turn_of("resp_1"))
    await tell(turns, turn_of("resp_2", previous_id="resp_1"))
    await tell(turns, turn_of("resp_3", previous_id="resp_1"))
    await tell(turns, turn_of("resp_4", previous_id="resp_3"))
    first = ["resp_1_in", "resp_1_out"]
    assert await past_of(turns, "resp_1") == first
    assert await past_of(turns, "resp_2") == [*first, "resp_2_in", "resp_2_out"]
    third = [*first, "resp_3_in", "resp_3_out"]
    assert await past_of(turns, "resp_4") == [*third, "resp_4_in", "resp_4_out"]


async def test_a_chain_may_begin_at_any_turn_of_a_conversation(
    conversations: Conversations, turns: Turns
) -> None:
    """Its past is what the conversation had up to and with that turn, and has still."""
    await conversations.create(CONVERSATION, [message("msg_1")])
    await tell(turns, turn_of("resp_1", conversation_id="conv_1"))
    await conversations.add("org_a", "conv_1", [message("msg_2")])
    await tell(turns, turn_of("resp_2", conversation_id="conv_1"), revision=2)
    await tell(turns, turn_of("resp_3", previous_id="resp_1"))
    begun = ["msg_1", "resp_1_in", "resp_1_out"]
    assert await past_of(turns, "resp_1") == begun
    assert await past_of(turns, "resp_2") == [*begun, "msg_2", "resp_2_in", "resp_2_out"]
    assert await past_of(turns, "resp_3") == [*begun, "resp_3_in", "resp_3_out"]
    await conversations.remove_item("org_a", "conv_1", "msg_1")
    assert await past_of(turns, "resp_3") == [*begun[1:], "resp_3_in", "resp_3_out"]
    await conversations.delete("org_a", "conv_1")
    assert await past_of(turns, "resp_3") == ["resp_3_in", "resp_3_out"]


async def test_what_is_deleted_in_the_middle_of_a_chain_is_all_that_is_lacking(
    turns: Turns,
) -> None:
    await tell(turns, turn_of("resp_1"))
    for number in (2, 3, 4):
        await tell(turns, turn_of(f"resp_{number}", previous_id=f"resp_{number - 1}"))
    await turns.delete("org_a", "resp_2")
    await turns.delete("org_a", "resp_3")
    assert await refusal_of(past_of(turns, "resp_3")) == ("resp_3",)
    expected = ["resp_1_in", "resp_1_out", "resp_4_in", "resp_4_out"]
    assert await past_of(turns, "resp_4") == expected
    assert (await turns.find("org_a", "resp_4")).previous_id == "resp_3", "as it was asked for"
    await turns.delete("org_a", "resp_1")
    assert await past_of(turns, "resp_4") == expected[2:]


async def test_c2_what_expires_in_the_middle_of_a_chain_is_all_that_is_lacking(
    turns: Turns, clock: FakeClock
) -> None:
    await tell(turns, turn_of("resp_1"))
    await tell(turns, turn_of("resp_2", previous_id="resp_1", expires_at=NOW + 10))
    await tell(turns, turn_of("resp_3", previous_id="resp_2", expires_at=NOW + 10))
    await tell(turns, turn_of("resp_4", previous_id="resp_3"))
    clock.advance(10)
    expected = ["resp_1_in", "resp_1_out", "resp_4_in", "resp_4_out"]
    assert await past_of(turns, "resp_4") == expected
    await turns.sweep()
    assert await past_of(turns, "resp_4") == expected


async def test_a_deleted_turn_leaves_its_items_to_its_conversation(
    conversations: Conversations, turns: Turns
) -> None:
    await conversations.create(CONVERSATION, [])
    await tell(turns, turn_of("resp_1", conversation_id="conv_1"))
    await tell(turns, turn_of("resp_2", conversation_id="conv_1"), revision=1)
    await turns.delete("org_a", "resp_1")
    await refusal_of(turns.find("org_a", "resp_1"))
    every = ["resp_1_in", "resp_1_out", "resp_2_in", "resp_2_out"]
    assert await ids_of(conversations) == every
    assert await past_of(turns, "resp_2") == every
    assert (await conversations.find("org_a", "conv_1")).revision == 2
    await conversations.remove_item("org_a", "conv_1", "resp_1_out")
    assert await ids_of(conversations) == ["resp_1_in", "resp_2_in", "resp_2_out"]
