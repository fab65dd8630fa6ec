from __future__ import annotations

import asyncio

import pytest

from forebay.gateway.watch import ClientWatch
from forebay.system import Tasks


def leaving(event):
    async def receive():
        await event.wait()
        return {"type": "http.disconnect"}

    return receive


async def test_a_client_that_leaves_cancels_the_relay_and_nothing_else():
    event, cleaned = asyncio.Event(), []
    async with ClientWatch(leaving(event), Tasks()) as watch:
        event.set()
        try:
            await asyncio.sleep(10)
        finally:
            cleaned.append(True)
    assert watch.gone
    assert cleaned
    await asyncio.sleep(0)  # the task itself goes on


async def test_a_client_that_leaves_after_the_end_is_no_news():
    event = asyncio.Event()
    async with ClientWatch(leaving(event), Tasks()) as watch:
        watch.finished = True
        event.set()
        await asyncio.sleep(0.01)
    assert not watch.gone


async def test_somebody_elses_cancellation_is_not_swallowed():
    async def relay():
        async with ClientWatch(leaving(asyncio.Event()), Tasks()):
            await asyncio.sleep(10)

    task = asyncio.create_task(relay())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_both_cancellations_at_once_end_the_task():
    event = asyncio.Event()

    async def relay():
        async with ClientWatch(leaving(event), Tasks()):
            await asyncio.sleep(10)

    task = asyncio.create_task(relay())
    await asyncio.sleep(0.01)
    event.set()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_errors_of_the_relay_pass_through():
    with pytest.raises(ValueError, match="x"):
        async with ClientWatch(leaving(asyncio.Event()), Tasks()):
            raise ValueError("x")


async def test_duties_are_done_when_due_and_the_client_is_still_watched():
    event, done = asyncio.Event(), []
    loop = asyncio.get_running_loop()

    async def duty():
        done.append(loop.time())
        return loop.time() + 0.01 if len(done) < 3 else None

    watch = ClientWatch(leaving(event), Tasks(), duty=duty, first_due=loop.time())
    async with watch:
        await asyncio.sleep(0.1)
        event.set()
        await asyncio.sleep(10)
    assert len(done) == 3
    assert watch.gone


async def test_messages_that_are_no_disconnect_are_ignored():
    messages = [{"type": "http.request", "body": b"", "more_body": False}]
    event = asyncio.Event()

    async def receive():
        return messages.pop() if messages else await leaving(event)()

    async with ClientWatch(receive, Tasks()) as watch:
        await asyncio.sleep(0.01)
        assert not watch.gone
        event.set()
        await asyncio.sleep(10)
    assert watch.gone
