"""What both contracts must refuse, and what counts (C6). Fixtures: as in `conversation.py`.

Counts are looked at from outside: what still fits, to the byte, says what is counted.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

import pytest

from forebay.conversation import Conversations, Turns
from forebay.core.dialogue import Conversation
from forebay.core.errors import ConversationFull
from forebay.testing.clock import FakeClock
from forebay.testing.contracts.conversation import (
    CONVERSATION,
    NOW,
    OTHER,
    SETTINGS,
    message,
    past_of,
    said,
    tell,
    turn_of,
)

ROW_BYTES = 100
PLAIN = replace(CONVERSATION, metadata={})
TOLD_BYTES = 3 * ROW_BYTES + 10  # a turn that says hello and hears it


async def refused(asked: Awaitable[Any], *words: str) -> None:
    with pytest.raises(ConversationFull) as raised:
        await asked
    for word in words:
        assert word in raised.value.message, raised.value.message


async def require_free(
    conversations: Conversations, free_bytes: int, organisation_id: str = "org_a"
) -> None:
    """So many bytes are left to an organisation and not one more: taken, and given back."""
    probe = Conversation("conv_probe", organisation_id, NOW, 10_000, NOW + 10_000)
    text = "x" * (free_bytes - 2 * ROW_BYTES)
    await refused(conversations.create(probe, [message("msg", text + "x")]), "organisation")
    await conversations.create(probe, [message("msg", text)])
    await conversations.delete(organisation_id, probe.id)


async def test_c6_a_conversation_has_so_many_items_and_no_more(
    conversations: Conversations, turns: Turns
) -> None:
    """An answer is counted before it is there: it cannot be refused afterwards."""
    items = [message(f"msg_{number}") for number in range(9)]
    await refused(conversations.create(PLAIN, items), "would have 9 items", "at most 8", "Remove")
    await conversations.create(PLAIN, items[:6])
    await refused(conversations.add("org_a", "conv_1", items[6:]), "9 items", "at most 8")
    await conversations.add("org_a", "conv_1", items[6:7])
    turn = turn_of("resp_1", conversation_id="conv_1")
    await refused(turns.begin(turn, revision=1), "9 items", "at most 8")
    await conversations.remove_item("org_a", "conv_1", "msg_0")
    await tell(turns, turn, revision=2)
    await refused(conversations.add("org_a", "conv_1", items[8:]), "9 items")
    assert await turns.sweep() == []


async def test_c6_a_conversation_has_so_many_bytes_and_no_more(
    conversations: Conversations, turns: Turns
) -> None:
    half = message("msg_1", "ä" * 950)
    await refused(conversations.create(PLAIN, [half, half, message("msg_2", "")]), "4100 bytes")
    await conversations.create(PLAIN, [half])
    over = message("msg_2", "x" * 1_901)
    await refused(conversations.add("org_a", "conv_1", [over]), "4001 bytes", "at most 4000")
    turn = turn_of("resp_1", conversation_id="conv_1", input=(over,))
    await refused(turns.begin(turn), "4001 bytes", "at most 4000", "begin a new conversation")
    await tell(turns, replace(turn, input=(message("msg_2", "x" * 1_900),)))
    await refused(conversations.add("org_a", "conv_1", [message("msg_3", "")]), "4205 bytes")
    await conversations.remove_item("org_a", "conv_1", "resp_1_out")
    await conversations.remove_item("org_a", "conv_1", "msg_1")
    await conversations.add("org_a", "conv_1", [message("msg_3", "x" * 1_900)])


async def test_c6_a_chain_is_bounded_as_a_conversation_is(
    conversations: Conversations, turns: Turns
) -> None:
    await conversations.create(PLAIN, [message("msg_1")])
    await tell(turns, turn_of("resp_1", conversation_id="conv_1"))
    await tell(turns, turn_of("resp_2", conversation_id="conv_1"), revision=1)
    await tell(turns, turn_of("resp_3", previous_id="resp_1"))
    await tell(turns, turn_of("resp_4", previous_id="resp_3"))
    assert len(await past_of(turns, "resp_4")) == 7
    await refused(turns.begin(turn_of("resp_5", previous_id="resp_4")), "9 items", "at most 8")
    await turns.delete("org_a", "resp_3")
    over = (message("msg_2", "x" * (4_000 - 5 * 105 - 99)),)
    long = turn_of("resp_5", previous_id="resp_4", input=over)
    await refused(turns.begin(long), "4001 bytes")
    await tell(turns, turn_of("resp_5", previous_id="resp_4"))


async def test_c6_what_is_deleted_counts_no_more(
    conversations: Conversations, turns: Turns
) -> None:
    await fill(conversations, turns)
    await require_free(conversations, 500)
    await turns.delete("org_a", "resp_1")
    await require_free(conversations, 500 + TOLD_BYTES + 7)
    await turns.delete("org_a", "resp_2")
    await require_free(conversations, 500 + TOLD_BYTES + 7 + ROW_BYTES)
    await conversations.remove_item("org_a", "conv_1", "resp_2_out")
    await conversations.remove_item("org_a", "conv_1", "msg_1")
    await require_free(conversations, 500 + TOLD_BYTES + 7 + ROW_BYTES + 105 + 101)
    await conversations.annotate("org_a", "conv_1", {"key": "value"})
    await require_free(conversations, 500 + TOLD_BYTES + 7 + ROW_BYTES + 105 + 101 - 8)
    await conversations.delete("org_a", "conv_1")
    await require_free(conversations, 500 + 2 * TOLD_BYTES + 7 + ROW_BYTES + 101)


async def fill(conversations: Conversations, turns: Turns) -> None:
    """A chain's turn of 317 bytes, a conversation of 511 with its turn, and ballast up to 500."""
    await tell(turns, turn_of("resp_1", record=b"1234567"))
    await conversations.create(PLAIN, [message("msg_1", "x")])
    await tell(turns, turn_of("resp_2", conversation_id="conv_1"))
    rest = SETTINGS.organisation_bytes - 500 - (TOLD_BYTES + 7) - (2 * ROW_BYTES + 1 + TOLD_BYTES)
    for number in range(3):
        size = 3_000 if number < 2 else rest - 6_000
        ballast = replace(OTHER, id=f"conv_ballast_{number}", metadata={})
        await conversations.create(ballast, [message("msg", "x" * (size - 2 * ROW_BYTES))])


