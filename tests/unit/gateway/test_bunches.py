from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from forebay.gateway.bunches import MAX_BUNCH, Bunches


async def play(items, log=None):
    try:
        for item in items:
            if isinstance(item, BaseException):
                raise item
            if isinstance(item, asyncio.Event):
                await item.wait()
            elif item is None:
                await asyncio.sleep(0)
            else:
                yield item
    except BaseException as end:
        if log is not None:
            log.append(type(end).__name__)
        raise
    finally:
        if log is not None:
            await asyncio.sleep(0.01)
            log.append("cleaned up")


async def collect(items):
    async with aclosing(Bunches(play(items))) as bunches:
        found = []
        while bunch := await bunches.next():
            found.append(bunch)
        return found


async def test_what_is_ready_together_comes_together():
    assert await collect([1, 2, None, 3, None, None, 4, 5]) == [[1, 2], [3], [4, 5]]
    assert await collect([]) == []
    assert await collect([None]) == []


async def test_a_bunch_is_bounded():
    sizes = [len(bunch) for bunch in await collect(list(range(1, 2 * MAX_BUNCH + 2)))]
    assert sizes == [MAX_BUNCH, MAX_BUNCH, 1]


async def test_a_bunch_is_delivered_before_the_generator_waits():
    gate = asyncio.Event()
    bunches = Bunches(play([1, gate, 2]))
    assert await bunches.next() == [1]
    gate.set()
    assert await bunches.next() == [2]
    assert await bunches.next() == []
    assert await bunches.next() == []


async def test_an_error_comes_after_the_items_before_it():
    for items in ([1, ValueError("x")], [1, None, ValueError("x")]):
        bunches = Bunches(play(items))
        assert await bunches.next() == [1]
        with pytest.raises(ValueError, match="x"):
            await bunches.next()
        assert await bunches.next() == []
        await bunches.aclose()


async def test_closing_in_the_middle_of_a_started_step_lets_the_generator_clean_up():
    log = []
    bunches = Bunches(play([1, asyncio.Event()], log))
    assert await bunches.next() == [1]
    await bunches.aclose()
    assert log == ["CancelledError", "cleaned up"]
    await bunches.aclose()


async def test_closing_between_steps_and_before_the_first():
    log = []
    bunches = Bunches(play(list(range(1, 100)), log))
    await bunches.next()
    await bunches.aclose()
    assert log == ["GeneratorExit", "cleaned up"]
    await Bunches(play([1], log)).aclose()


@pytest.mark.parametrize("before", [0, 1])
async def test_a_cancelled_reader_cancels_the_step_it_waits_for(before):
    log = []

    async def read():
        async with aclosing(Bunches(play([1] * before + [asyncio.Event()], log))) as bunches:
            while await bunches.next():
                pass

    task = asyncio.create_task(read())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["CancelledError", "cleaned up"]


async def test_a_reader_cancelled_while_closing_stays_cancelled():
    async def read():
        bunches = Bunches(play([1, asyncio.Event()], []))
        await bunches.next()
        await bunches.aclose()

    task = asyncio.create_task(read())
    await asyncio.sleep(0.003)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_future_that_others_await_too_is_no_trouble():
    shared = asyncio.get_running_loop().create_future()

    async def waits():
        yield 1
        yield await asyncio.shield(shared)
        yield await shared

    async def other():
        return await shared

    bunches = Bunches(waits())
    assert await bunches.next() == [1]
    task = asyncio.create_task(other())
    await asyncio.sleep(0)
    shared.set_result(2)
    assert await bunches.next() == [2, 2]
    assert await task == 2
    assert await bunches.next() == []


async def test_time_outs_and_queues_inside_the_generator_work():
    queue = asyncio.Queue()

    async def reads():
        while True:
            try:
                async with asyncio.timeout(0.02):
                    yield await queue.get()
            except TimeoutError:
                return

    queue.put_nowait(1)
    queue.put_nowait(2)
    bunches = Bunches(reads())
    assert await bunches.next() == [1, 2]
    queue.put_nowait(3)
    assert await bunches.next() == [3]
    await bunches.drain()


async def test_draining_runs_the_generator_to_its_own_end():
    log = []
    bunches = Bunches(play([1, None, 2, None], log))
    await bunches.next()
    await bunches.drain()
    await bunches.aclose()
    assert log == ["cleaned up"]
