"""The queue's contract on every backend: the suite, then random walks against the oracle."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from forebay.core.clock import Clock
from forebay.queue import JobQueue, QueueSettings
from forebay.queue.memory import MemoryQueue
from forebay.testing.clock import FakeClock
from forebay.testing.contracts.queue import *  # noqa: F403
from forebay.testing.contracts.queue import SETTINGS, check_drains
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


def _memory(settings: QueueSettings, clock: Clock) -> JobQueue:
    return MemoryQueue(settings, clock)


TestMemoryWalk = queue_machine(_memory).TestCase
