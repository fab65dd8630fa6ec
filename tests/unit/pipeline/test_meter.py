"""Windows of an engine's counters, and what becomes of them when something goes wrong."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from forebay.core.delta import EngineTally
from forebay.core.errors import StoreUnavailable
from forebay.core.records import EngineWindow
from forebay.observe import Metrics
from forebay.pipeline.meter import Meters
from forebay.pipeline.report import Reporter
from forebay.pipeline.worker import Received
from forebay.testing.clock import FakeClock
from forebay.testing.loop import LoopClock, VirtualLoop

BEGIN = 1_800_000_000.0  # a whole minute


class Pool:
    """An engine and its worker whose counters this test sets."""

    def __init__(self) -> None:
        self.counted = EngineTally(1, 0, 0, 0)
        self.got = Received(0, 0)

    def tally(self) -> EngineTally:
        return self.counted

    def received(self) -> Received:
        return self.got


class Books:
    """Keeps windows as a ledger does: by minute, engine and boot."""

    def __init__(self) -> None:
        self.kept: dict[tuple[float, str, str], EngineWindow] = {}
        self.failing = False

    async def record(self, window: EngineWindow) -> None:
        if self.failing:
            raise StoreUnavailable("simulated")
        assert min(window.engine_tokens, window.received_tokens, window.discarded_tokens) >= 0
        self.kept[window.minute_at, window.engine, window.boot] = window

    @property
    def windows(self) -> list[EngineWindow]:
        return [self.kept[place] for place in sorted(self.kept)]


class Bench:
    """One metered pool on a clock that the test moves."""

    def __init__(self) -> None:
        self.clock = FakeClock(now=BEGIN)
        self.pool = Pool()
        self.books = Books()
        self.metrics = Metrics()
        self.meters = Meters(
            self.books.record, process="gw_1", clock=self.clock, report=Reporter(self.metrics)
        )
        self.meters.add("small", self.pool, self.pool)

    async def minute(self, tally: tuple[int, int, int, int], got: tuple[int, int]) -> None:
        """A minute passes, after which the counters stand like this."""
        self.clock.advance(60)
        self.pool.counted, self.pool.got = EngineTally(*tally), Received(*got)
        await self.meters.close_windows()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def window(
    minute: int, engine: int, received: int, discarded: int, *, boot: int = 1, complete: bool = True
) -> EngineWindow:
    name, minute_at = f"gw_1.{boot}", BEGIN + 60 * minute
    return EngineWindow("small", name, minute_at, engine, received, discarded, complete)


async def test_each_minute_has_what_changed_in_it_on_both_sides(bench: Bench) -> None:
    await bench.minute((1, 10, 0, 4), (6, 0))  # four are on their way
    await bench.minute((1, 10, 0, 0), (10, 0))
    await bench.minute((1, 30, 5, 0), (22, 3))
    assert bench.books.windows == [
        window(0, 6, 6, 0),
        window(1, 4, 4, 0),
        window(2, 20, 12, 8),
    ]


async def test_what_was_on_its_way_and_is_thrown_away_is_discarded_where_that_happens(
    bench: Bench,
) -> None:
    await bench.minute((1, 10, 0, 4), (6, 0))
    await bench.minute((1, 10, 4, 0), (6, 0))
    assert bench.books.windows == [window(0, 6, 6, 0), window(1, 4, 0, 4)]


async def test_a_minute_in_which_nothing_happened_leaves_no_window(bench: Bench) -> None:
    await bench.minute((1, 0, 0, 0), (0, 0))
    await bench.minute((1, 5, 0, 0), (5, 0))
    await bench.minute((1, 5, 0, 0), (5, 0))
    assert bench.books.windows == [window(1, 5, 5, 0)]


async def test_a_window_in_which_the_engine_was_started_again_is_not_complete(bench: Bench) -> None:
    await bench.minute((1, 5, 0, 0), (5, 0))
    await bench.minute((2, 9, 1, 0), (8, 0))
    await bench.minute((2, 12, 1, 0), (11, 0))
    assert bench.books.windows == [
        window(0, 5, 5, 0),
        window(1, 4, 3, 1, boot=2, complete=False),
        window(2, 3, 3, 0, boot=2),
    ]


async def test_a_window_that_was_closed_early_is_replaced_by_one_with_more_in_it(
    bench: Bench,
) -> None:
    """A server that stops, or a timer that fires a moment before the minute is over."""
    bench.clock.advance(20)
    bench.pool.counted, bench.pool.got = EngineTally(1, 3, 0, 0), Received(3, 0)
    await bench.meters.close_windows()
    assert bench.books.windows == [window(0, 3, 3, 0)]
    await bench.minute((1, 8, 1, 0), (7, 0))
    await bench.minute((1, 9, 1, 0), (8, 0))
    assert bench.books.windows == [window(0, 8, 7, 1), window(1, 1, 1, 0)]


async def test_a_clock_that_is_set_back_puts_nothing_into_an_older_window(bench: Bench) -> None:
    """L10."""
    await bench.minute((1, 5, 0, 0), (5, 0))
    bench.clock.jump_wall(-86_400)
    await bench.minute((1, 8, 0, 0), (8, 0))
    bench.clock.jump_wall(86_400)
    await bench.minute((1, 10, 0, 0), (10, 0))
    assert bench.books.windows == [window(0, 5, 5, 0), window(1, 5, 5, 0)]


async def test_a_window_that_cannot_be_stored_is_part_of_the_next(bench: Bench) -> None:
    bench.books.failing = True
    with capture_logs() as logs:
        await bench.minute((1, 5, 0, 0), (5, 0))
    assert [line["event"] for line in logs] == ["window_failed"]
    bench.books.failing = False
    await bench.minute((1, 8, 0, 0), (8, 0))
    assert bench.books.windows == [window(0, 8, 8, 0)]


@pytest.mark.parametrize(("made", "engine"), [(7, 7), (2, 2), (0, 0)])
async def test_an_engine_that_counts_otherwise_than_we_do_is_told_of_once(
    bench: Bench, made: int, engine: int
) -> None:
    with capture_logs() as logs:
        await bench.minute((1, made, 0, 0), (5, 0))
        await bench.minute((1, made + 4, 0, 0), (9, 0))
    assert [(line["event"], line["engine"], line["counted"]) for line in logs] == [
        ("usage_mismatch", engine, 5)
    ]
    assert bench.books.windows == [window(0, engine, 5, 0), window(1, 4, 4, 0)]
    [sample] = [
        sample.value
        for metric in bench.metrics.registry.collect()
        for sample in metric.samples
        if sample.name == "forebay_usage_mismatches_total"
    ]
    assert sample == 1


async def test_a_counter_that_runs_backwards_counts_nothing_and_is_a_difference(
    bench: Bench,
) -> None:
    await bench.minute((1, 50, 0, 0), (50, 0))
    with capture_logs() as logs:
        await bench.minute((1, 10, 0, 0), (60, 0))
    assert bench.books.windows[1] == window(1, 0, 10, 0)
    assert [line["event"] for line in logs] == ["usage_mismatch"]


def test_windows_are_closed_when_the_minutes_of_the_wall_clock_end() -> None:
    loop = VirtualLoop(1)
    clock, books, pool = LoopClock(loop), Books(), Pool()
    meters = Meters(books.record, process="gw_1", clock=clock, report=Reporter(Metrics()))

    async def story() -> None:
        await asyncio.sleep(60 - clock.now() % 60 + 12)
        meters.add("small", pool, pool)
        began = clock.now()
        role = asyncio.ensure_future(meters.run())
        for second in range(130):
            pool.counted, pool.got = EngineTally(1, second + 1, 0, 0), Received(second + 1, 0)
            await asyncio.sleep(1)
        role.cancel()
        assert [each.minute_at - began for each in books.windows] == [-12, 48]
        assert [each.engine_tokens for each in books.windows] == pytest.approx([48, 60], abs=1)

    loop.run_until_complete(story())
    loop.close()
