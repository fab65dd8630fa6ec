"""The ledger's contract as tests, for any backend: a backend is correct when these are green.

Fixtures to give: `clock` (a `forebay.testing.clock.FakeClock`) and `ledger` (an object that is both
`Ledger` and `Books`, empty, made with that clock).

Prices and counts are chosen so that amounts can be checked in the head: 2 nano-USD per input token,
1 cached, 10 output; a plain call has P = 100 and M = 80, so H = 1,000.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from forebay.core.delta import FinishReason
from forebay.core.errors import (
    AlreadyResolved,
    InsufficientQuota,
    StaleAttempt,
    TooManyOpenCalls,
    UnknownHold,
)
from forebay.core.hold import Account, Balance, Bill, Hold, HoldRequest, Period, UsageQuery
from forebay.core.job import Lane
from forebay.core.money import MAX_NANOS, PriceTerms
from forebay.core.principal import Scopes
from forebay.core.usage import Kind, Outcome, Timings, Usage, UsageRow
from forebay.ledger.audit import first_break
from forebay.testing.clock import FakeClock

SCOPES = Scopes("org_a", "prj_a", "key_a")
TERMS = PriceTerms("small", Lane.INTERACTIVE, 2, 1, 10)
H = 1_000
PLAIN = HoldRequest(
    id="req_1",
    scopes=SCOPES,
    model="small",
    lane=Lane.INTERACTIVE,
    price_version=1,
    input_tokens=100,
    ceiling_tokens=80,
    floor_tokens=80,
    choices=1,
    streamed=True,
    owner="gateway-1",
    created_at=1_800_000_000.0,
)


def ask(number: int = 1, **changes: Any) -> HoldRequest:
    """The plain request with another id, and what else differs."""
    return replace(PLAIN, id=f"req_{number}", **changes)


def bill(output_tokens: int, **changes: Any) -> Bill:
    return Bill(Usage(100, output_tokens, finish_reasons=(FinishReason.STOP,)), **changes)


async def furnish(ledger: Any, scopes: Scopes = SCOPES, **limits: Any) -> None:
    """Publish the price and open the accounts; the key's has the limits, the others have none."""
    assert (await ledger.publish_price(TERMS)).version == 1
    await ledger.open_account(Account(scopes.organisation_id))
    await ledger.open_account(Account(scopes.project_id))
    await ledger.open_account(Account(scopes.key_id, **limits))


async def figures(ledger: Any, scope: str = "key_a") -> tuple[int, int, int]:
    """Posted, pending, open."""
    balance: Balance = await ledger.balances(scope)
    return balance.posted_nanos, balance.pending_nanos, balance.open_holds


async def check_books(ledger: Any, opened: Iterable[Hold] = (), scopes: Scopes = SCOPES) -> None:
    """L1 and L15 for accounts of one total period, and L5: the chain holds."""
    opened = list(opened)
    rows = await ledger.usage(UsageQuery(organisation_id=scopes.organisation_id))
    expected = (
        sum(row.amount_nanos for row in rows),
        sum(hold.amount_nanos for hold in opened),
        len(opened),
    )
    for scope in scopes:
        assert await figures(ledger, scope) == expected, scope
    assert first_break(reversed(await ledger.usage(UsageQuery()))) is None


async def gather(operations: Iterable[Any]) -> list[Any]:
    return await asyncio.gather(*operations, return_exceptions=True)


async def test_l1_pending_is_the_open_holds_and_posted_the_settlements(ledger: Any) -> None:
    await furnish(ledger)
    first, second = await ledger.hold(ask(1)), await ledger.hold(ask(2))
    assert (first.amount_nanos, first.ceiling_tokens, first.attempt) == (H, 80, 1)
    await check_books(ledger, [first, second])
    row = await ledger.settle(first.id, 1, bill(30))
    assert row.amount_nanos == 100 * 2 + 30 * 10
    await check_books(ledger, [second])
    assert (await ledger.release(second.id, 1, bill(0))).amount_nanos == 0
    await check_books(ledger)
    assert await figures(ledger) == (500, 0, 0)


