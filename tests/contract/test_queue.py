"""The queue's contract on every backend: the suite, then random walks against the oracle."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from forebay.core.clock import Clock
from forebay.core.job import Resume, Served
from forebay.queue import JobQueue, QueueSettings
from forebay.queue.memory import MemoryQueue
from forebay.testing.clock import FakeClock
from forebay.testing.contracts.queue import *  # noqa: F403
from forebay.testing.contracts.queue import (
    SETTINGS,
    a_flow,
    a_job,
    check_drains,
    ids,
    put,
    serve,
    take,
    take_one,
)
from forebay.testing.contracts.queue_choice import *  # noqa: F403
from forebay.testing.contracts.queue_machine import queue_machine

BACKENDS = {"memory": MemoryQueue}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=BACKENDS)
async def queue(request: pytest.FixtureRequest, clock: FakeClock) -> AsyncIterator[JobQueue]:
    queue = BACKENDS[request.param](SETTINGS, clock)
    yield queue
    await check_drains(queue, clock)


async def test_q4_the_memory_of_ended_jobs_is_bounded() -> None:
    """Each is remembered for the next 4,096; then it would be a new job."""
    queue = MemoryQueue(SETTINGS, FakeClock())
    for n in range(4097):
        await put(queue, a_job(f"job_{n}"))
        await serve(queue, await take_one(queue))
    assert not await queue.enqueue(a_job("job_1"))
    assert await queue.enqueue(a_job("job_0"))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("order", "leased"),
    [("fair", ["a0", "b", "a1", "a2"]), ("arrival", ["a0", "a1", "a2", "b"])],
)
async def test_q8_a_deep_backlog_holds_others_up_only_where_the_order_is_arrival(
    backend: str, order: Any, leased: list[str], clock: FakeClock
) -> None:
    queue = BACKENDS[backend](replace(SETTINGS, order=order), clock)
    await put(queue, *(a_job(f"a{n}", a_flow("a")) for n in range(3)), a_job("b", a_flow("b")))
    assert ids(await take(queue, slots=4)) == leased
    await check_drains(queue, clock)


async def test_q3_a_returned_job_goes_first_also_by_arrival(clock: FakeClock) -> None:
    queue = MemoryQueue(replace(SETTINGS, order="arrival"), clock)
    await put(queue, a_job("a", a_flow("a")), a_job("b", a_flow("b")))
    a, b = await take(queue, slots=2)
    await put(queue, a_job("c", a_flow("a")))
    for lease in (b, a):
        await queue.nack(lease, served=Served(0), resume=Resume(preemptions=1))
    assert ids(await take(queue, slots=3)) == ["a", "b", "c"]
    await check_drains(queue, clock)


def _memory(settings: QueueSettings, clock: Clock) -> JobQueue:
    return MemoryQueue(settings, clock)


TestMemoryWalk = queue_machine(_memory).TestCase
