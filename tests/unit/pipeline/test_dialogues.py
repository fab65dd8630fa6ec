from __future__ import annotations

import pytest

from forebay.conversation import ConversationSettings
from forebay.conversation.memory import MemoryConversations
from forebay.core.dialogue import Item, Page
from forebay.core.errors import InvalidRequest, NotFound
from forebay.core.job import Lane
from forebay.core.principal import Principal, Scopes
from forebay.pipeline.dialogues import Dialogues
from forebay.testing.clock import CountingIds, FakeClock

OURS = Principal(Scopes("org_1", "project_1", "key_1"), weight=1, lanes=frozenset(Lane))
THEIRS = Principal(Scopes("org_2", "project_1", "key_1"), weight=1, lanes=frozenset(Lane))
HELLO, HI = Item("msg_1", "user", ("Hello",)), Item("msg_2", "assistant", ("Hi",))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def dialogues(clock: FakeClock) -> Dialogues:
    settings = ConversationSettings(ttl_seconds=100, max_ttl_seconds=1000)
    return Dialogues(MemoryConversations(settings, clock), clock, CountingIds(), settings)


async def begin(dialogues, *items, ttl_seconds=None, metadata=None):
    metadata = metadata or {}
    return await dialogues.create(OURS, items, metadata=metadata, ttl_seconds=ttl_seconds)


VERBS = {
    "find": lambda d, who, id: d.find(who, id),
    "annotate": lambda d, who, id: d.annotate(who, id, {}),
    "delete": lambda d, who, id: d.delete(who, id),
    "add": lambda d, who, id: d.add(who, id, [HI]),
    "items": lambda d, who, id: d.items(who, id, Page()),
    "items after": lambda d, who, id: d.items(who, id, Page(after="msg_1")),
    "item": lambda d, who, id: d.item(who, id, "msg_1"),
    "remove_item": lambda d, who, id: d.remove_item(who, id, "msg_1"),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_c1_another_organisations_is_answered_as_one_that_never_was(dialogues, verb):
    made = await begin(dialogues, HELLO)
    said = []
    for id_ in (made.id, "conv_never"):
        with pytest.raises(NotFound) as caught:
            await VERBS[verb](dialogues, THEIRS, id_)
        assert caught.value.message == f"Conversation with id '{id_}' not found."
        said.append((caught.value.message.replace(id_, "…"), caught.value.param))
    assert said[0] == said[1]
    assert await dialogues.items(OURS, made.id, Page()) == [HELLO]


async def test_it_has_an_id_of_its_own_and_lives_as_long_as_the_settings_say(dialogues, clock):
    made = await begin(dialogues, HELLO, metadata={"topic": "x"})
    assert made.id.startswith("conv_")
    assert made.id != (await begin(dialogues)).id
    assert (made.created_at, made.ttl_seconds) == (clock.now(), 100)
    assert made.expires_at == clock.now() + 100
    assert await dialogues.find(OURS, made.id) == made
    clock.advance(100)
    with pytest.raises(NotFound):
        await dialogues.find(OURS, made.id)


@pytest.mark.parametrize("ttl_seconds", [60, 1000])
async def test_a_time_to_live_may_be_asked_for(dialogues, clock, ttl_seconds):
    made = await begin(dialogues, ttl_seconds=ttl_seconds)
    assert (made.ttl_seconds, made.expires_at) == (ttl_seconds, clock.now() + ttl_seconds)


@pytest.mark.parametrize(
    ("ttl_seconds", "side"), [(59, "below_min"), (0, "below_min"), (-1, "below_min"),
                              (1001, "above_max"), (10**120, "above_max")]
)  # fmt: skip
async def test_one_out_of_bounds_is_refused_with_the_bounds(dialogues, ttl_seconds, side):
    with pytest.raises(InvalidRequest) as caught:
        await begin(dialogues, ttl_seconds=ttl_seconds)
    fault = caught.value
    assert (fault.param, fault.code) == ("ttl_seconds", f"integer_{side}_value")
    shown = str(ttl_seconds)[:100]
    assert fault.message == f"ttl_seconds is {shown}, but must be between 60 and 1000."


async def test_what_is_appended_is_found_in_order_and_may_be_removed(dialogues):
    made = await begin(dialogues, HELLO)
    await dialogues.add(OURS, made.id, [HI])
    assert await dialogues.items(OURS, made.id, Page()) == [HI, HELLO]
    assert await dialogues.items(OURS, made.id, Page(newest_first=False)) == [HELLO, HI]
    assert await dialogues.items(OURS, made.id, Page(after=HI.id)) == [HELLO]
    assert await dialogues.item(OURS, made.id, HI.id) == HI
    assert (await dialogues.remove_item(OURS, made.id, HELLO.id)).id == made.id
    assert await dialogues.items(OURS, made.id, Page()) == [HI]


@pytest.mark.parametrize("verb", ["item", "remove_item"])
async def test_an_item_that_is_not_there_is_named_with_its_conversation(dialogues, verb):
    made, other = await begin(dialogues), await begin(dialogues, HELLO)
    with pytest.raises(NotFound) as caught:
        await VERBS[verb](dialogues, OURS, made.id)
    says = f"Item with id 'msg_1' not found in conversation '{made.id}'."
    assert caught.value.message == says
    assert await dialogues.items(OURS, other.id, Page()) == [HELLO]


async def test_a_list_cannot_begin_behind_what_is_none_of_it(dialogues):
    made = await begin(dialogues, HELLO)
    with pytest.raises(InvalidRequest) as caught:
        await dialogues.items(OURS, made.id, Page(after="msg_9"))
    assert caught.value.param == "after"
    assert "after is 'msg_9'" in caught.value.message


async def test_metadata_is_replaced_as_a_whole_and_deleting_is_for_good(dialogues):
    made = await begin(dialogues, metadata={"a": "1", "b": "2"})
    changed = await dialogues.annotate(OURS, made.id, {"c": "3"})
    assert changed.metadata == {"c": "3"}
    await dialogues.delete(OURS, made.id)
    with pytest.raises(NotFound):
        await dialogues.find(OURS, made.id)


async def test_an_id_of_any_length_is_not_repeated_in_full(dialogues):
    with pytest.raises(NotFound) as caught:
        await dialogues.find(OURS, "x" * 10_000)
    assert len(caught.value.message) < 200
