"""The ledger's beats and sweeps as tests: who is dead, and what its calls then cost (L8, L10).

Fixtures as in `forebay.testing.contracts.ledger`. `sweep` is given the keeper's monotonic clock;
the wall clock never counts.
"""

from __future__ import annotations

from typing import Any

import pytest

from forebay.core.errors import AlreadyResolved
from forebay.core.hold import UsageQuery
from forebay.core.usage import Outcome, UsageRow
from forebay.testing.clock import FakeClock
from forebay.testing.contracts.ledger import H, ask, bill, check_books, figures, furnish


async def after_death(ledger: Any, *, since: float = 0.0) -> list[UsageRow]:
    """A sweep that sees the last beats, and one when they have stood still for 10 s."""
    assert await ledger.sweep(since) == []
    assert await ledger.sweep(since + 9.9) == []
    return list(await ledger.sweep(since + 10.0))


async def test_l8_a_streamed_call_of_a_dead_owner_is_settled_at_its_watermark(ledger: Any) -> None:
    await furnish(ledger)
    await ledger.hold(ask(1))
    await ledger.beat("gateway-1", 1, {"req_1": 12, "req_9": 5})
    await ledger.beat("gateway-1", 2, {"req_1": 31})
    (row,) = await after_death(ledger)
    assert (row.outcome, row.reason) == (Outcome.CANCELLED, "owner_died")
    assert (row.usage.input_tokens, row.usage.output_tokens) == (100, 31)
    assert row.amount_nanos == 200 + 310
    await check_books(ledger)
    with pytest.raises(AlreadyResolved) as late:
        await ledger.settle("req_1", 1, bill(40))
    assert late.value.row == row
    assert await ledger.usage(UsageQuery()) == [row]


async def test_l7_an_adopted_hold_lives_and_dies_with_its_new_owner(ledger: Any) -> None:
    await furnish(ledger)
    await ledger.hold(ask(1))
    await ledger.beat("gateway-1", 1, {"req_1": 12})
    assert await ledger.sweep(0.0) == []
    await ledger.adopt("req_1", "gateway-2")
    await ledger.beat("gateway-2", 1, {})
    assert await ledger.sweep(10.0) == []
    assert await ledger.sweep(19.9) == []
    (row,) = await ledger.sweep(20.0)
    assert (row.outcome, row.attempt, row.amount_nanos) == (Outcome.FAILED, 2, 0)
    await check_books(ledger)


async def test_l8_a_watermark_beyond_n_times_m_is_not_believed(ledger: Any) -> None:
    await furnish(ledger)
    await ledger.hold(ask(1, choices=2))
    await ledger.beat("gateway-1", 1, {"req_1": 5_000})
    (row,) = await after_death(ledger)
    assert (row.usage.output_tokens, row.amount_nanos) == (160, 200 + 1_600)


@pytest.mark.parametrize(
    ("streamed", "progress"), [(False, {"req_1": 12}), (True, {"req_1": 0}), (True, {})]
)
async def test_l8_a_call_of_which_nobody_read_anything_is_released(
    ledger: Any, streamed: bool, progress: dict[str, int]
) -> None:
    await furnish(ledger)
    await ledger.hold(ask(1, streamed=streamed))
    await ledger.beat("gateway-1", 1, progress)
    (row,) = await after_death(ledger)
    assert (row.outcome, row.reason, row.amount_nanos) == (Outcome.FAILED, "owner_died", 0)
    await check_books(ledger)


async def test_only_the_owners_own_beat_is_a_watermark(ledger: Any) -> None:
    """A worker that read more of the engine than the gateway did is not the client."""
    await furnish(ledger)
    await ledger.hold(ask(1))
    await ledger.beat("worker-1", 1, {"req_1": 40})
    await ledger.beat("gateway-1", 1, {"req_1": 25})
    (row,) = await after_death(ledger)
    assert row.usage.output_tokens == 25


async def test_l10_a_process_whose_counter_moves_is_alive_whatever_the_wall_clock_says(
    ledger: Any, clock: FakeClock
) -> None:
    await furnish(ledger)
    hold = await ledger.hold(ask(1))
    for counter in range(40):
        await ledger.beat("gateway-1", counter, {"req_1": counter})
        clock.jump_wall(86_400.0 * (-1) ** counter)
        clock.advance(5.0)
        assert await ledger.sweep(clock.monotonic()) == []
    await check_books(ledger, [hold])


async def test_a_counter_that_starts_again_is_life(ledger: Any) -> None:
    await furnish(ledger)
    await ledger.hold(ask(1))
    await ledger.beat("gateway-1", 900, {})
    assert await ledger.sweep(0.0) == []
    await ledger.beat("gateway-1", 1, {})
    assert len(await after_death(ledger, since=9.0)) == 1


async def test_an_owner_that_never_beats_counts_from_the_first_sweep_that_saw_its_hold(
    ledger: Any,
) -> None:
    await furnish(ledger)
    assert await ledger.sweep(0.0) == []
    await ledger.hold(ask(1))
    (row,) = await after_death(ledger, since=50.0)
    assert row.outcome is Outcome.FAILED
    await ledger.hold(ask(2))
    (row,) = await after_death(ledger, since=60.5)
    assert row.call_id == "req_2"


async def test_the_dead_are_forgotten_and_one_that_comes_back_is_new(ledger: Any) -> None:
    await furnish(ledger)
    await ledger.hold(ask(1))
    await ledger.beat("gateway-1", 7, {"req_1": 3, "req_2": 50})
    assert len(await after_death(ledger)) == 1
    await ledger.hold(ask(2))
    (row,) = await after_death(ledger, since=11.0)
    assert (row.call_id, row.outcome) == ("req_2", Outcome.FAILED), "its old beat is gone"
    await ledger.beat("gateway-1", 7, {"req_3": 3})
    await ledger.hold(ask(3))
    (row,) = await after_death(ledger, since=22.0)
    assert row.usage.output_tokens == 3


async def test_a_sweep_resolves_the_holds_of_the_dead_in_order_and_no_others(ledger: Any) -> None:
    await furnish(ledger)
    await ledger.hold(ask(3, owner="gateway-2"))
    await ledger.hold(ask(2, owner="gateway-1"))
    await ledger.hold(ask(1, owner="gateway-2"))
    alive = await ledger.hold(ask(4, owner="gateway-3"))
    await ledger.beat("gateway-2", 1, {"req_3": 1})
    assert await ledger.sweep(0.0) == []
    for second in range(1, 10):
        await ledger.beat("gateway-3", second, {})
        assert await ledger.sweep(float(second)) == []
    rows = await ledger.sweep(10.0)
    assert [row.call_id for row in rows] == ["req_2", "req_3", "req_1"]
    assert [row.amount_nanos for row in rows] == [0, 210, 0]
    await check_books(ledger, [alive])
    assert await figures(ledger) == (210, H, 1)
    assert await ledger.sweep(11.0) == []
