"""What a call remembers, and when what is remembered of it is shown: the ledger decides."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from forebay.conversation import ConversationSettings
from forebay.conversation.memory import MemoryConversations
from forebay.core.call import Call, Remembrance
from forebay.core.dialogue import Conversation, Item, Page, Said, TurnState
from forebay.core.errors import (
    ConversationLocked,
    InvalidRequest,
    NotFound,
    StoreUnavailable,
)
from forebay.core.event import Admitted
from forebay.core.hold import Account, Bill, HoldRequest, UsageQuery
from forebay.core.job import Lane
from forebay.core.money import PriceTerms
from forebay.core.principal import Principal, Scopes
from forebay.core.usage import Outcome, Usage, UsageRow
from forebay.ledger.memory import MemoryLedger
from forebay.observe import Metrics
from forebay.pipeline.report import Reporter
from forebay.pipeline.turns import CallTurns, Recalled, ShownTurns
from forebay.testing.clock import CountingIds, FakeClock

OURS, THEIRS = (
    Principal(Scopes(org, f"proj_{org}", f"key_{org}"), weight=1, lanes=frozenset(Lane))
    for org in ("org", "other")
)
HELLO = Item("msg_in", "user", ("Hello",))
ANSWER = Said(Item("msg_out", "assistant", ("Hi",)), Usage(5, 2))


@dataclass
class House:
    """A ledger and a store of dialogues, and what stands between them."""

    clock: FakeClock
    ledger: MemoryLedger
    conversations: MemoryConversations
    price: int = 0

    def calls(self) -> CallTurns:
        """As a process has it; another one begins with nothing in mind."""
        return CallTurns(
            self.conversations,
            self.conversations.turns,
            self.ledger,
            Reporter(Metrics()),
            CountingIds(),
            ConversationSettings(),
        )

    async def hold(self, call: Call) -> None:
        await self.ledger.hold(
            HoldRequest(
                id=call.id,
                scopes=call.principal.scopes,
                model="m",
                lane=Lane.INTERACTIVE,
                price_version=self.price,
                input_tokens=5,
                ceiling_tokens=10,
                floor_tokens=10,
                choices=1,
                streamed=True,
                owner="gw",
                created_at=self.clock.now(),
            )
        )

    async def settle(self, call_id: str) -> UsageRow:
        return await self.ledger.settle(call_id, 1, Bill(Usage(5, 2), Outcome.COMPLETED, "ended"))

    async def release(self, call_id: str) -> UsageRow:
        return await self.ledger.release(call_id, 1, Bill(Usage(0, 0), Outcome.FAILED, "fault"))


@pytest.fixture
async def house() -> House:
    clock = FakeClock()
    ledger = MemoryLedger(clock)
    found = House(clock, ledger, MemoryConversations(ConversationSettings(), clock))
    found.price = (await ledger.publish_price(PriceTerms("m", Lane.INTERACTIVE, 1, 1, 1))).version
    for scope in (*OURS.scopes, *THEIRS.scopes):
        await ledger.open_account(Account(scope))
    now = clock.now()
    conversation = Conversation("conv_1", "org", now, 3_600, now + 3_600)
    await found.conversations.create(conversation, [Item("msg_s", "system", ("Be kind.",))])
    return found


def call(number: int = 1, principal: Principal = OURS, **wish: object) -> Call:
    """A call that is a turn."""
    asked = Remembrance((HELLO,), f"resp_{number}", record=b"{}")
    return Call(
        id=f"req_{number}",
        principal=principal,
        model="m",
        lane=Lane.INTERACTIVE,
        streamed=True,
        remembrance=replace(asked, **wish),  # type: ignore[arg-type]
    )


def admitted(house: House, asked: Call, recalled: Recalled) -> Admitted:
    """With half of the past dropped."""
    turns = len(recalled.dialogue.turns)
    window = recalled.window(turns - turns // 2)
    return Admitted(asked.id, house.clock.now(), "m", asked.lane, "fp", 5, window=window)


async def begin(house: House, calls: CallTurns, asked: Call) -> None:
    assert asked.remembrance is not None
    recalled = await calls.recall_free(asked, asked.remembrance)
    await house.hold(asked)
    await calls.begin(asked, recalled, admitted(house, asked, recalled))


async def answer(house: House, calls: CallTurns, asked: Call) -> None:
    """Begin, keep and settle, as the walk and the worker do."""
    await begin(house, calls, asked)
    await house.conversations.turns.keep(asked.remembrance.turn_id, 1, ANSWER)  # type: ignore
    await calls.concluded(await house.settle(asked.id))


async def test_a_settled_turn_is_shown_and_remembered_by_the_next(house: House) -> None:
    calls = house.calls()
    await answer(house, calls, call(conversation_id="conv_1"))
    shown = await ShownTurns(house.conversations.turns, calls).response(OURS, "resp_1")
    assert (shown.state, shown.said) == (TurnState.SHOWN, ANSWER)
    following = call(2, conversation_id="conv_1", instructions="Be brief.")
    assert following.remembrance is not None
    recalled = await calls.recall(following, following.remembrance)
    assert [(m.role, m.content) for m in recalled.messages(1)] == [
        ("system", "Be brief.\n\nBe kind."),
        ("user", "Hello"),
        ("assistant", "Hi"),
        ("user", "Hello"),
    ]
    assert recalled.window(0).dropped == 1


async def test_a_turn_whose_call_failed_is_gone_and_its_conversation_free(house: House) -> None:
    calls = house.calls()
    await begin(house, calls, call(conversation_id="conv_1"))
    with pytest.raises(ConversationLocked):
        await begin(house, calls, call(2, conversation_id="conv_1"))
    await calls.concluded(await house.release("req_1"))
    await answer(house, calls, call(3, conversation_id="conv_1"))
    with pytest.raises(NotFound, match="Response with id 'resp_1' not found"):
        await ShownTurns(house.conversations.turns, calls).response(OURS, "resp_1")


async def test_of_two_that_prepared_a_turn_at_once_the_first_has_it(house: House) -> None:
    """C4: the other one is refused though the conversation was free when it asked."""
    calls, both = house.calls(), [call(n, conversation_id="conv_1") for n in (1, 2)]
    recalled = [await calls.recall_free(each, each.remembrance) for each in both]  # type: ignore
    for each in both:
        await house.hold(each)
    await calls.begin(both[0], recalled[0], admitted(house, both[0], recalled[0]))
    with pytest.raises(ConversationLocked):
        await calls.begin(both[1], recalled[1], admitted(house, both[1], recalled[1]))
    counted = await calls.recall(both[1], both[1].remembrance)  # type: ignore[arg-type]
    assert counted.locked, "who only counts tokens is told, and not refused"


async def test_what_a_dead_process_settled_is_shown_to_who_asks(house: House) -> None:
    """C5: it died between the settlement and telling the turn; the ledger knows."""
    asked = call()
    await begin(house, house.calls(), asked)
    await house.conversations.turns.keep("resp_1", 1, ANSWER)
    await house.settle("req_1")
    calls = house.calls()
    shown = ShownTurns(house.conversations.turns, calls)
    with pytest.raises(NotFound):
        await shown.response(THEIRS, "resp_1")
    assert (await shown.response(OURS, "resp_1")).said == ANSWER
    following = call(2, previous_id="resp_1")
    assert following.remembrance is not None
    assert len((await calls.recall(following, following.remembrance)).dialogue.turns) == 1


async def test_a_turn_that_waits_for_its_settlement_is_not_shown(house: House) -> None:
    calls = house.calls()
    await begin(house, calls, call())
    await house.conversations.turns.keep("resp_1", 1, ANSWER)
    with pytest.raises(NotFound):
        await ShownTurns(house.conversations.turns, calls).response(OURS, "resp_1")
    following = call(2, previous_id="resp_1")
    assert following.remembrance is not None
    with pytest.raises(InvalidRequest, match="'resp_1' not found") as refusal:
        await calls.recall(following, following.remembrance)
    assert refusal.value.code == "previous_response_not_found"


async def test_a_lock_that_a_dead_process_left_is_taken_from_it(house: House) -> None:
    """By the next call of the conversation, without waiting for the keeper."""
    await begin(house, house.calls(), call(conversation_id="conv_1"))
    await house.release("req_1")
    calls = house.calls()
    await answer(house, calls, call(2, conversation_id="conv_1"))
    assert await calls.recover() == 0


async def test_the_keeper_tells_what_nobody_told(house: House) -> None:
    await begin(house, house.calls(), call(conversation_id="conv_1"))
    await house.conversations.turns.keep("resp_1", 1, ANSWER)
    calls = house.calls()
    assert await calls.recover() == 0, "its call is not resolved"
    await house.settle("req_1")
    assert await calls.recover() == 1
    assert (await house.conversations.turns.find("org", "resp_1")).state is TurnState.SHOWN


async def test_a_store_that_fails_to_show_is_told_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settlement stands; the turn is shown as soon as the store can."""
    calls = house.calls()
    with monkeypatch.context() as broken:

        async def fails(turn_id: str) -> None:
            raise StoreUnavailable

        broken.setattr(house.conversations.turns, "show", fails)
        await answer(house, calls, call())
    assert (await house.conversations.turns.find("org", "resp_1")).state is TurnState.KEPT
    assert await calls.recover() == 1


