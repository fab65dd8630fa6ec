"""A hold is resolved exactly once, whatever the store does meanwhile (L4), in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from structlog.testing import capture_logs

from forebay.core.errors import StoreUnavailable
from forebay.core.hold import Account, Bill, HoldRequest, UsageQuery
from forebay.core.job import Lane
from forebay.core.money import PriceTerms
from forebay.core.principal import Scopes
from forebay.core.usage import Outcome, Usage, UsageRow
from forebay.ledger.memory import MemoryLedger
from forebay.observe import Metrics
from forebay.pipeline.report import Reporter
from forebay.pipeline.resolve import LAST_DELAY_SECONDS, TRIES, Resolver
from forebay.testing.flaky import FlakyLedger
from forebay.testing.loop import LoopClock, VirtualLoop, spawn

SCOPES = Scopes("org", "proj", "key")
BILL = Bill(Usage(10, 5), Outcome.COMPLETED, "ended")
NOTHING = Bill(Usage(10, 5), Outcome.FAILED, "engine_fault")
AMOUNT_NANOS = 10 * 1 + 5 * 3


class FailingLedger(MemoryLedger):
    """Settling and releasing fail the first `failures` times, before anything was done."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__(LoopClock(loop))
        self.failures = 0.0
        self.asked: list[tuple[str, float]] = []
        self._loop = loop

    async def settle(self, hold_id: str, attempt: int, bill: Bill) -> UsageRow:
        self._fail("settle")
        return await super().settle(hold_id, attempt, bill)

    async def release(self, hold_id: str, attempt: int, bill: Bill) -> UsageRow:
        self._fail("release")
        return await super().release(hold_id, attempt, bill)

    def _fail(self, verb: str) -> None:
        self.asked.append((verb, self._loop.time()))
        if self.failures > 0:
            self.failures -= 1
            raise StoreUnavailable("simulated")

    @property
    def verbs(self) -> list[str]:
        """What was asked, in order."""
        return [verb for verb, _ in self.asked]

    async def open_hold(self, hold_id: str = "req_1") -> None:
        """Hold money for a call at 1 nano-USD a token in, 3 a token out."""
        for scope in SCOPES:
            await self.open_account(Account(scope))
        price = await self.publish_price(PriceTerms("small", Lane.INTERACTIVE, 1, 0, 3))
        request = HoldRequest(
            id=hold_id,
            scopes=SCOPES,
            model="small",
            lane=Lane.INTERACTIVE,
            price_version=price.version,
            input_tokens=10,
            ceiling_tokens=20,
            floor_tokens=20,
            choices=1,
            streamed=True,
            owner="gw",
            created_at=1_800_000_000.0,
        )
        await self.hold(request)


Story = Callable[[], Coroutine[Any, Any, None]]


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop(1)
    yield loop
    loop.close()


@pytest.fixture
def ledger(loop: VirtualLoop) -> FailingLedger:
    return FailingLedger(loop)


async def unheard(row: UsageRow) -> None:
    """Nothing is remembered of these calls."""


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def resolver(ledger: FailingLedger, metrics: Metrics) -> Resolver:
    return Resolver(ledger, spawn, Reporter(metrics), concluded=unheard)


def live(loop: VirtualLoop, story: Story) -> list[Any]:
    """The log of the story, told to its end."""
    with capture_logs() as logs:
        loop.run_until_complete(story())
    return logs


def reports(logs: Sequence[Any]) -> int:
    """How many canonical lines there are."""
    return sum(line["event"] == "call" for line in logs)


def counted(metrics: Metrics, outcome: Outcome) -> float:
    return sum(
        sample.value
        for metric in metrics.registry.collect()
        for sample in metric.samples
        if sample.labels.get("outcome") == outcome.value and sample.name.endswith("_total")
    )


async def rows(ledger: MemoryLedger) -> list[UsageRow]:
    return await ledger.usage(UsageQuery())


# -- somebody waits


@pytest.mark.parametrize(("failures", "seconds"), [(0, 0.0), (1, 0.25), (TRIES - 1, 1.75)])
def test_a_store_that_comes_back_in_time_is_asked_until_it_charges(
    loop, ledger, resolver, metrics, failures, seconds
):
    async def story() -> None:
        await ledger.open_hold()
        ledger.failures = failures
        row = await resolver.settle("req_1", 1, BILL)
        assert row is not None
        assert (row.outcome, row.amount_nanos) == (Outcome.COMPLETED, AMOUNT_NANOS)
        assert await rows(ledger) == [row]

    logs = live(loop, story)
    assert loop.time() == seconds
    assert ledger.verbs == ["settle"] * (failures + 1)
    assert reports(logs) == counted(metrics, Outcome.COMPLETED) == 1
    assert sum(line["event"] == "settle_failed" for line in logs) == failures


