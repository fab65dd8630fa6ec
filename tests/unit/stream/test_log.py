"""A log of events with many readers: order, the end, slow readers."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from forebay.core.errors import EngineFailed
from forebay.core.event import CallEvent, Delta
from forebay.stream import EventLog


def delta(sequence: int) -> Delta:
    return Delta(sequence, 1, 0, (sequence,), f"{sequence} ")


async def collect(log: EventLog) -> list[CallEvent]:
    return [event async for bunch in log.read() for event in bunch]


async def test_every_reader_gets_every_event_in_order_whenever_it_began_t1() -> None:
    log = EventLog()
    early = asyncio.ensure_future(collect(log))
    await asyncio.sleep(0)
    for number in range(50):
        log.append([delta(2 * number), delta(2 * number + 1)])
        if number == 25:
            late = asyncio.ensure_future(collect(log))
        await asyncio.sleep(0)
    log.end()
    expected = [delta(number) for number in range(100)]
    assert await early == expected, "T1"
    assert await late == expected, "T1"
    assert await collect(log) == expected, "T1"


async def test_nothing_comes_after_the_end_t2() -> None:
    log = EventLog()
    log.end()
    with pytest.raises(RuntimeError, match="has ended"):
        log.append([delta(1)])


async def test_a_slow_reader_gets_what_it_missed_in_one_bunch_and_stalls_nobody_t3() -> None:
    log = EventLog()
    log.append([delta(1)])
    async with aclosing(log.read()) as slow:
        assert await anext(slow) == [delta(1)]
        for number in range(2, 1000):
            log.append([delta(number)])
        assert await anext(slow) == [delta(number) for number in range(2, 1000)], "T3"


async def test_a_fault_reaches_every_reader_behind_the_events() -> None:
    log = EventLog()
    log.append([delta(1)])
    log.end(EngineFailed())
    for _ in range(2):
        async with aclosing(log.read()) as reader:
            assert await anext(reader) == [delta(1)]
            with pytest.raises(EngineFailed):
                await anext(reader)


async def test_readers_are_counted_while_they_read() -> None:
    log = EventLog()
    log.append([delta(1)])
    assert log.readers == 0
    async with aclosing(log.read()) as one, aclosing(log.read()) as other:
        await anext(one)
        await anext(other)
        assert log.readers == 2
    assert log.readers == 0
