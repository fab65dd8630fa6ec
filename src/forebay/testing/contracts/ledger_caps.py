"""The ledger's limits that change while calls run, as tests: periods, open calls, prepaid credit.

Fixtures as in `forebay.testing.contracts.ledger`, where the plain call and its prices are.
"""

from __future__ import annotations

from typing import Any

import pytest

from forebay.core.errors import InsufficientQuota, TooManyOpenCalls
from forebay.core.hold import Account, Balance, Hold, Period
from forebay.core.money import MAX_NANOS
from forebay.testing.clock import FakeClock
from forebay.testing.contracts.ledger import H, ask, at, bill, check_books, figures, furnish, gather

NOVEMBER, DECEMBER_1, DECEMBER_2 = (
    at(f"2026-{day}T12:00:00") for day in ("11-30", "12-01", "12-02")
)


async def balance_at(ledger: Any, clock: FakeClock, moment: float) -> Balance:
    clock.jump_wall(moment - clock.now())
    balance: Balance = await ledger.balances("key_a")
    return balance


async def three_days(ledger: Any) -> None:
    """A settlement of 200 + 10·n on the n-th of three days, and an open hold on each."""
    await furnish(ledger, cap_nanos=20 * H, period=Period.DAY)
    for number, moment in enumerate((NOVEMBER, DECEMBER_1, DECEMBER_2), start=1):
        await ledger.hold(ask(number, created_at=moment))
        await ledger.settle(f"req_{number}", 1, bill(number))
        await ledger.hold(ask(10 + number, created_at=moment))


@pytest.mark.parametrize(
    ("period", "expected"),
    [
        (Period.DAY, [("2026-11-30", 210, H), ("2026-12-01", 220, H), ("2026-12-02", 230, H)]),
        (Period.MONTH, [("2026-11", 210, H), ("2026-12", 450, 2 * H), ("2026-12", 450, 2 * H)]),
        (Period.TOTAL, [("", 660, 3 * H)] * 3),
    ],
)
async def test_l1_another_period_has_what_was_settled_and_what_is_open_in_it(
    ledger: Any, clock: FakeClock, period: Period, expected: list[tuple[str, int, int]]
) -> None:
    await three_days(ledger)
    for through in (Period.TOTAL, Period.MONTH, period):
        await ledger.set_cap("key_a", 7 * H, through)
    found = []
    for moment in (NOVEMBER, DECEMBER_1, DECEMBER_2):
        balance = await balance_at(ledger, clock, moment)
        assert balance.account == Account("key_a", 7 * H, period)
        assert (balance.open_holds, balance.high_water_nanos) == (3, 7 * H)
        found.append((balance.period_id, balance.posted_nanos, balance.pending_nanos))
    assert found == expected
    for number in (11, 12, 13):
        await ledger.settle(f"req_{number}", 1, bill(80))
    for moment, (_, posted, pending) in zip(
        (NOVEMBER, DECEMBER_1, DECEMBER_2), expected, strict=True
    ):
        balance = await balance_at(ledger, clock, moment)
        assert (balance.posted_nanos, balance.pending_nanos) == (posted + pending, 0)
    assert await figures(ledger, "prj_a") == (660 + 3 * H, 0, 0), "the others keep theirs"


async def test_l2_high_water_follows_into_another_period(ledger: Any, clock: FakeClock) -> None:
    await three_days(ledger)
    await ledger.set_cap("key_a", 1, Period.TOTAL)
    balance = await balance_at(ledger, clock, DECEMBER_2)
    assert balance.high_water_nanos == 660 + 3 * H
    with pytest.raises(InsufficientQuota, match=r"has 0\.00 USD left"):
        await ledger.hold(ask(20, created_at=DECEMBER_2))
    await ledger.set_cap("key_a", None, Period.MONTH)
    assert (await ledger.balances("key_a")).high_water_nanos is None
    await ledger.set_cap("key_a", 450 + 3 * H)
    assert isinstance(await ledger.hold(ask(21, created_at=DECEMBER_2)), Hold)
    with pytest.raises(InsufficientQuota, match=r"monthly budget .* has 0\.00 USD left"):
        await ledger.hold(ask(22, created_at=DECEMBER_2))
    assert isinstance(await ledger.hold(ask(23, created_at=NOVEMBER)), Hold)


