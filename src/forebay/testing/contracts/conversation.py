"""What every Conversations must do, and what both contracts promise of every verb (C1, C2).

Fixtures: `conversations` and `turns` on one empty store with SETTINGS, and its `clock`.

Not here: turns (`conversation_turns.py`), bounds (`conversation_bounds.py`), what only a store on disk
can get wrong.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from forebay.conversation import Conversations, ConversationSettings, Turns
from forebay.conversation.rules import CALL_SECONDS
from forebay.core.dialogue import Conversation, Item, Page, Past, Pending, Said, Turn
from forebay.core.errors import ConversationLocked
from forebay.core.usage import Usage
from forebay.testing.clock import FakeClock

NOW = 1_800_000_000.0
SETTINGS = ConversationSettings(
    ttl_seconds=100, max_items=8, max_bytes=4_000, organisation_bytes=10_000
)
CONVERSATION = Conversation("conv_1", "org_a", NOW, 100, NOW + 100, {"topic": "water"})
OTHER = replace(CONVERSATION, id="conv_2", ttl_seconds=1_000, expires_at=NOW + 1_000)
USAGE = Usage(7, 3, 1)
OLDEST = Page(100, newest_first=False)


def message(id: str, text: str = "hello", role: str = "user") -> Item:
    return Item(id, role, (text,))


def turn_of(id: str, **changes: Any) -> Turn:
    """A turn with one item, `ID_in`, which lives as long as OTHER."""
    turn = Turn(id, "org_a", f"call_{id}", NOW, NOW + 1_000, (message(f"{id}_in"),))
    return replace(turn, **changes)


def said(id: str, text: str = "hello") -> Said:
    """Its answer, `ID_out`."""
    return Said(message(f"{id}_out", text, "assistant"), USAGE)


async def tell(turns: Turns, turn: Turn, revision: int = 0) -> Turn:
    """A call from its beginning to its settlement."""
    await turns.begin(turn, revision=revision)
    await turns.keep(turn.id, 1, said(turn.id))
    await turns.show(turn.id)
    return await turns.find(turn.organisation_id, turn.id)


async def ids_of(conversations: Conversations, id: str = "conv_1") -> list[str]:
    """Of the items of a conversation, oldest first."""
    return [item.id for item in await conversations.items("org_a", id, OLDEST)]


async def past_of(turns: Turns, previous_id: str) -> list[str]:
    """Ids of what was said up to and with this turn."""
    past = await turns.past("org_a", conversation_id=None, previous_id=previous_id)
    return [item.id for item in past.items]


Verb = Callable[[Conversations, Turns, str, str], Awaitable[Any]]
# Whatever may be asked of a conversation, and of a turn.
CONVERSATION_VERBS: dict[str, Verb] = {
    "find": lambda it, _, org, id: it.find(org, id),
    "annotate": lambda it, _, org, id: it.annotate(org, id, {"topic": "stolen"}),
    "delete": lambda it, _, org, id: it.delete(org, id),
    "add": lambda it, _, org, id: it.add(org, id, [message("msg_9")]),
    "items": lambda it, _, org, id: it.items(org, id, Page()),
    "item": lambda it, _, org, id: it.item(org, id, "msg_1"),
    "remove_item": lambda it, _, org, id: it.remove_item(org, id, "msg_1"),
    "past": lambda _, turns, org, id: turns.past(org, conversation_id=id, previous_id=None),
    "begin": lambda _, turns, org, id: turns.begin(
        turn_of("resp_9", organisation_id=org, conversation_id=id)
    ),
}
TURN_VERBS: dict[str, Verb] = {
    "find": lambda _, turns, org, id: turns.find(org, id),
    "delete": lambda _, turns, org, id: turns.delete(org, id),
    "past": lambda _, turns, org, id: turns.past(org, conversation_id=None, previous_id=id),
    "begin": lambda _, turns, org, id: turns.begin(
        turn_of("resp_9", organisation_id=org, previous_id=id)
    ),
}


async def refusal_of(asked: Awaitable[Any]) -> tuple[object, ...]:
    """The arguments of the KeyError that this must raise."""
    with pytest.raises(KeyError) as raised:
        await asked
    assert raised.type is KeyError
    return raised.value.args


@pytest.mark.parametrize("verb", CONVERSATION_VERBS.values(), ids=CONVERSATION_VERBS)
async def test_c1_anothers_conversation_is_answered_like_one_that_does_not_exist(
    conversations: Conversations, turns: Turns, verb: Verb
) -> None:
    await conversations.create(CONVERSATION, [message("msg_1")])
    assert await refusal_of(verb(conversations, turns, "org_b", "conv_1")) == ("conv_1",)
    assert await refusal_of(verb(conversations, turns, "org_b", "conv_7")) == ("conv_7",)
    assert await conversations.find("org_a", "conv_1") == CONVERSATION
    assert await ids_of(conversations) == ["msg_1"]
    assert await turns.sweep() == []


@pytest.mark.parametrize("verb", TURN_VERBS.values(), ids=TURN_VERBS)
async def test_c1_anothers_turn_is_answered_like_one_that_does_not_exist(
    conversations: Conversations, turns: Turns, verb: Verb
) -> None:
    told = await tell(turns, turn_of("resp_1"))
    assert await refusal_of(verb(conversations, turns, "org_b", "resp_1")) == ("resp_1",)
    assert await refusal_of(verb(conversations, turns, "org_b", "resp_7")) == ("resp_7",)
    assert await turns.find("org_a", "resp_1") == told
    assert await turns.sweep() == []


@pytest.mark.parametrize("verb", CONVERSATION_VERBS.values(), ids=CONVERSATION_VERBS)
async def test_c2_a_conversation_is_gone_at_the_moment_that_it_expires(
    conversations: Conversations, turns: Turns, clock: FakeClock, verb: Verb
) -> None:
    await conversations.create(CONVERSATION, [message("msg_1")])
    clock.advance(99.5)
    assert await ids_of(conversations) == ["msg_1"]
    clock.advance(0.5)
    assert await refusal_of(verb(conversations, turns, "org_a", "conv_1")) == ("conv_1",)


@pytest.mark.parametrize("verb", TURN_VERBS.values(), ids=TURN_VERBS)
async def test_c2_a_turn_is_gone_at_the_moment_that_it_expires(
    conversations: Conversations, turns: Turns, clock: FakeClock, verb: Verb
) -> None:
    await tell(turns, turn_of("resp_1"))
    clock.advance(999.5)
    assert await past_of(turns, "resp_1") == ["resp_1_in", "resp_1_out"]
    clock.advance(0.5)
    assert await refusal_of(verb(conversations, turns, "org_a", "resp_1")) == ("resp_1",)


async def test_c2_the_turns_of_a_conversation_go_with_it(
    conversations: Conversations, turns: Turns, clock: FakeClock
) -> None:
    await conversations.create(CONVERSATION, [])
    await tell(turns, turn_of("resp_1", conversation_id="conv_1"))
    await tell(turns, turn_of("resp_3", previous_id="resp_1"))
    clock.advance(100)
    assert await refusal_of(turns.find("org_a", "resp_1")) == ("resp_1",)
    assert await past_of(turns, "resp_3") == ["resp_3_in", "resp_3_out"]
    assert await turns.sweep() == []
    assert await past_of(turns, "resp_3") == ["resp_3_in", "resp_3_out"]


async def test_c2_a_turn_that_expired_open_is_in_nobodys_way(
    conversations: Conversations, turns: Turns, clock: FakeClock
) -> None:
    await conversations.create(OTHER, [])
    short = turn_of("resp_1", conversation_id="conv_2", expires_at=NOW + 10)
    await turns.begin(short)
    clock.advance(10)
    await turns.show("resp_1")
    await conversations.add("org_a", "conv_2", [message("msg_1")])
    again = replace(short, expires_at=NOW + 20)
    await turns.begin(again, revision=1)
    assert (await turns.find("org_a", "resp_1")).expires_at == NOW + 20
    assert await ids_of(conversations, "conv_2") == ["msg_1"]


async def test_c2_use_begins_the_time_to_live_anew_and_looking_does_not(
    conversations: Conversations, turns: Turns, clock: FakeClock
) -> None:
    await conversations.create(CONVERSATION, [])
    clock.advance(60)
    await conversations.add("org_a", "conv_1", [message("msg_1")])
    assert (await conversations.find("org_a", "conv_1")).expires_at == NOW + 160
    clock.advance(60)
    await turns.begin(turn_of("resp_1", conversation_id="conv_1"), revision=1)
    clock.advance(60)
    await turns.begin(turn_of("resp_1", conversation_id="conv_1"), revision=1)
    await turns.keep("resp_1", 1, said("resp_1"))
    await turns.show("resp_1")
    assert (await conversations.find("org_a", "conv_1")).expires_at == NOW + 280
    clock.advance(10)
    await conversations.annotate("org_a", "conv_1", {})
    await conversations.remove_item("org_a", "conv_1", "msg_1")
    await turns.past("org_a", conversation_id="conv_1", previous_id=None)
    assert (await conversations.find("org_a", "conv_1")).expires_at == NOW + 280


async def test_c2_a_conversation_does_not_expire_under_its_call(
    conversations: Conversations, turns: Turns, clock: FakeClock
) -> None:
    """However short its time to live is; that begins anew when the call has ended, or failed."""
    await conversations.create(CONVERSATION, [])
    await turns.begin(turn_of("resp_1", conversation_id="conv_1"))
    clock.advance(900)
    await turns.drop("resp_1")
    assert (await conversations.find("org_a", "conv_1")).expires_at == NOW + 1_000
    await turns.begin(turn_of("resp_2", conversation_id="conv_1"))
    assert (await conversations.find("org_a", "conv_1")).expires_at == NOW + 900 + CALL_SECONDS


async def test_a_conversation_is_found_as_it_was_made(conversations: Conversations) -> None:
    items = [
        Item("msg_1", "system", ("be", "brief ☃")),
        Item("msg_2", "assistant", (), complete=False),
    ]
    await conversations.create(CONVERSATION, items)
    await conversations.create(OTHER, [message("msg_1")])
    assert await conversations.find("org_a", "conv_1") == CONVERSATION
    assert await conversations.items("org_a", "conv_1", OLDEST) == items
    assert await conversations.item("org_a", "conv_1", "msg_2") == items[1]
    with pytest.raises(ValueError, match="conv_1 exists already"):
        await conversations.create(replace(CONVERSATION, organisation_id="org_b"), [])


async def test_an_id_that_has_expired_may_be_used_again(
    conversations: Conversations, clock: FakeClock
) -> None:
    await conversations.create(CONVERSATION, [message("msg_1")])
    clock.advance(100)
    await conversations.create(replace(CONVERSATION, expires_at=NOW + 200), [])
    assert await ids_of(conversations) == []


async def test_metadata_is_replaced_and_is_no_change_of_what_was_said(
    conversations: Conversations,
) -> None:
    await conversations.create(CONVERSATION, [])
    expected = replace(CONVERSATION, metadata={"a": "1"})
    assert await conversations.annotate("org_a", "conv_1", {"a": "1"}) == expected
    assert await conversations.find("org_a", "conv_1") == expected


async def test_c4_what_is_added_comes_last_and_changes_the_revision(
    conversations: Conversations,
) -> None:
    await conversations.create(CONVERSATION, [message("msg_1")])
    await conversations.add("org_a", "conv_1", [message("msg_3"), message("msg_2")])
    await conversations.add("org_a", "conv_1", [message("msg_4")])
    assert await ids_of(conversations) == ["msg_1", "msg_3", "msg_2", "msg_4"]
    assert (await conversations.find("org_a", "conv_1")).revision == 2


@pytest.mark.parametrize("newest_first", [True, False])
async def test_items_are_listed_in_pages_in_both_orders(
    conversations: Conversations, newest_first: bool
) -> None:
    every = [message(f"msg_{n}") for n in range(1, 6)]
    await conversations.create(CONVERSATION, every)
    await conversations.create(OTHER, [message("msg_9")])
    wanted = every[::-1] if newest_first else every
    after, found = None, []
    for size in (2, 2, 1, 0):
        page = Page(2, after, newest_first)
        items = await conversations.items("org_a", "conv_1", page)
        assert len(items) == size
        found += items
        after = found[-1].id
    assert found == wanted
    strange = Page(2, "msg_9", newest_first)
    assert await refusal_of(conversations.items("org_a", "conv_1", strange)) == ("msg_9",)


async def test_an_item_is_removed_for_good(conversations: Conversations) -> None:
    await conversations.create(CONVERSATION, [message("msg_1"), message("msg_2")])
    changed = await conversations.remove_item("org_a", "conv_1", "msg_1")
    assert changed == replace(CONVERSATION, revision=1)
    assert await conversations.find("org_a", "conv_1") == changed
    assert await ids_of(conversations) == ["msg_2"]
    for verb in (conversations.item, conversations.remove_item):
        assert await refusal_of(verb("org_a", "conv_1", "msg_1")) == ("msg_1",)


async def test_an_item_that_is_removed_is_gone_from_its_turn_too(
    conversations: Conversations, turns: Turns
) -> None:
    """The answer of a turn stays one, without its text."""
    await conversations.create(CONVERSATION, [])
    first = (message("msg_1"), message("msg_2"))
    await tell(turns, turn_of("resp_1", conversation_id="conv_1", input=first))
    await tell(turns, turn_of("resp_2", conversation_id="conv_1"), revision=1)
    await conversations.remove_item("org_a", "conv_1", "msg_1")
    await conversations.remove_item("org_a", "conv_1", "resp_1_out")
    found = await turns.find("org_a", "resp_1")
    assert found.input == first[1:]
    assert found.said == Said(Item("resp_1_out", "assistant", ()), USAGE)
    assert await past_of(turns, "resp_1") == ["msg_2"]
    assert await past_of(turns, "resp_2") == ["msg_2", "resp_2_in", "resp_2_out"]
    await turns.delete("org_a", "resp_1")
    assert await ids_of(conversations) == ["msg_2", "resp_2_in", "resp_2_out"]


async def test_c4_nothing_is_added_or_removed_while_a_call_works_on_it(
    conversations: Conversations, turns: Turns
) -> None:
    await conversations.create(CONVERSATION, [message("msg_1")])
    await turns.begin(turn_of("resp_1", conversation_id="conv_1"))
    for _ in range(2):
        with pytest.raises(ConversationLocked, match="Another call is working"):
            await conversations.add("org_a", "conv_1", [message("msg_2")])
        with pytest.raises(ConversationLocked):
            await conversations.remove_item("org_a", "conv_1", "msg_1")
        await turns.keep("resp_1", 1, said("resp_1"))
    await conversations.annotate("org_a", "conv_1", {"topic": "fire"})
    await turns.show("resp_1")
    await conversations.add("org_a", "conv_1", [message("msg_2")])
    assert await ids_of(conversations) == ["msg_1", "resp_1_in", "resp_1_out", "msg_2"]
    assert (await conversations.find("org_a", "conv_1")).revision == 2


async def test_a_deleted_conversation_takes_its_turns_with_it_also_an_open_one(
    conversations: Conversations, turns: Turns
) -> None:
    await conversations.create(CONVERSATION, [message("msg_1")])
    await tell(turns, turn_of("resp_1", conversation_id="conv_1"))
    await turns.begin(turn_of("resp_2", conversation_id="conv_1"), revision=1)
    await conversations.delete("org_a", "conv_1")
    await turns.keep("resp_2", 1, said("resp_2"))
    await turns.show("resp_2")
    await turns.drop("resp_2")
    for id in ("resp_1", "resp_2"):
        assert await refusal_of(turns.find("org_a", id)) == (id,)
    assert await refusal_of(conversations.find("org_a", "conv_1")) == ("conv_1",)
    assert await turns.sweep() == []
    await conversations.create(CONVERSATION, [])
    assert await ids_of(conversations) == []


async def test_a_past_is_what_was_said_at_this_revision(
    conversations: Conversations, turns: Turns
) -> None:
    items = (message("msg_1"), message("msg_2"))
    await conversations.create(CONVERSATION, items[:1])
    await conversations.add("org_a", "conv_1", items[1:])
    past = await turns.past("org_a", conversation_id="conv_1", previous_id=None)
    assert past == Past(items, 1)
    assert await turns.past("org_a", conversation_id=None, previous_id=None) == Past()


async def test_c2_a_sweep_deletes_what_has_expired_and_names_what_is_not_shown(
    conversations: Conversations, turns: Turns, clock: FakeClock
) -> None:
    for number in range(150):
        organisation = f"org_{number % 5}"
        await turns.begin(
            turn_of(f"resp_{number}", organisation_id=organisation, expires_at=NOW + 50)
        )
    await conversations.create(OTHER, [])
    await tell(turns, turn_of("resp_a"))
    await turns.begin(turn_of("resp_b", organisation_id="org_b"))
    await turns.begin(turn_of("resp_c", conversation_id="conv_2"))
    await turns.keep("resp_c", 1, said("resp_c"))
    assert len(await turns.sweep()) == 152
    clock.advance(50)
    expected = [
        Pending("resp_b", "org_b", "call_resp_b"),
        Pending("resp_c", "org_a", "call_resp_c"),
    ]
    assert await turns.sweep() == expected
    assert await turns.sweep() == expected
    await turns.show("resp_c")
    assert await turns.sweep() == expected[:1]
