"""The queue's contract on every backend: the suite, then random walks against the oracle."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from forebay.core.clock import Clock
from forebay.queue import JobQueue, QueueSettings
from forebay.queue.memory import MemoryQueue
from forebay.testing.clock import FakeClock
from forebay.testing.contracts.queue import *  # noqa: F403
from forebay.testing.contracts.queue import (
    SETTINGS,
    a_job,
    check_drains,
    put,
    serve,
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


def _memory(settings: QueueSettings, clock: Clock) -> JobQueue:
    return MemoryQueue(settings, clock)


TestMemoryWalk = queue_machine(_memory).TestCase