def test_a_store_that_stays_away_makes_the_call_free_as_soon_as_it_is_back(
    loop, ledger, resolver, metrics
):
    """P3: the client is told that it failed, so it must not be charged; L4: and only once."""

    async def story() -> None:
        await ledger.open_hold()
        ledger.failures = TRIES + 3
        with pytest.raises(StoreUnavailable, match="costs nothing"):
            await resolver.settle("req_1", 1, BILL)
        assert await rows(ledger) == []
        assert (await ledger.balances("key")).open_holds == 1
        await asyncio.sleep(60)
        [row] = await rows(ledger)
        assert row.amount_nanos == 0
        assert (row.outcome, row.reason) == (Outcome.FAILED, "store_unavailable")
        balance = await ledger.balances("key")
        assert (balance.open_holds, balance.pending_nanos, balance.posted_nanos) == (0, 0, 0)

    logs = live(loop, story)
    assert ledger.verbs == ["settle"] * TRIES + ["release"] * 4
    assert reports(logs) == 1


# -- nobody waits


@pytest.mark.parametrize("verb", ["settle", "release"])
def test_what_nobody_waits_for_is_tried_in_the_background_until_stored(
    loop, ledger, resolver, verb
):
    later = resolver.settle_later if verb == "settle" else resolver.release

    async def story() -> None:
        await ledger.open_hold()
        ledger.failures = 6
        assert await later("req_1", 1, BILL) is None
        assert loop.time() == 0.0, "it must not make its caller wait"
        await asyncio.sleep(3600)
        [row] = await rows(ledger)
        assert row.amount_nanos == (AMOUNT_NANOS if verb == "settle" else 0)

    logs = live(loop, story)
    assert ledger.verbs == [verb] * 7
    assert reports(logs) == 1


@pytest.mark.parametrize("verb", ["settle_later", "release"])
def test_what_can_be_stored_at_once_is_and_answers_its_row(loop, ledger, resolver, verb):
    async def story() -> None:
        await ledger.open_hold()
        row = await getattr(resolver, verb)("req_1", 1, BILL)
        assert [row] == await rows(ledger)

    assert reports(live(loop, story)) == 1
    assert len(ledger.asked) == 1


def test_a_store_that_is_away_for_an_hour_is_asked_ever_less_often_but_never_given_up(
    loop, ledger, resolver
):
    async def story() -> None:
        await ledger.open_hold()
        ledger.failures = float("inf")
        await resolver.release("req_1", 1, NOTHING)
        await asyncio.sleep(3600)
        assert await rows(ledger) == []
        ledger.failures = 0
        await asyncio.sleep(LAST_DELAY_SECONDS)
        assert len(await rows(ledger)) == 1

    live(loop, story)
    times = [at for _, at in ledger.asked]
    gaps = [after - before for before, after in pairwise(times)]
    assert gaps[:7] == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, LAST_DELAY_SECONDS]
    assert set(gaps[6:]) == {LAST_DELAY_SECONDS}


# -- somebody else was first


@pytest.mark.parametrize("verb", ["settle", "settle_later", "release"])
def test_a_hold_that_was_resolved_before_answers_how_and_is_not_reported_again(
    loop, ledger, resolver, metrics, verb
):
    """L4."""

    async def story() -> None:
        await ledger.open_hold()
        first = await resolver.settle("req_1", 1, BILL)
        assert first is not None
        assert await getattr(resolver, verb)("req_1", 1, NOTHING) == first
        assert await rows(ledger) == [first]

    logs = live(loop, story)
    assert reports(logs) == counted(metrics, Outcome.COMPLETED) == 1
    assert counted(metrics, Outcome.FAILED) == 0


@pytest.mark.parametrize("verb", ["settle", "settle_later", "release"])
def test_an_attempt_that_is_not_the_newest_resolves_nothing(loop, ledger, resolver, verb):
    """L7."""

    async def story() -> None:
        await ledger.open_hold()
        await ledger.dispatch("req_1", 2)
        assert await getattr(resolver, verb)("req_1", 1, BILL) is None
        assert await rows(ledger) == []
        assert (await ledger.balances("key")).open_holds == 1

    assert reports(live(loop, story)) == 0
    assert len(ledger.asked) == 1, "trying again would change nothing"