@pytest.mark.parametrize("k", [0, 1, 7])
async def test_l2_fifty_parallel_holds_are_granted_exactly_k_times(ledger: Any, k: int) -> None:
    """The cap is k·H + H - 1: one nano-USD short of one more."""
    await furnish(ledger, cap_nanos=k * H + H - 1)
    answers = await gather(ledger.hold(ask(number)) for number in range(50))
    granted = [answer for answer in answers if isinstance(answer, Hold)]
    refused = [answer for answer in answers if isinstance(answer, InsufficientQuota)]
    assert (len(granted), len(refused)) == (k, 50 - k)
    await check_books(ledger, granted)
    await gather(ledger.settle(hold.id, 1, bill(80)) for hold in granted)
    assert await figures(ledger) == (k * H, 0, 0)


@pytest.mark.parametrize("index", [0, 1, 2])
async def test_l2_a_hold_takes_all_scopes_or_none_and_names_the_one_that_refuses(
    ledger: Any, index: int
) -> None:
    await ledger.publish_price(TERMS)
    for position, scope in enumerate(SCOPES):
        await ledger.open_account(Account(scope, cap_nanos=1_999 if position == index else None))
    first = await ledger.hold(ask(1))
    with pytest.raises(InsufficientQuota) as refused:
        await ledger.hold(ask(2))
    kind = ("organisation", "project", "key")[index]
    assert f"the budget of its {kind} has 0.000000999 USD left" in refused.value.message
    assert "up to 0.000001 USD" in refused.value.message
    assert "at most 79 output tokens" in refused.value.message
    await check_books(ledger, [first])


@pytest.mark.parametrize("missing", [0, 1, 2])
async def test_l2_a_scope_without_an_account_has_cap_0_even_for_a_free_model(
    ledger: Any, missing: int
) -> None:
    await ledger.publish_price(PriceTerms("free", Lane.INTERACTIVE, 0, 0, 0))
    for position, scope in enumerate(SCOPES):
        if position != missing:
            await ledger.open_account(Account(scope))
    with pytest.raises(InsufficientQuota, match="has no account"):
        await ledger.hold(ask(model="free"))
    balance = await ledger.balances(SCOPES[missing])
    assert balance == Balance(Account(SCOPES[missing], cap_nanos=0), "", 0, 0, 0, 0)


async def test_l2_a_lowered_cap_refuses_new_holds_and_lets_running_ones_finish(ledger: Any) -> None:
    await furnish(ledger, cap_nanos=3 * H)
    holds = [await ledger.hold(ask(number)) for number in (1, 2, 3)]
    await ledger.set_cap("key_a", 500)
    assert (await ledger.balances("key_a")).high_water_nanos == 3 * H
    with pytest.raises(InsufficientQuota, match=r"has 0\.00 USD left"):
        await ledger.hold(ask(4))
    await ledger.settle(holds[0].id, 1, bill(0))
    assert (await ledger.balances("key_a")).high_water_nanos == 2 * H + 200
    await ledger.release(holds[1].id, 1, bill(0))
    await ledger.release(holds[2].id, 1, bill(0))
    balance = await ledger.balances("key_a")
    assert (balance.posted_nanos, balance.high_water_nanos) == (200, 500)
    assert (await ledger.hold(ask(5, ceiling_tokens=10, floor_tokens=10))).amount_nanos == 300
    with pytest.raises(InsufficientQuota):
        await ledger.hold(ask(6, ceiling_tokens=1, floor_tokens=1, input_tokens=0))


async def test_a_raised_or_lifted_cap_counts_at_once(ledger: Any) -> None:
    await furnish(ledger, cap_nanos=H)
    opened = [await ledger.hold(ask(1))]
    with pytest.raises(InsufficientQuota):
        await ledger.hold(ask(2))
    await ledger.set_cap("key_a", 2 * H)
    opened.append(await ledger.hold(ask(2)))
    await ledger.set_cap("key_a", None)
    opened.append(await ledger.hold(ask(3)))
    assert (await ledger.balances("key_a")).high_water_nanos is None
    await ledger.set_cap("key_a", H)
    assert (await ledger.balances("key_a")).high_water_nanos == 3 * H
    await check_books(ledger, opened)


