"""How a server ends; how it starts and serves is tested end to end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from forebay.system import Tasks
from forebay.wiring.machine import Farewell, Stop, _run_until


class Summaries:
    """None is being made."""

    async def stop(self) -> None:
        """At once."""


class Owned:
    """Calls that a row owns: there are none."""

    async def suspend(self) -> None:
        """At once."""

    async def drain(self) -> None:
        """At once."""

    def let_go(self) -> None:
        """At once."""


class Pipeline:
    """Calls that end when they are broken off."""

    def __init__(self, open_calls: int) -> None:
        self.open_calls = open_calls
        self.summaries = Summaries()
        self.background = Owned()
        self.finished_calls = 100
        self.broken_off_calls = 0
        self.broken_off = asyncio.Event()

    def finish_one(self) -> None:
        self.open_calls -= 1
        self.finished_calls += 1

    async def break_off(self, *, seconds: float) -> None:
        assert seconds > 0
        self.broken_off_calls, self.open_calls = self.open_calls, 0
        self.broken_off.set()


class Listener:
    """Stops when the last answer is finished."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self.cut = False

    async def stop(self) -> None:
        if self._pipeline.open_calls:
            await self._pipeline.broken_off.wait()

    def stop_now(self) -> None:
        self.cut = True


class Plant:
    """What `_run_until` needs of one."""

    def __init__(self, open_calls: int) -> None:
        self.spawn = Tasks()
        self.pipeline = Pipeline(open_calls)
        self.lane = Owned()
        self.workers: list[Any] = []
        self.roles: list[asyncio.Task[Any]] = []
        self.stopping = False

    @property
    def open_calls(self) -> int:
        return self.pipeline.open_calls


async def lives() -> None:
    await asyncio.Event().wait()


async def dies() -> None:
    await asyncio.sleep(0.01)
    raise RuntimeError("the worker died")


@pytest.fixture
async def stop() -> Stop:
    return Stop(asyncio.Event(), asyncio.Event())


async def end(plant: Plant, stop: Stop) -> tuple[Farewell, Listener]:
    listener = Listener(plant.pipeline)
    try:
        return await asyncio.wait_for(_run_until(stop, plant, [listener]), 5), listener  # type: ignore[arg-type, list-item]
    finally:
        for role in plant.roles:
            role.cancel()


async def test_a_role_that_dies_ends_the_server_at_once_with_its_error(stop: Stop) -> None:
    """Waiting for answers that only the dead role could give would wait for ever."""
    plant = Plant(open_calls=3)
    plant.roles = [asyncio.ensure_future(lives()), asyncio.ensure_future(dies())]
    with pytest.raises(RuntimeError, match="the worker died"):
        await end(plant, stop)
    assert plant.pipeline.broken_off.is_set()
    assert plant.stopping


async def test_the_first_stop_waits_and_the_second_breaks_off(stop: Stop) -> None:
    plant = Plant(open_calls=3)
    plant.roles = [asyncio.ensure_future(lives())]
    stop.graceful.set()
    running = asyncio.ensure_future(end(plant, stop))
    await asyncio.sleep(0.05)
    assert not running.done()
    plant.pipeline.finish_one()
    stop.now.set()
    farewell, _ = await running
    assert farewell == Farewell(finished=1, open_holds=0, broken_off=2)


async def test_a_stop_with_nothing_to_finish_is_over_at_once(stop: Stop) -> None:
    plant = Plant(open_calls=0)
    plant.roles = [asyncio.ensure_future(lives())]
    stop.graceful.set()
    farewell, listener = await end(plant, stop)
    assert farewell == Farewell(finished=0, open_holds=0, broken_off=0)
    assert not listener.cut
