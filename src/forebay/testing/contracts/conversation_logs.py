"""What every TurnLogs must do, and background turns in every Turns: C7. Fixtures: as in
`conversation.py`, and `logs` on the same store.

Not here: what a log says, and who enqueues again (`forebay.pipeline.background`).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from forebay.conversation import Conversations, TurnLogs, Turns
from forebay.conversation.settings import ConversationSettings
from forebay.core.dialogue import Ending, Turn, TurnState
from forebay.core.errors import ConversationFull, StaleAttempt
from forebay.testing.clock import FakeClock
from forebay.testing.contracts.conversation import (
    CONVERSATION,
    NOW,
    ids_of,
    past_of,
    refusal_of,
    said,
    tell,
    turn_of,
)

CANCELLED = Ending(TurnState.CANCELLED, "client_gone")


def errand_of(id: str, **changes: object) -> Turn:
    """A turn in the background."""
    return turn_of(id, background=True, job=b"\x00job of " + id.encode(), **changes)


async def test_what_is_pending_in_the_background_is_listed_with_its_job(
    turns: Turns, logs: TurnLogs
) -> None:
    first, second = errand_of("resp_1"), errand_of("resp_2", organisation_id="org_b")
    for turn in (first, turn_of("resp_3"), second):
        await turns.begin(turn)
    assert await logs.unfinished() == [first, second]
    await turns.keep("resp_1", 2, said("resp_1"))
    kept = replace(first, state=TurnState.KEPT, attempt=2, said=said("resp_1"))
    assert await logs.unfinished() == [kept, second]
    await turns.show("resp_1")
    await turns.drop("resp_2", CANCELLED)
    assert await logs.unfinished() == []
    shown = replace(kept, state=TurnState.SHOWN, job=b"")
    assert await turns.find("org_a", "resp_1") == shown


@pytest.mark.parametrize("kept", [False, True])
async def test_one_in_the_background_says_how_it_ended(
    conversations: Conversations, turns: Turns, kept: bool
) -> None:
    await conversations.create(CONVERSATION, [])
    turn = errand_of("resp_1", conversation_id="conv_1")
    await turns.begin(turn)
    if kept:
        await turns.keep("resp_1", 1, said("resp_1"))
    await turns.drop("resp_1", CANCELLED)
    ended = replace(
        turn, state=TurnState.CANCELLED, reason="client_gone", job=b"", attempt=int(kept)
    )
    assert await turns.find("org_a", "resp_1") == ended
    await turns.keep("resp_1", 9, said("resp_1"))
    await turns.show("resp_1")
    await turns.drop("resp_1", Ending(TurnState.FAILED, "engine_fault"))
    assert await turns.find("org_a", "resp_1") == ended
    assert await turns.sweep() == []
    assert await ids_of(conversations) == []
    # It is nobody's past, and in nobody's way (C4, C5).
    assert await refusal_of(past_of(turns, "resp_1")) == ("resp_1",)
    assert not (await turns.past("org_a", conversation_id="conv_1", previous_id=None)).locked
    await turns.begin(turn_of("resp_2", conversation_id="conv_1"))
    await refusal_of(turns.delete("org_b", "resp_1"))
    await turns.delete("org_a", "resp_1")
    await refusal_of(turns.find("org_a", "resp_1"))


async def test_c7_a_log_grows_at_its_end_and_outlives_the_call(
    turns: Turns, logs: TurnLogs
) -> None:
    await turns.begin(errand_of("resp_1"))
    assert await logs.read("resp_1") == []
    parts = [b"one", b"", b"\x00three"]
    for position, part in enumerate(parts):
        await logs.append("resp_1", position, part)
        await logs.append("resp_1", position, part)  # its answer had been lost
    assert await logs.read("resp_1") == parts
    await turns.keep("resp_1", 1, said("resp_1"))
    await turns.show("resp_1")
    assert await logs.read("resp_1") == parts
    await turns.delete("org_a", "resp_1")
    assert await logs.read("resp_1") == []


@pytest.mark.parametrize("position", [0, 1, 3])
async def test_c7_who_does_not_know_all_of_a_log_is_refused(
    turns: Turns, logs: TurnLogs, position: int
) -> None:
    await turns.begin(errand_of("resp_1"))
    for number in range(2):
        await logs.append("resp_1", number, b"mine")
    with pytest.raises(StaleAttempt):
        await logs.append("resp_1", position, b"another's")
    assert await logs.read("resp_1") == [b"mine", b"mine"]


async def test_nothing_is_logged_of_a_turn_that_is_not_pending(
    turns: Turns, logs: TurnLogs
) -> None:
    await tell(turns, errand_of("resp_1"))
    await turns.begin(errand_of("resp_2"))
    await turns.drop("resp_2", CANCELLED)
    await turns.begin(errand_of("resp_3"))
    await turns.drop("resp_3")
    await refusal_of(turns.find("org_a", "resp_3"))
    for id in ("resp_1", "resp_2", "resp_3", "resp_unknown"):
        assert await refusal_of(logs.append(id, 0, b"late")) == (id,)
        assert await logs.read(id) == []


async def test_c2_an_expired_one_is_not_enqueued_again(
    conversations: Conversations, turns: Turns, logs: TurnLogs, clock: FakeClock
) -> None:
    await conversations.create(CONVERSATION, [])
    await turns.begin(errand_of("resp_1", expires_at=NOW + 50))
    await turns.begin(errand_of("resp_2", conversation_id="conv_1"))
    await logs.append("resp_1", 0, b"one")
    clock.advance(50)
    assert [turn.id for turn in await logs.unfinished()] == ["resp_2"]
    assert await logs.read("resp_1") == []
    await refusal_of(logs.append("resp_1", 1, b"two"))
    await conversations.delete("org_a", "conv_1")
    assert await logs.unfinished() == []


async def test_c6_jobs_and_logs_count_until_they_are_gone(
    turns: Turns, logs: TurnLogs, settings: ConversationSettings
) -> None:
    whole = settings.organisation_bytes
    large = errand_of("resp_1", input=())
    large = replace(large, job=bytes(whole - 100 - 300))
    await turns.begin(large)
    with pytest.raises(ConversationFull):
        await turns.begin(turn_of("resp_2", record=bytes(200)))
    await turns.drop("resp_1", CANCELLED)
    await turns.begin(errand_of("resp_2"))
    await logs.append("resp_2", 0, bytes(whole - 500))  # it has been paid for
    with pytest.raises(ConversationFull):
        await turns.begin(turn_of("resp_3", record=bytes(200)))
    await turns.drop("resp_2", CANCELLED)
    await turns.delete("org_a", "resp_2")
    await turns.begin(turn_of("resp_3", record=bytes(200)))