async def test_a_conversation_that_is_gone_is_begun_anew_if_asked(house: House) -> None:
    """C2: and the call is told which one goes on."""
    house.clock.advance(3_600)
    calls = house.calls()
    lost = call(conversation_id="conv_1")
    assert lost.remembrance is not None
    with pytest.raises(NotFound, match="Conversation with id 'conv_1' not found"):
        await calls.recall(lost, lost.remembrance)
    await answer(house, calls, call(2, conversation_id="conv_1", fresh=True))
    turn = await house.conversations.turns.find("org", "resp_2")
    assert turn.conversation_id not in (None, "conv_1")
    assert turn.conversation_id is not None
    items = await house.conversations.items("org", turn.conversation_id, Page(newest_first=False))
    assert items == [HELLO, ANSWER.output]


async def test_nothing_is_stored_of_a_call_that_wants_nothing_stored(house: House) -> None:
    calls = house.calls()
    await answer(house, calls, call())
    await begin(house, calls, call(2, turn_id=None, previous_id="resp_1"))
    assert await house.conversations.turns.sweep() == []


async def test_a_chat_s_turn_is_no_response(house: House) -> None:
    calls = house.calls()
    await answer(house, calls, call(turn_id="turn_1", record=b""))
    with pytest.raises(NotFound):
        await ShownTurns(house.conversations.turns, calls).response(OURS, "turn_1")


