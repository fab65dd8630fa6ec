"""What a server is doing now, on the real queue and calls that nobody answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from forebay.core.event import Delta, Started
from forebay.core.job import Ask, Flow, Job, Lane, Sampling
from forebay.observe import Metrics
from forebay.pipeline.activity import MOST_CALLS, Activity
from forebay.pipeline.live import LiveCall
from forebay.pipeline.report import Reporter
from forebay.queue import QueueSettings
from forebay.queue.memory import MemoryQueue
from forebay.testing.clock import FakeClock
from tests.unit.pipeline.test_recent import row

MODEL = "small"


def a_job(name: str, lane: Lane = Lane.INTERACTIVE) -> Job:
    flow = Flow(lane, "org", "proj")
    return Job(name, 1, "gw", MODEL, MODEL, flow, 1, (1, 2), 8, Sampling(), True, True)


class House:
    """The rooms that are looked at, and the calls of an owner."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.queue = MemoryQueue(QueueSettings(), self.clock)
        self.report = Reporter(Metrics())
        self.live_calls: list[LiveCall] = []
        rooms: Any = SimpleNamespace(queue=self.queue, clock=self.clock, report=self.report)
        self.activity = Activity(rooms, self, [MODEL])

    def begin(self, name: str, lane: Lane = Lane.INTERACTIVE) -> LiveCall:
        reader: Any = None
        live = LiveCall(a_job(name, lane), reader, self.clock)
        self.live_calls.append(live)
        return live

    def end(self, live: LiveCall) -> None:
        """It is resolved; its reader has not noticed yet."""
        usage = SimpleNamespace(
            output_tokens=live.output_tokens, input_tokens=2, cached_input_tokens=0
        )
        self.report.recent.add(row(live.job.id, self.clock.now(), usage=usage))

    async def lane(self, lane: Lane = Lane.INTERACTIVE) -> dict[str, Any]:
        rows = (await self.activity.look())["lanes"]
        [found] = [each for each in rows if each["lane"] == lane]
        assert isinstance(found, dict)
        return found


@pytest.fixture
def house() -> House:
    return House()


def says(live: LiveCall, tokens: int) -> None:
    live.took(Delta(1, 1, 0, (7,) * tokens, "x"))


async def test_lanes_say_who_waits_who_runs_and_for_how_long(house):
    for name in ("a", "b", "c"):
        await house.queue.enqueue(a_job(name))
    house.clock.advance(3)
    ask = Ask(MODEL, 1, 10**6, frozenset(Lane), batch_slots=1)
    await house.queue.lease(ask, worker="w", seconds=10)
    lane = await house.lane()
    assert (lane["waiting"], lane["running"], lane["oldest_wait_seconds"]) == (2, 1, 3)
    assert await house.activity.waiting() == {MODEL: 2}
    other = await house.lane(Lane.BATCH)
    assert (other["waiting"], other["oldest_wait_seconds"], other["ttft_p50_ms"]) == (0, 0, None)


async def test_the_rate_of_tokens_counts_running_and_ended_calls_once(house):
    first, second = house.begin("req_1"), house.begin("req_2")
    assert (await house.lane())["output_tokens_per_second"] == 0
    says(first, 10)
    house.activity.sample()
    house.clock.advance(2)
    says(first, 6)
    says(second, 4)
    assert (await house.lane())["output_tokens_per_second"] == 5
    house.end(first)
    assert (await house.lane())["output_tokens_per_second"] == 5
    house.live_calls.remove(first)
    assert (await house.lane())["output_tokens_per_second"] == 5


async def test_a_failure_takes_tokens_back_and_the_rate_does_not_fall_below_nothing(house):
    call = house.begin("req_1")
    says(call, 10)
    house.activity.sample()
    house.clock.advance(1)
    house.live_calls.remove(call)
    house.begin("req_2")
    assert (await house.lane())["output_tokens_per_second"] == 0


async def test_calls_that_run_come_first_the_longest_running_before_others(house):
    for name in ("req_1", "req_2", "req_3"):
        house.begin(name)
        house.clock.advance(1)
    for live in house.live_calls[1:]:
        live.took(Started(1, 1, 500))
    calls = (await house.activity.look())["calls"]
    assert [(each["id"], each["state"], each["age_seconds"]) for each in calls] == [
        ("req_2", "running", 2),
        ("req_3", "running", 1),
        ("req_1", "waiting", 3),
    ]


async def test_however_many_calls_are_open_the_list_is_bounded(house):
    for number in range(MOST_CALLS + 5):
        house.begin(f"req_{number}")
    look = await house.activity.look()
    assert (len(look["calls"]), look["open_calls"]) == (MOST_CALLS, MOST_CALLS + 5)