async def test_without_a_cap_money_still_ends_where_64_bits_do(ledger: Any) -> None:
    await furnish(ledger)
    price = await ledger.publish_price(PriceTerms("dear", Lane.INTERACTIVE, 0, 0, MAX_NANOS // 2))
    dear = {"price_version": price.version, "model": "dear", "input_tokens": 0}
    opened = [await ledger.hold(ask(1, ceiling_tokens=2, floor_tokens=2, **dear))]
    with pytest.raises(InsufficientQuota):
        await ledger.hold(ask(2, ceiling_tokens=1, floor_tokens=1, **dear))
    with pytest.raises(OverflowError):
        await ledger.hold(ask(3, ceiling_tokens=3, floor_tokens=3, **dear))
    await check_books(ledger, opened)


async def test_a_default_ceiling_shrinks_to_what_the_tightest_balance_affords(ledger: Any) -> None:
    await furnish(ledger, cap_nanos=5 * H)
    await ledger.set_cap("prj_a", 200 + 10 * 2 * 33 + 19)
    hold = await ledger.hold(ask(1, floor_tokens=16, choices=2))
    assert (hold.ceiling_tokens, hold.amount_nanos) == (33, 200 + 10 * 2 * 33)
    await check_books(ledger, [hold])


async def test_a_ceiling_never_shrinks_below_its_floor(ledger: Any) -> None:
    await furnish(ledger, cap_nanos=200 + 160 - 1)
    with pytest.raises(InsufficientQuota, match=r"at least 0\.00000036 USD.*at most 15 output"):
        await ledger.hold(ask(1, floor_tokens=16))
    await ledger.set_cap("key_a", 199)
    with pytest.raises(InsufficientQuota, match="shorter prompt"):
        await ledger.hold(ask(1, floor_tokens=16))
    await check_books(ledger)


async def test_the_same_id_again_answers_the_same_hold(ledger: Any) -> None:
    await furnish(ledger, cap_nanos=H)
    answers = await gather(ledger.hold(ask(1)) for _ in range(10))
    assert set(answers) == {answers[0]}
    await ledger.dispatch("req_1", 2)
    assert await ledger.hold(ask(1)) == replace(answers[0], attempt=2)
    await check_books(ledger, answers[:1])
    row = await ledger.settle("req_1", 2, bill(1))
    with pytest.raises(AlreadyResolved) as resolved:
        await ledger.hold(ask(1))
    assert resolved.value.row == row


async def test_l3_input_is_the_holds_and_output_never_exceeds_n_times_m(ledger: Any) -> None:
    await furnish(ledger)
    hold = await ledger.hold(ask(1, choices=2))
    usage = Usage(7, 10_000, cached_input_tokens=5_000, counted="text")
    row = await ledger.settle(hold.id, 1, Bill(usage))
    assert row.usage == replace(usage, input_tokens=100, output_tokens=160, cached_input_tokens=100)
    assert row.amount_nanos == 100 * 1 + 160 * 10 <= hold.amount_nanos == 200 + 1_600
    await check_books(ledger)


async def test_l3_nothing_reported_is_input_only_and_never_negative(ledger: Any) -> None:
    await furnish(ledger)
    await ledger.hold(ask(1))
    row = await ledger.settle("req_1", 1, Bill(Usage(0, -5, cached_input_tokens=-1)))
    assert (row.usage.output_tokens, row.usage.cached_input_tokens, row.amount_nanos) == (0, 0, 200)


async def test_l4_a_hold_is_resolved_once_however_often_it_is_asked(ledger: Any) -> None:
    await furnish(ledger)
    await ledger.hold(ask(1))
    verbs = [ledger.settle, ledger.release] * 10
    answers = await gather(verb("req_1", 1, bill(n)) for n, verb in enumerate(verbs))
    rows = [answer for answer in answers if isinstance(answer, UsageRow)]
    assert len(rows) == 1
    others = [answer for answer in answers if not isinstance(answer, UsageRow)]
    assert all(isinstance(other, AlreadyResolved) and other.row == rows[0] for other in others)
    assert await ledger.usage(UsageQuery()) == rows
    await check_books(ledger)


async def test_a_hold_that_never_was_cannot_be_resolved_or_dispatched(ledger: Any) -> None:
    for verb in (ledger.settle, ledger.release):
        with pytest.raises(UnknownHold):
            await verb("req_0", 1, bill(1))
    with pytest.raises(UnknownHold):
        await ledger.dispatch("req_0", 2)
    with pytest.raises(UnknownHold):
        await ledger.adopt("req_0", "gateway-1")


async def test_l5_a_row_says_what_kind_of_call_it_was(ledger: Any, clock: FakeClock) -> None:
    """However it ends; the chain goes on over rows of both formats."""
    await furnish(ledger)
    for number in range(1, 5):
        await ledger.hold(ask(number, kind=Kind.SUMMARY if number % 2 else Kind.CALL))
    await ledger.settle("req_1", 1, bill(5))
    await ledger.settle("req_2", 1, bill(5))
    await ledger.sweep(0.0)
    await ledger.sweep(10.0)
    rows = await ledger.records.outbox(0, 10)
    assert [row.kind for row in rows] == [Kind.SUMMARY, Kind.CALL] * 2
    assert (await ledger.records.verify()).first_break is None
    assert await ledger.usage(UsageQuery()) == rows[::-1]


async def test_l5_the_resolution_row_says_everything_and_is_chained(
    ledger: Any, clock: FakeClock
) -> None:
    await furnish(ledger)
    await ledger.hold(ask(1))
    await ledger.hold(ask(2, streamed=False))
    clock.advance(3.5)
    timings = Timings(queue_ms=1, ttft_ms=20, duration_ms=300)
    first = await ledger.settle("req_1", 1, bill(5, timings=timings, reason="why"))
    second = await ledger.release("req_2", 1, bill(3, outcome=Outcome.FAILED, reason="engine"))
    assert first == UsageRow(
        sequence=1,
        call_id="req_1",
        organisation_id="org_a",
        project_id="prj_a",
        key_id="key_a",
        model="small",
        lane=Lane.INTERACTIVE,
        outcome=Outcome.COMPLETED,
        reason="why",
        attempt=1,
        usage=Usage(100, 5, finish_reasons=(FinishReason.STOP,)),
        timings=timings,
        price_version=1,
        amount_nanos=250,
        created_at=PLAIN.created_at,
        resolved_at=1_800_000_003.5,
        previous_hash="0" * 64,
        hash=first.hash,
    )
    assert (second.sequence, second.previous_hash) == (2, first.hash)
    assert (second.outcome, second.usage.output_tokens, second.amount_nanos) == (
        Outcome.FAILED,
        3,
        0,
    )
    assert await ledger.usage(UsageQuery()) == [second, first]
    assert first_break([first, second]) is None


async def test_a_release_writes_down_what_ran_but_never_more_than_was_held_for(ledger: Any) -> None:
    await furnish(ledger)
    await ledger.hold(ask(1))
    row = await ledger.release("req_1", 1, Bill(Usage(40, 999, 50, (None, None)), Outcome.EVICTED))
    assert row.usage == Usage(40, 80, 40, (None, None))
    await check_books(ledger)


async def test_l7_an_older_attempt_settles_and_releases_nothing(ledger: Any) -> None:
    await furnish(ledger)
    hold = await ledger.hold(ask(1))
    await ledger.dispatch(hold.id, 2)
    await ledger.dispatch(hold.id, 2)
    for verb in (ledger.settle, ledger.release):
        with pytest.raises(StaleAttempt, match="newer attempt"):
            await verb(hold.id, 1, bill(1))
        with pytest.raises(StaleAttempt, match="never dispatched"):
            await verb(hold.id, 3, bill(1))
    with pytest.raises(StaleAttempt):
        await ledger.dispatch(hold.id, 1)
    await check_books(ledger, [hold])
    row = await ledger.settle(hold.id, 2, bill(1))
    assert row.attempt == 2
    with pytest.raises(AlreadyResolved) as resolved:
        await ledger.dispatch(hold.id, 3)
    assert resolved.value.row == row
    with pytest.raises(AlreadyResolved):
        await ledger.settle(hold.id, 1, bill(1))


async def test_l7_an_adopted_hold_is_not_its_former_owners_any_more(ledger: Any) -> None:
    await furnish(ledger)
    hold = await ledger.hold(ask(1))
    assert await ledger.adopt(hold.id, "gateway-2") == 2
    assert await ledger.adopt(hold.id, "gateway-2") == 3
    for attempt in (1, 2):
        with pytest.raises(StaleAttempt):
            await ledger.settle(hold.id, attempt, bill(1))
    await ledger.dispatch(hold.id, 4)
    row = await ledger.settle(hold.id, 4, bill(1))
    with pytest.raises(AlreadyResolved) as resolved:
        await ledger.adopt(hold.id, "gateway-3")
    assert resolved.value.row == row
    await check_books(ledger)


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("period", "before", "after", "ids"),
    [
        (Period.MONTH, "2026-11-30T23:59:59", "2026-12-01T00:00:00", ("2026-11", "2026-12")),
        (Period.DAY, "2026-11-29T23:59:59", "2026-11-30T00:00:00", ("2026-11-29", "2026-11-30")),
    ],
)
async def test_l10_a_settlement_goes_to_the_period_of_its_hold(
    ledger: Any, clock: FakeClock, period: Period, before: str, after: str, ids: tuple[str, str]
) -> None:
    await furnish(ledger, cap_nanos=H, period=period)
    clock.jump_wall(at(before) - clock.now())
    await ledger.hold(ask(1, created_at=at(before)))
    with pytest.raises(InsufficientQuota, match="wait for the next"):
        await ledger.hold(ask(2, created_at=at(before)))
    clock.jump_wall(at(after) - clock.now())
    fresh = await ledger.balances("key_a")
    assert (fresh.period_id, fresh.pending_nanos, fresh.high_water_nanos) == (ids[1], 0, H)
    assert fresh.open_holds == 1
    await ledger.hold(ask(3, created_at=at(after)))
    await ledger.settle("req_1", 1, bill(10))
    assert await figures(ledger) == (0, H, 1)
    clock.jump_wall(at(before) - clock.now())
    old = await ledger.balances("key_a")
    assert (old.period_id, old.posted_nanos, old.pending_nanos) == (ids[0], 300, 0)
    assert await figures(ledger, "org_a") == (300, H, 1)


async def test_l10_a_jump_of_the_wall_clock_changes_no_balance(
    ledger: Any, clock: FakeClock
) -> None:
    await furnish(ledger)
    hold = await ledger.hold(ask(1))
    await ledger.beat("gateway-1", 1, {})
    await ledger.sweep(clock.monotonic())
    for jump in (-86_400.0, 172_800.0, 1e9):
        clock.jump_wall(jump)
        assert await ledger.sweep(clock.monotonic()) == []
        await check_books(ledger, [hold])


async def test_l15_a_scope_has_no_more_open_calls_than_its_limit(ledger: Any) -> None:
    await furnish(ledger, max_open_holds=3)
    answers = await gather(ledger.hold(ask(number)) for number in range(20))
    opened = [answer for answer in answers if isinstance(answer, Hold)]
    refused = [answer for answer in answers if isinstance(answer, TooManyOpenCalls)]
    assert (len(opened), len(refused)) == (3, 17)
    assert "key has 3 calls open; its limit is 3" in refused[0].message
    assert refused[0].retry_after_seconds is not None
    await check_books(ledger, opened)
    await ledger.settle(opened[0].id, 1, bill(1))
    await ledger.hold(ask(30))
    with pytest.raises(TooManyOpenCalls):
        await ledger.hold(ask(31))


async def test_l15_the_limit_of_an_organisation_counts_the_calls_of_all_its_keys(
    ledger: Any,
) -> None:
    await ledger.publish_price(TERMS)
    await ledger.open_account(Account("org_a", max_open_holds=2))
    for scope in ("prj_a", "key_a", "key_b"):
        await ledger.open_account(Account(scope))
    await ledger.hold(ask(1))
    await ledger.hold(ask(2, scopes=Scopes("org_a", "prj_a", "key_b")))
    with pytest.raises(TooManyOpenCalls, match="organisation"):
        await ledger.hold(ask(3))
    assert await figures(ledger, "key_b") == (0, H, 1)


async def test_a_spent_budget_is_named_before_too_many_open_calls(ledger: Any) -> None:
    """The first is final, the second invites to retry."""
    await furnish(ledger, cap_nanos=H, max_open_holds=1)
    await ledger.hold(ask(1))
    with pytest.raises(InsufficientQuota):
        await ledger.hold(ask(2))
