"""Thresholds to webhooks in virtual time, on stores in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from openai import OpenAI

from forebay.alerts import MOST_ATTEMPTS, AlertEvent, Alerts, AlertSettings, EventState, SpendAlert
from forebay.alerts.memory import MemoryAlerts
from forebay.core.errors import StoreUnavailable
from forebay.core.hold import Period
from forebay.core.job import Lane
from forebay.core.usage import Outcome, Timings, Usage, UsageRow
from forebay.ledger import day_id, period_id
from forebay.observe import Metrics
from forebay.pipeline import alerting
from forebay.pipeline.alerting import MOST_AT_ONCE, OUTBOX_ROWS, Alerting, Webhooks
from forebay.pipeline.report import Reporter
from forebay.testing.clock import CountingIds
from forebay.testing.loop import LoopClock, VirtualLoop, spawn
from forebay.testing.receivers import ScriptedReceivers

KEY = bytes(range(32))
URL, OTHER = "https://a.example/", "https://b.example/"
HOUR_SECONDS, DAY_SECONDS = 3_600, 86_400
# Ten minutes before February begins.
LATE_IN_JANUARY = datetime(2027, 1, 31, 23, 50, tzinfo=UTC).timestamp()


@dataclass
class Rows:
    """An outbox that a test writes."""

    rows: list[UsageRow] = field(default_factory=list)
    asked: int = 0
    archived: int = 0  # sequence of the newest that is gone

    async def outbox(self, after: int, limit: int) -> list[UsageRow]:
        self.asked += 1
        await asyncio.sleep(0)
        return self.rows[max(after, self.archived) :][:limit]

    def charge(self, amount_nanos: int, at: float, project: str = "proj") -> None:
        self.rows.append(
            UsageRow(
                sequence=len(self.rows) + 1,
                call_id=f"req_{len(self.rows)}",
                organisation_id="org",
                project_id=project,
                key_id="key",
                model="m",
                lane=Lane.INTERACTIVE,
                outcome=Outcome.COMPLETED,
                reason="",
                attempt=1,
                usage=Usage(1, 1),
                timings=Timings(),
                price_version=1,
                amount_nanos=amount_nanos,
                created_at=at,
                resolved_at=at,
                previous_hash="",
                hash="",
            )
        )


class Place:
    """An installation: `alerting` may be replaced as a process is; what is stored stays."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.clock = LoopClock(loop, start=LATE_IN_JANUARY)
        self.ids = CountingIds()
        self.alerts: Alerts = MemoryAlerts(self.ids)
        self.outbox = Rows()
        self.receivers = ScriptedReceivers()
        self.reporter = Reporter(Metrics())
        self.webhooks = Webhooks(self.receivers, KEY, self.clock, AlertSettings())

    def start(self, process: str = "one") -> None:
        records: Any = self.outbox
        role = Alerting(self.alerts, records, self.webhooks, self.ids, spawn, self.reporter)
        self.loop.start(process, role.run())

    def charge(self, amount_nanos: int, project: str = "proj") -> None:
        self.outbox.charge(amount_nanos, self.clock.now(), project)

    async def alert(self, threshold: int = 100, url: str = URL, **more: Any) -> SpendAlert:
        now, project = self.clock.now(), more.pop("project", None)
        id = self.ids.new("alert")
        alert = SpendAlert(id, "org", project, threshold, url, (), None, now, **more)
        return await self.alerts.put(alert, at=now, since=period_id(alert.interval, day_id(now)))

    async def newest(self, alert: SpendAlert) -> AlertEvent:
        return (await self.alerts.events(alert.id))[0]

    def attempts(self, result: str) -> float:
        value = self.reporter.metrics.registry.get_sample_value(
            "forebay_webhook_attempts_total", {"result": result}
        )
        return value or 0.0