@pytest.mark.parametrize("verb", ["settle", "settle_later", "release"])
def test_a_hold_that_never_was_is_nothing_to_resolve(loop, ledger, resolver, verb):
    async def story() -> None:
        assert await getattr(resolver, verb)("req_9", 1, BILL) is None

    assert reports(live(loop, story)) == 0
    assert len(ledger.asked) == 1


def test_a_newer_attempt_ends_what_is_still_tried_for_the_older_one(loop, ledger, resolver):
    """L7: also in the background."""

    async def story() -> None:
        await ledger.open_hold()
        ledger.failures = 3
        assert await resolver.settle_later("req_1", 1, BILL) is None
        await ledger.dispatch("req_1", 2)
        await asyncio.sleep(3600)
        assert await rows(ledger) == []

    live(loop, story)
    assert ledger.verbs == ["settle"] * 4


def test_what_was_resolved_meanwhile_ends_what_is_still_tried(loop, ledger, resolver):
    """L4: the keeper swept it while its worker's store was away."""

    async def story() -> None:
        await ledger.open_hold()
        ledger.failures = 3
        assert await resolver.settle_later("req_1", 1, BILL) is None
        swept = await MemoryLedger.release(ledger, "req_1", 1, NOTHING)
        await asyncio.sleep(3600)
        assert await rows(ledger) == [swept]

    assert reports(live(loop, story)) == 0
    assert ledger.verbs == ["settle"] * 4


# -- a store that loses answers, stalls and fails at random


@pytest.mark.parametrize("schedule", range(10))
def test_every_hold_is_resolved_once_over_a_store_that_fails_at_random(schedule):
    """L1, L4: also when it did what it was asked and its answer was lost."""
    loop = VirtualLoop(schedule)
    ledger = FailingLedger(loop)
    flaky = FlakyLedger(ledger, random.Random(schedule), share=0.6, stalls=(2.0, 9.0))
    resolver = Resolver(flaky, spawn, Reporter(Metrics()), concluded=unheard)
    ids = [f"req_{number}" for number in range(20)]

    async def one(number: int, id_: str) -> None:
        await asyncio.sleep(number / 5)
        verb = resolver.settle_later if number % 2 else resolver.release
        await verb(id_, 1, BILL if number % 2 else NOTHING)

    async def story() -> None:
        for id_ in ids:
            await ledger.open_hold(id_)
        await asyncio.gather(*(one(number, id_) for number, id_ in enumerate(ids)))
        await asyncio.sleep(600)
        assert sorted(row.call_id for row in await rows(ledger)) == sorted(ids)
        balance = await ledger.balances("org")
        assert (balance.open_holds, balance.pending_nanos) == (0, 0)
        assert balance.posted_nanos == AMOUNT_NANOS * len(ids) // 2

    assert reports(live(loop, story)) <= len(ids)
    loop.close()


class AnswerLost(FailingLedger):
    """The first settlement takes effect, and its answer is lost."""

    lost = False

    async def settle(self, hold_id: str, attempt: int, bill: Bill) -> UsageRow:
        row = await super().settle(hold_id, attempt, bill)
        if not self.lost:
            self.lost = True
            raise StoreUnavailable("lost")
        return row


def test_a_settlement_whose_answer_was_lost_is_reported_once(loop: VirtualLoop) -> None:
    ledger = AnswerLost(loop)
    resolver = Resolver(ledger, spawn, Reporter(Metrics()), concluded=unheard)

    async def story() -> None:
        await ledger.open_hold()
        assert await resolver.settle("req_1", 1, BILL) is not None

    assert reports(live(loop, story)) == 1


def test_a_settlement_whose_answer_was_lost_for_good_is_reported_once_too(
    loop: VirtualLoop,
) -> None:
    """The store went away in the moment of the commit, and was away when the client was told."""
    ledger = AnswerLost(loop)
    resolver = Resolver(ledger, spawn, Reporter(Metrics()), concluded=unheard)

    async def story() -> None:
        await ledger.open_hold()
        task = asyncio.ensure_future(resolver.settle("req_1", 1, BILL))
        await asyncio.sleep(0.1)
        ledger.failures = TRIES - 1
        with pytest.raises(StoreUnavailable):
            await task
        await asyncio.sleep(60)
        assert len(await rows(ledger)) == 1

    assert reports(live(loop, story)) == 1