async def test_l10_a_month_that_begins_needs_no_reset(ledger: Any) -> None:
    """Fault 85: calls race over midnight; each counts in the month of its own hold, none is lost."""
    await furnish(ledger, cap_nanos=5 * H, period=Period.MONTH)
    last, first = at("2026-11-30T23:59:59"), at("2026-12-01T00:00:00")
    moments = [last if number % 2 else first for number in range(20)]
    answers = await gather(
        ledger.hold(ask(number, created_at=moment)) for number, moment in enumerate(moments)
    )
    held = [moments[n] for n, answer in enumerate(answers) if isinstance(answer, Hold)]
    assert (held.count(last), held.count(first)) == (5, 5)
    assert sum(isinstance(answer, InsufficientQuota) for answer in answers) == 10


async def test_l1_the_same_period_again_only_changes_the_cap(ledger: Any) -> None:
    await furnish(ledger, cap_nanos=H)
    hold = await ledger.hold(ask(1))
    await ledger.set_cap("key_a", 2 * H, Period.TOTAL)
    await check_books(ledger, [hold, await ledger.hold(ask(2))])
    for refused in (
        ledger.set_cap("key_z", 1, Period.DAY),
        ledger.set_max_open_holds("key_z", 1),
        ledger.top_up("key_z", 1, "top-1"),
    ):
        with pytest.raises(KeyError, match="key_z"):
            await refused


async def test_l15_a_lowered_limit_of_open_calls_lets_running_ones_finish(ledger: Any) -> None:
    await furnish(ledger)
    opened = [await ledger.hold(ask(number)) for number in (1, 2, 3)]
    await ledger.set_max_open_holds("key_a", 1)
    assert (await ledger.balances("key_a")).account == Account("key_a", max_open_holds=1)
    for hold in opened:
        with pytest.raises(TooManyOpenCalls, match="limit is 1"):
            await ledger.hold(ask(9))
        await ledger.settle(hold.id, 1, bill(1))
    await ledger.hold(ask(9))
    await ledger.set_max_open_holds("key_a", None)
    assert isinstance(await ledger.hold(ask(10)), Hold)
    with pytest.raises(ValueError, match="-1 is not a number of calls"):
        await ledger.set_max_open_holds("key_a", -1)


async def test_l2_credit_is_a_cap_that_top_ups_raise(ledger: Any) -> None:
    await furnish(ledger, cap_nanos=0)
    with pytest.raises(InsufficientQuota):
        await ledger.hold(ask(1))
    assert await ledger.top_up("key_a", H, "top-1") == Account("key_a", H)
    hold = await ledger.hold(ask(1))
    with pytest.raises(InsufficientQuota):
        await ledger.hold(ask(2))
    assert await ledger.top_up("key_a", 1, "top-2") == Account("key_a", H + 1)
    assert (await ledger.balances("key_a")).high_water_nanos == H + 1
    await check_books(ledger, [hold])


async def test_a_top_up_is_booked_once_for_each_id(ledger: Any) -> None:
    await furnish(ledger, cap_nanos=0)
    answers = await gather(ledger.top_up("key_a", H, "top-1") for _ in range(10))
    assert answers == [Account("key_a", H)] * 10
    await ledger.set_cap("key_a", 5, Period.DAY)
    assert await ledger.top_up("key_a", H, "top-1") == Account("key_a", 5, Period.DAY)
    for scope, amount in (("key_a", 1), ("prj_a", H)):
        with pytest.raises(
            ValueError, match=r"top-1 was booked before, as 0\.000001 USD for key_a"
        ):
            await ledger.top_up(scope, amount, "top-1")


async def test_a_top_up_of_a_scope_without_a_cap_starts_from_what_is_spoken_for(
    ledger: Any,
) -> None:
    await furnish(ledger)
    await ledger.hold(ask(1))
    await ledger.settle("req_1", 1, bill(1))
    await ledger.hold(ask(2))
    assert (await ledger.top_up("key_a", 7, "top-1")).cap_nanos == 210 + H + 7


async def test_a_top_up_that_makes_no_sense_is_refused(ledger: Any) -> None:
    await furnish(ledger, cap_nanos=1)
    for amount, id in ((0, "top-1"), (-1, "top-1"), (1, ""), (MAX_NANOS, "top-1")):
        with pytest.raises(ValueError):
            await ledger.top_up("key_a", amount, id)
    await ledger.set_cap("key_a", 1, Period.MONTH)
    with pytest.raises(ValueError, match="key_a has a cap per month"):
        await ledger.top_up("key_a", 1, "top-1")
    assert (await ledger.balances("key_a")).account == Account("key_a", 1, Period.MONTH)
