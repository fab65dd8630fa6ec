"""The contract suite of `forebay.stream`.

Fixtures: `clock` (a FakeClock that the backend's time follows) and `stream` (a TokenStream on that
clock, made with `MAX_TOKENS` and `MAX_BYTES` as its bounds).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from forebay.core.delta import FinishReason
from forebay.core.errors import ClientTooSlow, EngineFailed, ReaderGone, StreamGap
from forebay.core.event import (
    Abandonment,
    AbandonReason,
    Delta,
    Failed,
    Finished,
    LeaseExpired,
    Started,
    StreamEvent,
)
from forebay.core.job import Flow, Job, Lane, Sampling
from forebay.core.usage import Usage
from forebay.stream import Reader, TokenStream
from forebay.testing.clock import FakeClock

MAX_TOKENS, MAX_BYTES = 64, 256
CLIENT_GONE, OWNER_GONE = AbandonReason.CLIENT_GONE, AbandonReason.OWNER_GONE
PROMPTLY = 0.25  # seconds: T4's bound for an abandon to reach the worker

JOB = Job(
    id="req_1",
    attempt=1,
    owner="gateway_1",
    pool="pool",
    model="m",
    flow=Flow(Lane.INTERACTIVE, "org_1", "proj_1"),
    weight=1,
    prompt_ids=(1, 2, 3),
    ceiling_tokens=100,
    sampling=Sampling(),
    streamed=True,
    resumable=True,
)


def a_delta(sequence: int, tokens: int = 1, *, attempt: int = 1, text: str = "x") -> Delta:
    """A delta of this many tokens."""
    return Delta(sequence, attempt, 0, (7,) * tokens, text)


def the_end(sequence: int, *, attempt: int = 1) -> Finished:
    """A terminal event."""
    return Finished(sequence, attempt, Usage(3, 2), 100, (FinishReason.STOP,))


async def publish(stream: TokenStream, *events: StreamEvent, attempt: int = 1) -> None:
    """Publish for `JOB`, all in one call."""
    await stream.publish(JOB, attempt, events)


async def rest(reader: Reader) -> list[StreamEvent]:
    """Everything up to the end of the stream."""
    return [event async for event in reader]


async def soon(reader: Reader) -> StreamEvent:
    """The next event, which must be there by now."""
    return await asyncio.wait_for(anext(reader), 5)


async def gone(future: asyncio.Future[Abandonment]) -> Abandonment:
    """The abandonment, which must become known promptly (T4)."""
    return await asyncio.wait_for(asyncio.shield(future), PROMPTLY)


# -- T1: order ----------------------------------------------------------------------------------------


async def test_t1_t2_events_arrive_in_order_each_once_up_to_the_terminal_one(
    stream: TokenStream,
) -> None:
    reader = stream.read(JOB)
    sent: list[StreamEvent] = [Started(1, 1, 12), a_delta(2), a_delta(3, 2), the_end(4)]
    await publish(stream, *sent[:2])
    await publish(stream, *sent[2:])
    assert await rest(reader) == sent
    with pytest.raises(StopAsyncIteration):
        await anext(reader)


async def test_t1_a_reader_that_waits_is_woken(stream: TokenStream) -> None:
    reader = stream.read(JOB)
    waiting = asyncio.ensure_future(anext(reader))
    await asyncio.sleep(0)
    await publish(stream, a_delta(1))
    assert await asyncio.wait_for(waiting, 5) == a_delta(1)


async def test_t1_a_cancelled_read_loses_nothing(stream: TokenStream) -> None:
    """Cancelled before the event comes, and at the very moment in which it does."""
    reader = stream.read(JOB)
    first = asyncio.ensure_future(anext(reader))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    second = asyncio.ensure_future(anext(reader))
    await asyncio.sleep(0)
    await publish(stream, a_delta(1))
    second.cancel()
    await asyncio.wait([second])
    await publish(stream, a_delta(2))
    taken = [second.result()] if not second.cancelled() else []
    while len(taken) < 2:
        taken.append(await soon(reader))
    assert taken == [a_delta(1), a_delta(2)]


async def test_t1_repeats_are_dropped(stream: TokenStream) -> None:
    """A worker that does not know whether its publish arrived sends it again."""
    reader = stream.read(JOB)
    await publish(stream, a_delta(1), a_delta(2))
    await publish(stream, a_delta(1), a_delta(2), a_delta(3))
    await publish(stream, a_delta(3), the_end(4))
    assert await rest(reader) == [a_delta(1), a_delta(2), a_delta(3), the_end(4)]


async def test_t1_a_gap_is_an_error_after_what_came_before_it(stream: TokenStream) -> None:
    reader = stream.read(JOB)
    await publish(stream, a_delta(1))
    await publish(stream, a_delta(3), the_end(4))
    assert await soon(reader) == a_delta(1)
    for _ in range(2):
        with pytest.raises(StreamGap, match="2"):
            await soon(reader)
    await reader.aclose()
    assert (await gone(stream.abandoned(JOB))).reason is CLIENT_GONE


async def test_t1_a_newer_attempt_goes_on_with_the_sequence(stream: TokenStream) -> None:
    reader = stream.read(JOB)
    await publish(stream, a_delta(1), a_delta(2))
    await publish(stream, a_delta(3, attempt=2), attempt=2)
    await publish(stream, a_delta(3), a_delta(4), the_end(5), attempt=1)  # dropped: older
    await publish(stream, the_end(4, attempt=2), attempt=2)
    expected = [a_delta(1), a_delta(2), a_delta(3, attempt=2), the_end(4, attempt=2)]
    assert await rest(reader) == expected


async def test_t1_after_a_lease_expired_its_worker_is_not_heard_any_more(
    stream: TokenStream,
) -> None:
    """The owner resumes from what it read; the old worker may be alive and must not add to that."""
    reader = stream.read(JOB)
    await publish(stream, a_delta(1))
    assert await stream.notify(JOB, LeaseExpired(1))
    await publish(stream, a_delta(2), the_end(3), attempt=1)
    assert [await soon(reader), await soon(reader)] == [a_delta(1), LeaseExpired(1)]
    await publish(stream, a_delta(2, attempt=2), the_end(3, attempt=2), attempt=2)
    assert await rest(reader) == [a_delta(2, attempt=2), the_end(3, attempt=2)]


async def test_an_expired_lease_is_told_once_and_not_for_older_attempts(
    stream: TokenStream,
) -> None:
    reader = stream.read(JOB)
    for _ in range(2):
        assert await stream.notify(JOB, LeaseExpired(1))
    await publish(stream, a_delta(1, attempt=2), attempt=2)
    assert await stream.notify(JOB, LeaseExpired(1))
    await publish(stream, the_end(2, attempt=2), attempt=2)
    assert [type(event) for event in await rest(reader)] == [LeaseExpired, Delta, Finished]


async def test_notify_says_when_nobody_reads_the_job(stream: TokenStream) -> None:
    assert not await stream.notify(JOB, LeaseExpired(1))
    reader = stream.read(JOB)
    await publish(stream, the_end(1))
    assert not await stream.notify(JOB, LeaseExpired(1))
    await rest(reader)
    assert not await stream.notify(JOB, LeaseExpired(1))


# -- T2: the end --------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [the_end(1), Failed(1, 1, EngineFailed())])
async def test_t2_nothing_comes_after_a_terminal_event(
    stream: TokenStream, end: StreamEvent
) -> None:
    reader = stream.read(JOB)
    await publish(stream, end)
    for _ in range(2):  # not yet read, then read
        with pytest.raises(ReaderGone):
            await publish(stream, a_delta(2))
        await rest(reader)
    await reader.aclose()
    assert (await gone(stream.abandoned(JOB))).reason is CLIENT_GONE  # nobody reads it any more


async def test_t2_events_after_a_terminal_one_in_one_call_are_not_read(stream: TokenStream) -> None:
    reader = stream.read(JOB)
    await publish(stream, the_end(1), a_delta(2), the_end(3))
    assert await rest(reader) == [the_end(1)]


async def test_t2_streams_do_not_mix(stream: TokenStream) -> None:
    other = replace(JOB, id="req_2", attempt=3)
    first, second = stream.read(JOB), stream.read(other)
    await stream.publish(other, 3, [a_delta(1, attempt=3), the_end(2, attempt=3)])
    await publish(stream, the_end(1))
    assert await rest(first) == [the_end(1)]
    assert await rest(second) == [a_delta(1, attempt=3), the_end(2, attempt=3)]


async def test_a_job_has_one_reader(stream: TokenStream) -> None:
    reader = stream.read(JOB)
    with pytest.raises(RuntimeError, match="req_1"):
        stream.read(JOB)
    await reader.aclose()
    again = stream.read(JOB)
    await publish(stream, the_end(1))
    assert await rest(again) == [the_end(1)]


# -- T3: slow readers ---------------------------------------------------------------------------------


async def test_t3_a_reader_too_slow_for_the_bound_ends_its_job(stream: TokenStream) -> None:
    """It still gets what was buffered, then one error; the engine is never waited for."""
    reader, abandoned = stream.read(JOB), stream.abandoned(JOB)
    for sequence in range(1, 5):
        await publish(stream, a_delta(sequence, MAX_TOKENS // 4))
    with pytest.raises(ReaderGone):
        await publish(stream, a_delta(5, MAX_TOKENS // 4))
    assert await gone(abandoned) == Abandonment(AbandonReason.CLIENT_TOO_SLOW, 0)
    with pytest.raises(ReaderGone):
        await publish(stream, a_delta(6))
    *read, last = await rest(reader)
    assert read == [a_delta(sequence, MAX_TOKENS // 4) for sequence in range(1, 5)]
    assert isinstance(last, Failed)
    assert isinstance(last.error, ClientTooSlow)
    assert last.sequence == 5


@pytest.mark.parametrize(
    ("tokens", "text"), [(1, "é" * (MAX_BYTES // 4)), (0, ""), (1, "x" * (MAX_BYTES // 2))]
)
async def test_t3_the_backlog_is_bounded_in_bytes_and_by_empty_events_too(
    stream: TokenStream, tokens: int, text: str
) -> None:
    stream.read(JOB)
    with pytest.raises(ReaderGone):
        for sequence in range(1, MAX_TOKENS + 2):
            await publish(stream, a_delta(sequence, tokens, text=text))
    assert sequence == MAX_TOKENS + 1 if not text else 3


async def test_t3_a_reader_that_keeps_up_is_never_too_slow(stream: TokenStream) -> None:
    """It is one event behind all the time, so what it has read must not count against it."""
    reader = stream.read(JOB)
    await publish(stream, a_delta(1, 10, text="y" * 100))
    for sequence in range(2, 4 * MAX_TOKENS):
        await publish(stream, a_delta(sequence, 10, text="y" * 100))
        assert await soon(reader) == a_delta(sequence - 1, 10, text="y" * 100)


async def test_t3_one_event_larger_than_the_bound_passes_an_empty_backlog(
    stream: TokenStream,
) -> None:
    reader = stream.read(JOB)
    await publish(stream, a_delta(1, 2 * MAX_TOKENS), the_end(2))
    assert await rest(reader) == [a_delta(1, 2 * MAX_TOKENS), the_end(2)]


# -- T4: who left -------------------------------------------------------------------------------------


async def test_t4_closing_the_reader_early_reaches_the_worker(stream: TokenStream) -> None:
    """Also while the engine is silent; it says how much had been read."""
    reader = stream.read(JOB)
    abandoned = stream.abandoned(JOB)
    await publish(stream, Started(1, 1, 0), a_delta(2, 3), a_delta(3, 5))
    for _ in range(2):
        await soon(reader)
    assert not abandoned.done()
    await reader.aclose()
    await reader.aclose()
    assert await gone(abandoned) == Abandonment(CLIENT_GONE, 3)
    with pytest.raises(ReaderGone):
        await publish(stream, a_delta(4))


async def test_t4_closing_wakes_a_read_in_progress(stream: TokenStream) -> None:
    reader = stream.read(JOB)
    waiting = asyncio.ensure_future(anext(reader, None))
    await asyncio.sleep(0)
    await reader.aclose()
    assert await asyncio.wait_for(waiting, 5) is None


async def test_t4_a_worker_that_comes_later_learns_of_it_too(stream: TokenStream) -> None:
    reader = stream.read(JOB)
    await publish(stream, a_delta(1, 4))
    await soon(reader)
    await reader.aclose()
    assert await gone(stream.abandoned(JOB)) == Abandonment(CLIENT_GONE, 4)


async def test_t4_a_job_that_nobody_ever_read_counts_as_abandoned(stream: TokenStream) -> None:
    assert await gone(stream.abandoned(JOB)) == Abandonment(CLIENT_GONE, 0)
    with pytest.raises(ReaderGone):
        await publish(stream, a_delta(1))


async def test_t4_t2_abandon_tells_the_worker_and_ends_the_reader_with_one_error(
    stream: TokenStream,
) -> None:
    reader = stream.read(JOB)
    workers = [stream.abandoned(JOB), stream.abandoned(JOB)]
    workers.pop().cancel()  # a worker that stopped listening disturbs nobody
    await publish(stream, a_delta(1))
    await stream.abandon(JOB.id, AbandonReason.CLIENT_TOO_SLOW)
    await stream.abandon(JOB.id, CLIENT_GONE)  # idempotent: the first reason stands
    await stream.abandon("req_unknown", CLIENT_GONE)
    assert await gone(workers[0]) == Abandonment(AbandonReason.CLIENT_TOO_SLOW, 0)
    first, last = await rest(reader)
    assert first == a_delta(1)
    assert isinstance(last, Failed)


async def test_t4_a_job_that_ended_is_not_abandoned(stream: TokenStream) -> None:
    reader, abandoned = stream.read(JOB), stream.abandoned(JOB)
    await publish(stream, the_end(1))
    await stream.abandon(JOB.id, CLIENT_GONE)
    assert await rest(reader) == [the_end(1)]
    await reader.aclose()
    await asyncio.sleep(0)
    assert not abandoned.done()


async def test_t4_an_owner_silent_for_three_seconds_is_gone(
    stream: TokenStream, clock: FakeClock
) -> None:
    """What it had read is known; the streams of owners that beat are left alone."""
    dead, alive = stream.read(JOB), stream.read(replace(JOB, id="req_2", owner="gateway_2"))
    abandoned = stream.abandoned(JOB)
    await publish(stream, a_delta(1, 5), a_delta(2, 6))
    await soon(dead)
    for _ in range(2):
        clock.advance(1.4)
        await stream.presence("gateway_2")
    assert not abandoned.done()
    clock.advance(0.2)
    await stream.presence("gateway_2")
    assert await gone(abandoned) == Abandonment(OWNER_GONE, 5)
    with pytest.raises(ReaderGone):
        await publish(stream, a_delta(3))
    assert isinstance((await rest(dead))[-1], Failed)
    await stream.publish(replace(JOB, id="req_2"), 1, [the_end(1)])
    assert await rest(alive) == [the_end(1)]


async def test_t4_an_owner_that_beats_or_has_just_opened_a_stream_is_present(
    stream: TokenStream, clock: FakeClock
) -> None:
    await stream.presence("worker_1")
    clock.advance(100)
    stream.read(JOB)
    abandoned = stream.abandoned(JOB)
    for _ in range(5):
        await stream.presence("worker_1")
        clock.advance(2)
        await stream.presence("gateway_1")
    await asyncio.sleep(0)
    assert not abandoned.done()


async def test_t4_a_process_that_stood_still_does_not_count_itself_as_gone(
    stream: TokenStream, clock: FakeClock
) -> None:
    reader = stream.read(JOB)
    clock.advance(60)
    await stream.presence("gateway_1")
    await publish(stream, the_end(1))
    assert await rest(reader) == [the_end(1)]


# -- what is ready, and endings by the owner ----------------------------------------------------------


async def test_t1_what_is_ready_is_taken_without_waiting_and_in_order(stream: TokenStream) -> None:
    reader = stream.read(JOB)
    assert reader.ready() is None
    await publish(stream, a_delta(1), a_delta(2), the_end(3))
    assert await soon(reader) == a_delta(1)
    assert reader.ready() == a_delta(2)
    assert reader.ready() == the_end(3)
    assert reader.ready() is None
    assert await rest(reader) == []


async def test_t2_an_owner_ends_a_stream_behind_what_was_published(stream: TokenStream) -> None:
    reader = stream.read(JOB)
    await publish(stream, a_delta(1))
    error = EngineFailed()
    await stream.fail(JOB.id, error)
    await stream.fail(JOB.id, EngineFailed())
    assert await rest(reader) == [a_delta(1), Failed(2, 1, error)]
    with pytest.raises(ReaderGone):
        await publish(stream, a_delta(2))


async def test_ending_a_stream_that_nobody_opened_is_no_news(stream: TokenStream) -> None:
    await stream.fail("req_unknown", EngineFailed())
    with pytest.raises(ReaderGone):
        await publish(stream, a_delta(1))
