"""The stream's contract on every backend, and what is particular to one in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from forebay.core.clock import Clock
from forebay.core.event import Delta
from forebay.stream import TokenStream
from forebay.stream.memory import MemoryStream
from forebay.testing.clock import FakeClock
from forebay.testing.contracts.stream import *  # noqa: F403
from forebay.testing.contracts.stream import JOB, MAX_BYTES, MAX_TOKENS, a_delta, the_end


def _memory(clock: Clock) -> TokenStream:
    return MemoryStream(clock, max_tokens=MAX_TOKENS, max_bytes=MAX_BYTES)


BACKENDS: dict[str, Callable[[Clock], TokenStream]] = {"memory": _memory}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=BACKENDS)
def stream(request: pytest.FixtureRequest, clock: FakeClock) -> TokenStream:
    return BACKENDS[request.param](clock)


async def test_ready_events_are_read_without_a_turn_of_the_event_loop() -> None:
    """Deltas that are ready together leave together: the loop runs nothing in between."""
    stream = MemoryStream(FakeClock())
    reader = stream.read(JOB)
    await stream.publish(JOB, 1, [*(a_delta(n) for n in range(1, 100)), the_end(100)])
    turns: list[int] = []
    asyncio.get_running_loop().call_soon(turns.append, 1)
    events = [event async for event in reader]
    assert not turns
    assert len(events) == 100
    assert isinstance(events[0], Delta)


async def test_open_streams_are_counted_per_owner() -> None:
    stream = MemoryStream(FakeClock())
    first, second = stream.read(JOB), stream.read(replace(JOB, id="req_2"))
    assert (stream.open_streams(JOB.owner), stream.open_streams("gateway_2")) == (2, 0)
    await first.aclose()
    await stream.publish(replace(JOB, id="req_2"), 1, [the_end(1)])
    assert await anext(second) == the_end(1)
    assert stream.open_streams(JOB.owner) == 0


async def test_a_stream_is_read_by_one_task_at_a_time() -> None:
    stream = MemoryStream(FakeClock())
    reader = stream.read(JOB)
    first = asyncio.ensure_future(anext(reader))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="two tasks"):
        await anext(reader)
    first.cancel()


async def test_abandonments_that_no_worker_asks_for_are_forgotten_after_a_while() -> None:
    """The oldest of 4,097; its worker, should it ever come, is told that nobody reads the job."""
    stream = MemoryStream(FakeClock())
    jobs = [replace(JOB, id=f"req_{n}") for n in range(4097)]
    for job in jobs:
        reader = stream.read(job)
        await stream.publish(job, 1, [a_delta(1, 3)])
        await anext(reader)
        await reader.aclose()
    confirmed = [(await stream.abandoned(job)).confirmed_tokens for job in jobs[:2]]
    assert confirmed == [0, 3]


@pytest.mark.parametrize("bounds", [{"max_tokens": 0}, {"max_bytes": 0}])
def test_bounds_below_one_are_refused(bounds: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least one"):
        MemoryStream(FakeClock(), **bounds)
