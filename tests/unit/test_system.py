"""The one file that may touch real clocks, randomness and tasks."""

from __future__ import annotations

import asyncio
import gc
import re
import sys
import time
import weakref
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from forebay.system import (
    SystemClock,
    SystemIds,
    Tasks,
    share_the_interpreter,
    spare_the_collector,
)


@pytest.fixture
def knobs() -> Iterator[None]:
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)
    sys.setswitchinterval(interval)


def test_ids_are_unique_and_all_of_one_length() -> None:
    ids = [SystemIds().new("req") for _ in range(10_000)]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"req_[0-9a-f]{32}", each) for each in ids)
    assert re.fullmatch(r"a_longer_one_[0-9a-f]{32}", SystemIds().new("a_longer_one"))


def test_ids_of_different_milliseconds_sort_by_creation() -> None:
    made = []
    for _ in range(5):
        made.append(SystemIds().new("req"))
        then = int(time.time() * 1000)
        while int(time.time() * 1000) == then:
            pass
    assert made == sorted(made)


def test_random_bytes_are_as_many_as_asked_for_and_never_the_same() -> None:
    ids = SystemIds()
    assert [len(ids.random_bytes(count)) for count in (0, 1, 32)] == [0, 1, 32]
    assert ids.random_bytes(32) != ids.random_bytes(32)


def test_one_clock_is_for_durations_and_the_other_for_people() -> None:
    clock = SystemClock()
    assert time.monotonic() <= clock.monotonic() <= time.monotonic()
    assert abs(clock.now() - time.time()) < 60


async def test_a_task_that_fails_is_reported_with_its_name_and_its_error() -> None:
    async def fail() -> None:
        raise LookupError("lost")

    with capture_logs() as logs:
        task = Tasks()(fail(), name="look it up")
        await asyncio.wait([task])
        await asyncio.sleep(0)
    [line] = logs
    assert (line["event"], line["log_level"], line["task"]) == (
        "task_failed",
        "error",
        "look it up",
    )
    assert line["exc_info"] is task.exception()


async def test_a_task_that_ends_or_is_cancelled_is_not_reported() -> None:
    """Nor does the report itself fail, which asyncio would only tell its exception handler."""
    spawn = Tasks()
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    with capture_logs() as logs:
        ended = spawn(asyncio.sleep(0, "done"), name="ends")
        cancelled = spawn(asyncio.sleep(3600), name="is cancelled")
        assert await ended == "done"
        cancelled.cancel()
        await asyncio.wait([cancelled])
        await asyncio.sleep(0)
    assert logs == []
    assert faults == []


async def test_a_task_that_nobody_holds_still_runs_to_its_end() -> None:
    """asyncio itself would let the collector take a task and all that it waits for."""
    waits_for: list[weakref.ref[asyncio.Future[None]]] = []
    ended: list[str] = []

    async def wait() -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waits_for.append(weakref.ref(future))
        await future
        ended.append("yes")

    spawn = Tasks()
    spawned = weakref.ref(spawn(wait(), name="wait"))
    await asyncio.sleep(0)
    gc.collect()
    future = waits_for[0]()
    assert future is not None
    future.set_result(None)
    del future
    await asyncio.sleep(0.01)
    assert ended == ["yes"]
    gc.collect()
    assert spawned() is None, "a task that has ended is not held any more"


@pytest.mark.usefixtures("knobs")
def test_what_exists_is_spared_by_the_collector() -> None:
    before = gc.get_freeze_count()
    spare_the_collector()
    assert gc.get_freeze_count() > before
    assert gc.get_threshold()[0] == 10_000


@pytest.mark.usefixtures("knobs")
@pytest.mark.parametrize(("before", "after"), [(5e-3, 50e-6), (20e-6, 20e-6)])
def test_threads_share_the_interpreter_at_least_every_fifty_microseconds(
    before: float, after: float
) -> None:
    sys.setswitchinterval(before)
    share_the_interpreter()
    assert sys.getswitchinterval() == pytest.approx(after)
