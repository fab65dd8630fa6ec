"""The ledger's idempotency claims as tests (L9): who may claim a key, and how long it is remembered.

Fixtures as in `forebay.testing.contracts.ledger`, where the plain call and its prices are. The
fixture's ledger bounds kept answers to `ANSWERS_BYTES`, room for three answers of `BIG` bytes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from forebay.core.errors import AlreadyResolved, InsufficientQuota, KeyClaimed
from forebay.core.hold import Claim, Hold, HoldRequest, Remembered, UsageQuery
from forebay.core.principal import Scopes
from forebay.core.usage import Outcome
from forebay.ledger import REMEMBERED_SECONDS
from forebay.testing.clock import FakeClock
from forebay.testing.contracts.ledger import (
    PLAIN,
    SCOPES,
    H,
    ask,
    bill,
    check_books,
    figures,
    furnish,
    gather,
)

CLAIM = Claim("key-1", bytes(range(32)), b"head")
BIG = 1_000
ANSWERS_BYTES = 3_500


def keyed(number: int = 1, key: str = "key-1", **changes: Any) -> HoldRequest:
    return ask(number, claim=replace(CLAIM, key=key), **changes)


async def complete(ledger: Any, request: HoldRequest, answer: bytes) -> None:
    await ledger.hold(request)
    await ledger.settle(request.id, 1, bill(1, answer=answer))


async def test_l9_a_key_is_claimed_with_its_hold_and_answers_when_that_is_settled(
    ledger: Any,
) -> None:
    await furnish(ledger)
    assert await ledger.recall("org_a", "key-1") is None
    await ledger.hold(keyed(1))
    running = Remembered("req_1", CLAIM, PLAIN.created_at, None)
    assert await ledger.recall("org_a", "key-1") == running
    with pytest.raises(KeyClaimed) as claimed:
        await ledger.hold(ask(2, claim=Claim("key-1", bytes(32))))
    assert claimed.value.remembered == running
    assert await figures(ledger) == (0, H, 1), "nothing was stored for the second call"
    row = await ledger.settle("req_1", 1, bill(5, answer=b'{"text":"hi"}'))
    done = replace(running, answer=b'{"text":"hi"}')
    assert await ledger.recall("org_a", "key-1") == done
    with pytest.raises(KeyClaimed) as claimed:
        await ledger.hold(keyed(3))
    assert claimed.value.remembered == done
    assert await ledger.usage(UsageQuery()) == [row]
    await check_books(ledger)


async def test_l9_the_same_call_again_answers_the_same_hold(ledger: Any) -> None:
    await furnish(ledger)
    hold = await ledger.hold(keyed(1))
    assert await ledger.hold(keyed(1)) == hold
    row = await ledger.settle("req_1", 1, bill(1))
    with pytest.raises(AlreadyResolved) as resolved:
        await ledger.hold(keyed(1))
    assert resolved.value.row == row
    await check_books(ledger)


async def test_l9_of_fifty_calls_with_one_key_exactly_one_is_held(ledger: Any) -> None:
    await furnish(ledger)
    answers = await gather(ledger.hold(keyed(number)) for number in range(50))
    (hold,) = [answer for answer in answers if isinstance(answer, Hold)]
    others = [answer for answer in answers if isinstance(answer, KeyClaimed)]
    assert len(others) == 49
    assert {other.remembered.call_id for other in others} == {hold.id}
    await check_books(ledger, [hold])


@pytest.mark.parametrize("outcome", list(Outcome))
@pytest.mark.parametrize("verb", ["settle", "release"])
async def test_l9_any_ending_but_a_completed_settlement_forgets_the_key(
    ledger: Any, verb: str, outcome: Outcome
) -> None:
    await furnish(ledger)
    await ledger.hold(keyed(1))
    await getattr(ledger, verb)("req_1", 1, bill(1, outcome=outcome, answer=b"kept"))
    remembered = await ledger.recall("org_a", "key-1")
    if verb == "settle" and outcome is Outcome.COMPLETED:
        assert remembered is not None
        assert remembered.answer == b"kept"
    else:
        assert remembered is None
        hold = await ledger.hold(keyed(2))
        assert (await ledger.recall("org_a", "key-1")).call_id == hold.id


@pytest.mark.parametrize("progress", [0, 7])
async def test_l9_the_keys_of_a_dead_owner_are_forgotten(ledger: Any, progress: int) -> None:
    await furnish(ledger)
    await ledger.hold(keyed(1))
    await ledger.beat("gateway-1", 1, {"req_1": progress})
    assert await ledger.sweep(0.0) == []
    assert len(await ledger.sweep(10.0)) == 1
    assert await ledger.recall("org_a", "key-1") is None
    assert isinstance(await ledger.hold(keyed(2)), Hold)


async def test_l9_a_late_or_stale_ending_changes_no_claim(ledger: Any) -> None:
    await furnish(ledger)
    await complete(ledger, keyed(1), b"first")
    for verb in (ledger.settle, ledger.release):
        with pytest.raises(AlreadyResolved):
            await verb("req_1", 1, bill(2, outcome=Outcome.FAILED, answer=b"second"))
    assert (await ledger.recall("org_a", "key-1")).answer == b"first"


async def test_l9_a_call_that_is_refused_claims_nothing(ledger: Any) -> None:
    await furnish(ledger, cap_nanos=H - 1)
    with pytest.raises(InsufficientQuota):
        await ledger.hold(keyed(1))
    assert await ledger.recall("org_a", "key-1") is None
    await ledger.set_cap("key_a", H)
    await ledger.hold(keyed(2))
    with pytest.raises(KeyClaimed):
        await ledger.hold(keyed(3))  # a replay is free: the key is looked at before the budget


async def test_l9_l14_the_keys_of_two_organisations_are_two(ledger: Any) -> None:
    other = Scopes("org_b", "prj_b", "key_b")
    await furnish(ledger)
    await furnish(ledger, other)
    await complete(ledger, keyed(1), b"of A")
    assert await ledger.recall("org_b", "key-1") is None
    await complete(ledger, keyed(2, scopes=other), b"of B")
    assert (await ledger.recall("org_a", "key-1")).answer == b"of A"
    assert (await ledger.recall("org_b", "key-1")).answer == b"of B"
    assert await ledger.recall("org_a", "key-2") is None


async def test_l9_two_keys_of_one_organisation_share_its_keys_and_projects(ledger: Any) -> None:
    """Scoped to the organisation: another API key of it finds what the first has claimed."""
    await furnish(ledger)
    await furnish(ledger, Scopes("org_a", "prj_b", "key_b"))
    await ledger.hold(keyed(1))
    with pytest.raises(KeyClaimed):
        await ledger.hold(keyed(2, scopes=SCOPES._replace(project_id="prj_b", key_id="key_b")))


async def test_l9_an_answer_is_remembered_for_a_day_and_an_open_call_for_as_long_as_it_is(
    ledger: Any, clock: FakeClock
) -> None:
    await furnish(ledger)
    await complete(ledger, keyed(1, "done"), b"answer")
    await ledger.hold(keyed(2, "open"))
    clock.jump_wall(REMEMBERED_SECONDS - 1)
    assert (await ledger.recall("org_a", "done")).answer == b"answer"
    with pytest.raises(KeyClaimed):
        await ledger.hold(keyed(3, "done", created_at=clock.now()))
    clock.jump_wall(1.0)
    assert await ledger.recall("org_a", "done") is None
    clock.jump_wall(10 * REMEMBERED_SECONDS)
    await ledger.sweep(0.0)
    assert (await ledger.recall("org_a", "open")).call_id == "req_2"
    with pytest.raises(KeyClaimed):
        await ledger.hold(keyed(4, "open", created_at=clock.now()))
    late = await ledger.hold(keyed(5, "done", created_at=clock.now()))
    assert (await ledger.recall("org_a", "done")).call_id == late.id


async def test_l9_an_expired_key_is_free_also_before_a_sweep(ledger: Any, clock: FakeClock) -> None:
    await furnish(ledger)
    await complete(ledger, keyed(1), bytes(BIG))
    clock.jump_wall(REMEMBERED_SECONDS)
    for number in range(2, 8):  # an expired answer that is replaced counts no more
        await complete(ledger, keyed(number, created_at=clock.now()), bytes(3 * BIG))
        assert (await ledger.recall("org_a", "key-1")).call_id == f"req_{number}"
        clock.jump_wall(REMEMBERED_SECONDS)


async def kept(ledger: Any, *keys: str) -> str:
    """Which of the keys are remembered."""
    return "".join([key for key in keys if await ledger.recall("org_a", key) is not None])


async def test_l9_the_oldest_answers_make_room_for_new_ones(ledger: Any) -> None:
    await furnish(ledger)
    await ledger.hold(keyed(9, "open"))
    for number, key in enumerate("abc", start=1):
        await ledger.hold(keyed(number, key))
    for number in (2, 1, 3):
        await ledger.settle(f"req_{number}", 1, bill(1, answer=bytes(BIG)))
    assert await kept(ledger, "a", "b", "c", "open") == "abcopen"
    await complete(ledger, keyed(4, "d"), bytes(BIG))
    assert await kept(ledger, "a", "b", "c", "d", "open") == "acdopen"
    await complete(ledger, keyed(5, "e"), bytes(2 * BIG))
    assert await kept(ledger, "a", "c", "d", "e", "open") == "deopen"
    await complete(ledger, keyed(6, "f"), bytes(ANSWERS_BYTES))
    assert await kept(ledger, "d", "e", "f", "open") == "open", "one that is larger than all room"
    await complete(ledger, keyed(7, "g"), bytes(3 * BIG))
    assert await kept(ledger, "g") == "g"
    await check_books(ledger, [await ledger.hold(keyed(9, "open"))])


async def test_l9_what_a_sweep_forgets_makes_room(ledger: Any, clock: FakeClock) -> None:
    await furnish(ledger)
    for number, key in enumerate("abc", start=1):
        await complete(ledger, keyed(number, key), bytes(BIG))
    clock.jump_wall(REMEMBERED_SECONDS)
    await ledger.sweep(0.0)
    for number, key in enumerate("abc", start=4):
        await complete(ledger, keyed(number, key, created_at=clock.now()), bytes(BIG))
    assert await kept(ledger, "a", "b", "c") == "abc"


async def test_a_claim_without_a_key_or_a_fingerprint_is_refused(ledger: Any) -> None:
    await furnish(ledger)
    for claim in (Claim("", bytes(32)), Claim("key-1", bytes(31))):
        with pytest.raises(ValueError, match="fingerprint"):
            await ledger.hold(ask(1, claim=claim))
    await check_books(ledger)