async def test_c6_what_does_not_come_about_counts_no_more(
    conversations: Conversations, turns: Turns
) -> None:
    await fill(conversations, turns)
    await turns.begin(turn_of("resp_3"))
    await require_free(conversations, 500 - 205)
    await turns.keep("resp_3", 1, said("resp_3", ""))
    await turns.drop("resp_3")
    await turns.begin(turn_of("resp_3", input=()))
    await turns.keep("resp_3", 1, said("resp_3", ""))
    await turns.keep("resp_3", 2, said("resp_3", "x"))
    await require_free(conversations, 500 - 201)
    await turns.drop("resp_3")
    await require_free(conversations, 500)
    await turns.begin(turn_of("resp_4", conversation_id="conv_1"), revision=1)
    await turns.show("resp_4")
    await require_free(conversations, 500)
    await turns.begin(turn_of("resp_5", conversation_id="conv_1", input=()), revision=1)
    await turns.keep("resp_5", 1, said("resp_5", ""))
    await require_free(conversations, 300)
    await turns.drop("resp_5")
    await require_free(conversations, 500)


@pytest.mark.parametrize("swept", [False, True])
async def test_c6_what_has_expired_counts_no_more(
    conversations: Conversations, turns: Turns, clock: FakeClock, swept: bool
) -> None:
    await fill(conversations, turns)
    await tell(turns, turn_of("resp_3", input=(), expires_at=NOW + 50))
    await require_free(conversations, 500 - 205)
    clock.advance(50)
    if swept:
        await turns.sweep()
    await require_free(conversations, 500)
    clock.advance(50)
    if swept:
        await turns.sweep()
    await require_free(conversations, 500 + 2 * ROW_BYTES + 1 + TOLD_BYTES)
    clock.advance(900)
    if swept:
        await turns.sweep()
    await conversations.create(replace(OTHER, expires_at=NOW + 2_000), [message("m", "x" * 3_900)])


async def test_c6_an_organisation_has_so_many_bytes_and_no_more(
    conversations: Conversations, turns: Turns
) -> None:
    await fill(conversations, turns)
    large = turn_of("resp_3", record=b"x" * 196)
    await turns.begin(replace(large, organisation_id="org_b"))
    await turns.drop("resp_3")
    await refused(
        turns.begin(replace(large, record=b"x" * 296)), "10001 bytes", "at most 10000", "Delete"
    )
    await refused(
        conversations.add("org_a", "conv_1", [message("msg_2", "x" * 401)]), "organisation", "10001"
    )
    await conversations.add("org_a", "conv_1", [message("msg_2", "x" * 400)])
    await refused(conversations.create(replace(PLAIN, id="conv_3"), []), "10100 bytes")
    await conversations.create(replace(PLAIN, id="conv_3", organisation_id="org_b"), [])