def run(story: Callable[[Place], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    loop = VirtualLoop(seed)
    try:
        loop.run_until_complete(story(Place(loop)))
    finally:
        loop.close()


def test_a_threshold_that_is_reached_is_told_once_with_the_exact_sum() -> None:
    async def story(place: Place) -> None:
        alert = await place.alert(100)
        place.start()
        place.charge(99)
        await asyncio.sleep(5)
        assert place.receivers.got == []
        place.charge(1)
        place.charge(50)
        await asyncio.sleep(HOUR_SECONDS)
        place.charge(0)
        (got,) = place.receivers.got
        assert got.event["data"]["spent"] == "0.00000015"
        assert got.headers["webhook-id"] == got.event["id"] == (await place.newest(alert)).id
        assert (await place.newest(alert)).state is EventState.DELIVERED
        assert place.attempts("delivered") == 1

    run(story)


def test_the_official_client_accepts_each_attempt() -> None:
    async def story(place: Place) -> None:
        place.receivers.statuses[URL] = [500, None, 302]
        alert = await place.alert()
        client = OpenAI(api_key="unused", webhook_secret=place.webhooks.secret(alert.id))
        place.charge(100)
        place.start()
        await asyncio.sleep(HOUR_SECONDS)
        assert len(place.receivers.got) == 4
        for got in place.receivers.got:
            # Its clock is the real one.
            client.webhooks.verify_signature(got.body, got.headers, tolerance=10**10)
        assert len({got.body for got in place.receivers.got}) == 1
        assert len({got.headers["webhook-timestamp"] for got in place.receivers.got}) == 4

    run(story)


def test_a_new_month_fires_again_and_a_late_call_belongs_to_its_own_month() -> None:
    async def story(place: Place) -> None:
        alert = await place.alert(100)
        place.start()
        place.charge(60)
        began = place.clock.now()
        await asyncio.sleep(HOUR_SECONDS)  # it is February now
        place.charge(60)
        await asyncio.sleep(5)
        assert place.receivers.got == []
        place.outbox.charge(40, began)  # held in January, settled in February
        await asyncio.sleep(5)
        assert [got.event["data"]["period"] for got in place.receivers.got] == ["2027-01"]
        place.charge(40)
        await asyncio.sleep(5)
        periods = [event.period_id for event in await place.alerts.events(alert.id)]
        assert periods == ["2027-02", "2027-01"]
        assert len({got.event["id"] for got in place.receivers.got}) == 2

    run(story)


def test_organisations_projects_days_and_totals_are_watched_apart() -> None:
    async def story(place: Place) -> None:
        made = {
            "org": await place.alert(100),
            "proj": await place.alert(100, OTHER, project="proj"),
            "day": await place.alert(70, "https://d.example/", interval=Period.DAY),
            "total": await place.alert(150, "https://t.example/", interval=Period.TOTAL),
        }
        place.start()
        place.charge(60, project="proj")
        place.charge(60, project="another")
        await asyncio.sleep(HOUR_SECONDS)
        place.charge(60, project="proj")
        await asyncio.sleep(5)
        fired = {
            name: [event.period_id for event in await place.alerts.events(alert.id)]
            for name, alert in made.items()
        }
        assert fired == {"org": ["2027-01"], "proj": [], "day": ["2027-01-31"], "total": [""]}

    run(story)


def test_an_outbox_of_any_length_is_followed_to_its_end() -> None:
    async def story(place: Place) -> None:
        alert = await place.alert(2 * OUTBOX_ROWS)
        for _ in range(2 * OUTBOX_ROWS):
            place.charge(1)
        place.start()
        await asyncio.sleep(1.5)
        assert await place.alerts.cursor() == 2 * OUTBOX_ROWS
        assert (await place.newest(alert)).spent_nanos == 2 * OUTBOX_ROWS
        assert place.outbox.asked == 3

    run(story)


def test_rows_that_were_archived_before_they_were_counted_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[str, dict[str, Any]]] = []

    async def story(place: Place) -> None:
        log = place.reporter.log
        monkeypatch.setattr(log, "error", lambda name, **said: told.append((name, said)))
        alert = await place.alert(10)
        for _ in range(5):
            place.charge(4)
        place.outbox.archived = 3
        place.start()
        await asyncio.sleep(5)
        assert await place.alerts.cursor() == 5
        assert await place.alerts.events(alert.id) == []
        place.charge(4)
        await asyncio.sleep(5)
        assert (await place.newest(alert)).spent_nanos == 12

    run(story)
    [(name, said)] = told
    assert name == "alert_sums_incomplete"
    assert (said["missing_rows"], said["from_sequence"], said["through_sequence"]) == (3, 1, 3)
    assert "thresholds" in said["what_to_do"]


@pytest.mark.parametrize("schedule", range(20))
def test_it_fires_once_wherever_the_process_is_killed(schedule: int) -> None:
    async def story(place: Place) -> None:
        place.receivers.statuses[URL] = [None, 500]
        alert = await place.alert(100)
        for process in range(6):
            place.start(str(process))
            for _ in range(10):
                place.charge(3)
            await asyncio.sleep(place.loop.random.uniform(0.9, 3))
            place.loop.kill(str(process))
        place.start("last")
        await asyncio.sleep(60)
        assert len(await place.alerts.events(alert.id)) == 1
        assert (await place.newest(alert)).state is EventState.DELIVERED
        assert len({got.event["id"] for got in place.receivers.got}) == 1

    run(story, schedule)


def test_two_keepers_at_once_fire_once() -> None:
    async def story(place: Place) -> None:
        alert = await place.alert(100)
        place.start("one")
        place.start("two")
        for _ in range(50):
            place.charge(3)
            await asyncio.sleep(0.1)
        assert len(await place.alerts.events(alert.id)) == 1

    run(story)


def test_a_receiver_that_never_answers_is_given_up_after_a_day(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(alerting, "LOOK_SECONDS", 10.0)  # a day has 86,400 seconds

    async def story(place: Place) -> None:
        place.receivers.statuses[URL] = [None] * 100
        alert = await place.alert()
        place.start()
        place.charge(100)
        await asyncio.sleep(2 * DAY_SECONDS)
        event = await place.newest(alert)
        assert (event.state, event.attempts) == (EventState.GIVEN_UP, MOST_ATTEMPTS)
        times = [got.at for got in place.receivers.got]
        assert len(times) == MOST_ATTEMPTS
        gaps = [later - earlier for earlier, later in pairwise(times)]
        assert gaps[1:8] == sorted(gaps[1:8])
        assert 0.8 * DAY_SECONDS < times[-1] - times[0] < 1.2 * DAY_SECONDS
        assert (place.attempts("failed"), place.attempts("given_up")) == (MOST_ATTEMPTS - 1, 1)

    run(story)


def test_a_receiver_that_is_gone_is_asked_once() -> None:
    async def story(place: Place) -> None:
        place.receivers.statuses[URL] = [410]
        alert = await place.alert()
        place.start()
        place.charge(100)
        await asyncio.sleep(HOUR_SECONDS)  # it is February now
        place.charge(100)
        await asyncio.sleep(HOUR_SECONDS)
        assert len(place.receivers.got) == 1
        assert (await place.newest(alert)).state is EventState.REFUSED
        assert [each.enabled for each in await place.alerts.alerts()] == [False]

    run(story)


def test_one_dead_receiver_delays_no_other_and_has_one_request_at_a_time() -> None:
    async def story(place: Place) -> None:
        place.receivers.statuses[URL] = [None] * 1_000
        for _ in range(2 * MOST_AT_ONCE):
            await place.alert(100, URL)
        others = [await place.alert(100, f"https://{n}.example/") for n in range(5)]
        place.start()
        place.charge(100)
        await asyncio.sleep(3)
        for alert in others:
            assert (await place.newest(alert)).state is EventState.DELIVERED
        await asyncio.sleep(HOUR_SECONDS)
        assert place.receivers.most_open[URL] == 1

    run(story)


def test_many_dead_receivers_are_asked_so_many_at_a_time_and_all_in_turn() -> None:
    async def story(place: Place) -> None:
        urls = [f"https://{n}.example/" for n in range(3 * MOST_AT_ONCE)]
        for url in urls:
            place.receivers.statuses[url] = [None]
            await place.alert(100, url)
        place.start()
        place.charge(100)
        for _ in range(60):
            await asyncio.sleep(1)
            assert sum(place.receivers.open.values()) <= MOST_AT_ONCE
        assert {got.url for got in place.receivers.got} == set(urls)

    run(story)


class FailingAlerts(MemoryAlerts):
    """Cannot record for a while."""

    failures = 5

    async def record(self, event: AlertEvent) -> None:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("planted")
        await super().record(event)

    async def cursor(self) -> int:
        if self.failures == 5:
            self.failures -= 1
            raise StoreUnavailable("planted")
        return await super().cursor()


def test_a_store_that_fails_for_a_while_makes_no_repetitions() -> None:
    async def story(place: Place) -> None:
        place.alerts = FailingAlerts(place.ids)
        alert = await place.alert()
        place.charge(100)
        place.start()
        await asyncio.sleep(60)
        assert (await place.newest(alert)).state is EventState.DELIVERED
        assert len(place.receivers.got) == 1

    run(story)


@pytest.mark.parametrize("jump", [DAY_SECONDS, -DAY_SECONDS])
def test_a_clock_that_jumps_neither_loses_nor_gives_up_an_event(jump: float) -> None:
    async def story(place: Place) -> None:
        place.receivers.statuses[URL] = [500, 500, 500]
        alert = await place.alert(interval=Period.TOTAL)
        place.start()
        place.charge(100)
        await asyncio.sleep(3)
        place.clock.offset += jump
        await asyncio.sleep(10 * 60)
        assert (await place.newest(alert)).state is EventState.DELIVERED
        assert len(place.receivers.got) == 4

    run(story)