async def test_a_response_is_forgotten_and_its_input_is_paged(house: House) -> None:
    calls = house.calls()
    more = tuple(Item(f"msg_{n}", "user", (str(n),)) for n in range(3))
    await answer(house, calls, call(input=more))
    shown = ShownTurns(house.conversations.turns, calls)

    async def ids(**page: object) -> list[str]:
        found = await shown.input_items(OURS, "resp_1", Page(**page))  # type: ignore[arg-type]
        return [item.id for item in found]

    assert await ids() == ["msg_2", "msg_1", "msg_0"]
    assert await ids(newest_first=False, limit=2) == ["msg_0", "msg_1"]
    assert await ids(newest_first=False, after="msg_1") == ["msg_2"]
    with pytest.raises(NotFound, match="msg_9"):
        await ids(after="msg_9")
    await shown.forget(OURS, "resp_1")
    with pytest.raises(NotFound):
        await shown.forget(OURS, "resp_1")


async def test_a_turn_says_what_it_was_not_shown_of_the_past(house: House) -> None:
    calls = house.calls()
    shown = []
    for number in range(1, 4):
        previous = f"resp_{number - 1}" if number > 1 else None
        asked = call(number, previous_id=previous)
        await answer(house, calls, asked)
        shown.append((await calls.find(OURS.scopes.organisation_id, f"resp_{number}")).window)
    assert shown == ["", "", "kept=1,summarised=0,dropped=1"]


async def test_a_call_that_ends_while_its_turn_is_looked_at_is_not_missing(house: House) -> None:
    """Between the look at the turn and the question to the ledger it is kept, settled and shown."""
    calls, asked = house.calls(), call(1)
    await begin(house, calls, asked)
    usage = house.ledger.usage

    async def slow(query: UsageQuery) -> list[UsageRow]:
        await house.conversations.turns.keep("resp_1", 1, ANSWER)
        await calls.concluded(await house.settle(asked.id))
        return await usage(query)

    house.ledger.usage = slow  # type: ignore[method-assign]
    found = await calls.find(OURS.scopes.organisation_id, "resp_1")
    assert (found.state, found.said) == (TurnState.SHOWN, ANSWER)


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (None, "is still being made; wait"),
        (Outcome.FAILED, "failed, so it has no answer"),
        (Outcome.CANCELLED, "was cancelled, so it has no answer"),
    ],
)
async def test_what_has_no_answer_is_not_gone_on_from_and_says_why(
    house: House, outcome: Outcome | None, words: str
) -> None:
    calls, asked = house.calls(), replace(call(1), background=True)
    await begin(house, calls, asked)
    if outcome is not None:
        bill = Bill(Usage(0, 0), outcome, "engine_fault")
        await calls.concluded(await house.ledger.release(asked.id, 1, bill))
    with pytest.raises(InvalidRequest, match=words) as refused:
        await begin(house, calls, call(2, previous_id="resp_1"))
    assert refused.value.code == "previous_response_not_found"
    with pytest.raises(InvalidRequest, match="'resp_1' not found"):
        await begin(house, calls, call(3, THEIRS, previous_id="resp_1"))
