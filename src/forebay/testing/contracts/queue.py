"""The contract suite of `forebay.queue`.

Fixtures: `clock` (a FakeClock that the backend's time follows) and `queue` (a JobQueue on that
clock, empty, made with `SETTINGS`). Call `check_drains(queue, clock)` when the test has ended: it
finds what a test left behind inconsistent, through the contract alone.

Not here: who goes first, Q7 to Q9 (`queue_choice.py`, same fixtures); random walks through two
backends side by side (`queue_machine.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from forebay.core.errors import FlowFull, LaneFull, LeaseLost
from forebay.core.job import (
    Ask,
    Flow,
    Job,
    Lane,
    Lease,
    Progress,
    Removal,
    Resume,
    Sampling,
    Served,
)
from forebay.queue import JobQueue, QueueSettings
from forebay.testing.clock import FakeClock

SETTINGS = QueueSettings(flow_jobs=4, lane_jobs=10)
POOL = "pool"
SECONDS = 30.0
PREMIUM, INTERACTIVE, BATCH = Lane.PREMIUM, Lane.INTERACTIVE, Lane.BATCH


def a_flow(name: str = "a", lane: Lane = INTERACTIVE, organisation: str | None = None) -> Flow:
    """A flow of a project; by default in an organisation of its own."""
    return Flow(lane, organisation or f"org_{name}", f"proj_{name}")


def a_job(job_id: str, flow: Flow | None = None, **changes: Any) -> Job:
    """A job of 10 input and at most 20 output tokens."""
    job = Job(
        id=job_id,
        attempt=1,
        owner="gateway_1",
        pool=POOL,
        model="m",
        flow=flow or a_flow(),
        weight=1,
        prompt_ids=tuple(range(10)),
        ceiling_tokens=20,
        sampling=Sampling(),
        streamed=True,
        resumable=True,
    )
    return replace(job, **changes)


async def put(queue: JobQueue, *jobs: Job) -> None:
    """Enqueue all of them; each must be new."""
    for job in jobs:
        assert await queue.enqueue(job)


async def take(
    queue: JobQueue, slots: int = 1, worker: str = "worker_1", **ask: Any
) -> list[Lease]:
    """Lease with room for everything unless `ask` says otherwise."""
    terms: dict[str, Any] = {"pool": POOL, "kv_tokens": 10**9, "lanes": frozenset(Lane)}
    terms["batch_slots"] = slots
    return await queue.lease(Ask(slots=slots, **(terms | ask)), worker=worker, seconds=SECONDS)


async def take_one(queue: JobQueue, **ask: Any) -> Lease:
    """Lease exactly one job."""
    [lease] = await take(queue, **ask)
    return lease


def ids(leases: Iterable[Lease]) -> list[str]:
    """The ids of the leased jobs, in order."""
    return [lease.job.id for lease in leases]


async def serve(queue: JobQueue, lease: Lease, output_tokens: int = 0) -> None:
    """Acknowledge."""
    await queue.ack(lease, served=Served(output_tokens))


async def check_drains(queue: JobQueue, clock: FakeClock) -> None:
    """S8 in small: reap, lease and acknowledge everything; each job once, and nothing stays."""
    depths = await queue.depths(POOL)
    leased = sum(depth.leased for depth in depths.values())
    waiting = sum(depth.waiting for depth in depths.values())
    clock.advance(10 * SECONDS)
    assert len(await queue.reap()) == leased
    leases = await take(queue, slots=10**6)
    assert len({lease.job.id for lease in leases}) == len(leases) == waiting
    assert len({lease.fence for lease in leases}) == len(leases), "Q2"
    for lease in leases:
        await serve(queue, lease)
    assert await queue.depths(POOL) == {}


# -- Q1, Q2, Q6: where a job is, and whose it is ------------------------------------------------------


async def test_q1_a_job_is_waiting_then_leased_then_gone(queue: JobQueue) -> None:
    await put(queue, a_job("a"))
    assert (await queue.depths(POOL))[a_flow()].waiting == 1
    lease = await take_one(queue)
    depth = (await queue.depths(POOL))[a_flow()]
    assert (depth.waiting, depth.leased) == (0, 1)
    assert await queue.remove("a") is Removal.WAS_LEASED
    await serve(queue, lease)
    assert await queue.depths(POOL) == {}
    assert await queue.remove("a") is Removal.UNKNOWN


async def test_q1_a_removed_job_is_not_leased_and_may_come_back(queue: JobQueue) -> None:
    await put(queue, a_job("a"), a_job("b"), a_job("c"))
    assert await queue.remove("b") is Removal.WAS_WAITING
    assert await queue.remove("b") is Removal.UNKNOWN
    assert ids(await take(queue, slots=9)) == ["a", "c"]
    assert await queue.enqueue(a_job("b"))
    assert ids(await take(queue)) == ["b"]


async def test_q1_an_expired_lease_leaves_the_queue_for_its_owner(
    queue: JobQueue, clock: FakeClock
) -> None:
    await put(queue, a_job("a"))
    await take(queue)
    clock.advance(SECONDS - 1)
    assert await queue.reap() == []
    clock.advance(1)
    assert await queue.reap() == [a_job("a")]
    assert await queue.reap() == []
    assert await take(queue) == []
    assert await queue.depths(POOL) == {}


async def test_q2_every_new_lease_has_a_larger_fence(queue: JobQueue, clock: FakeClock) -> None:
    """Also when the wall clock is set back between them."""
    fences = []
    await put(queue, a_job("a"), a_job("b"))
    for _ in range(3):
        leases = await take(queue, slots=2)
        fences += [lease.fence for lease in leases]
        clock.jump_wall(-3600)
        for lease in leases:
            await queue.nack(lease, served=Served(0), resume=Resume())
    assert fences == sorted(set(fences))
    assert len(fences) == 6


async def test_q2_q6_a_worker_that_lost_its_lease_changes_nothing(
    queue: JobQueue, clock: FakeClock
) -> None:
    await put(queue, a_job("a"))
    old = await take_one(queue)
    clock.advance(SECONDS)
    [job] = await queue.reap()
    for _ in range(2):  # with no lease of the job, then with a newer one
        with pytest.raises(LeaseLost):
            await queue.ack(old, served=Served(1))
        with pytest.raises(LeaseLost):
            await queue.nack(old, served=Served(1), resume=Resume())
        assert await queue.extend("worker_1", [Progress(old, 1)], seconds=SECONDS) == ["a"]
        if job.attempt == 1:
            job = replace(job, attempt=2)
            await put(queue, job)
            new = await take_one(queue, worker="worker_2")
    assert (await queue.depths(POOL))[a_flow()].leased == 1
    await serve(queue, new)
    with pytest.raises(LeaseLost):
        await serve(queue, new)


async def test_q6_only_the_worker_that_holds_a_lease_extends_it(
    queue: JobQueue, clock: FakeClock
) -> None:
    await put(queue, a_job("a"), a_job("b"))
    a, b = await take(queue, slots=2)
    clock.advance(SECONDS - 1)
    assert await queue.extend("worker_2", [Progress(a, 0)], seconds=SECONDS) == ["a"]
    progress = [Progress(b, 3), Progress(replace(a, fence=a.fence + 1), 3)]
    assert await queue.extend("worker_1", progress, seconds=SECONDS) == ["a"]
    clock.advance(1)
    assert [job.id for job in await queue.reap()] == ["a"]
    clock.advance(SECONDS - 2)
    assert await queue.reap() == []
    clock.advance(1)
    assert [job.id for job in await queue.reap()] == ["b"]


async def test_a_lease_past_its_time_is_live_until_it_is_reaped(
    queue: JobQueue, clock: FakeClock
) -> None:
    await put(queue, a_job("a"), a_job("b"))
    a, b = await take(queue, slots=2)
    clock.advance(2 * SECONDS)
    assert await queue.extend("worker_1", [Progress(a, 1)], seconds=SECONDS) == []
    await serve(queue, b)
    assert await queue.reap() == []


async def test_q1_twenty_workers_lease_each_job_exactly_once(queue: JobQueue) -> None:
    flows = [a_flow(str(n), lane) for n in range(2) for lane in Lane]
    jobs = [a_job(f"{flow.lane}{flow.project_id}{n}", flow) for flow in flows for n in range(4)]
    await put(queue, *jobs)

    async def work(worker: str) -> list[str]:
        mine: list[str] = []
        while leases := await take(queue, slots=1, worker=worker):
            await asyncio.sleep(0)
            for lease in leases:
                await serve(queue, lease, 1)
            mine += ids(leases)
        return mine

    done = await asyncio.gather(*(work(f"worker_{n}") for n in range(20)))
    assert sorted(job_id for mine in done for job_id in mine) == sorted(job.id for job in jobs)


# -- Q3, Q4: order and repeats ------------------------------------------------------------------------


async def test_q3_jobs_of_one_flow_leave_in_arrival_order(queue: JobQueue) -> None:
    await put(queue, *(a_job(name) for name in "badc"))
    assert ids(await take(queue, slots=3)) == ["b", "a", "d"]
    assert ids(await take(queue)) == ["c"]


async def test_q3_a_returned_job_goes_back_to_the_front_with_its_resume_state(
    queue: JobQueue,
) -> None:
    await put(queue, a_job("a"), a_job("b"), a_job("c"))
    lease = await take_one(queue)
    resume = Resume(token_ids=((1, 2, 3),), sequence=4, preemptions=1)
    await queue.nack(lease, served=Served(3), resume=resume)
    again = await take_one(queue)
    assert again.job == replace(a_job("a"), resume=resume)
    assert ids(await take(queue, slots=9)) == ["b", "c"]


async def test_q3_several_returned_jobs_keep_their_arrival_order(queue: JobQueue) -> None:
    await put(queue, *(a_job(name) for name in "abcd"))
    leases = await take(queue, slots=3)
    for lease in (leases[1], leases[0], leases[2]):
        await queue.nack(lease, served=Served(0), resume=Resume(preemptions=1))
    assert ids(await take(queue, slots=9)) == ["a", "b", "c", "d"]


async def test_q3_the_next_attempt_of_a_lost_job_goes_to_the_front(
    queue: JobQueue, clock: FakeClock
) -> None:
    await put(queue, a_job("a"), a_job("b"))
    await take(queue)
    clock.advance(SECONDS)
    [job] = await queue.reap()
    await put(queue, a_job("c"), replace(job, attempt=2))
    leases = await take(queue, slots=9)
    assert ids(leases) == ["a", "b", "c"]
    assert leases[0].job.attempt == 2


async def test_q4_enqueue_twice_is_one_job(queue: JobQueue) -> None:
    assert await queue.enqueue(a_job("a"))
    assert not await queue.enqueue(a_job("a"))
    lease = await take_one(queue)
    assert not await queue.enqueue(a_job("a"))
    assert await take(queue) == []
    await serve(queue, lease)
    assert not await queue.enqueue(a_job("a")), "a late duplicate does not run again"
    assert await queue.depths(POOL) == {}


async def test_q4_an_older_attempt_than_the_known_one_is_refused(
    queue: JobQueue, clock: FakeClock
) -> None:
    await put(queue, a_job("a"))
    await take(queue)
    clock.advance(SECONDS)
    await queue.reap()
    assert not await queue.enqueue(a_job("a")), "this attempt has run"
    assert await queue.enqueue(a_job("a", attempt=2))
    assert not await queue.enqueue(a_job("a", attempt=1))
    assert [lease.job.attempt for lease in await take(queue, slots=9)] == [2]


async def test_q4_q1_a_newer_attempt_replaces_an_older_one(queue: JobQueue) -> None:
    await put(queue, a_job("a"), a_job("a", attempt=2))
    lease = await take_one(queue)
    assert lease.job.attempt == 2
    assert await take(queue) == []
    await put(queue, a_job("a", attempt=3))
    with pytest.raises(LeaseLost):
        await serve(queue, lease)
    assert [lease.job.attempt for lease in await take(queue, slots=9)] == [3]


# -- Q5: bounds ---------------------------------------------------------------------------------------


async def test_q5_a_full_flow_refuses_and_leaves_other_flows_alone(queue: JobQueue) -> None:
    await put(queue, *(a_job(str(n)) for n in range(SETTINGS.flow_jobs)))
    with pytest.raises(FlowFull, match=f"{SETTINGS.flow_jobs} may") as refusal:
        await queue.enqueue(a_job("more"))
    assert refusal.value.retry_after_seconds is not None
    await put(queue, a_job("b", a_flow("b")), a_job("a", a_flow("a", BATCH)))
    assert len(await take(queue, slots=99)) == SETTINGS.flow_jobs + 2
    await put(queue, a_job("more"))


async def test_q5_a_full_lane_refuses_and_leaves_other_lanes_and_pools_alone(
    queue: JobQueue,
) -> None:
    for n in range(SETTINGS.lane_jobs):
        await put(queue, a_job(str(n), a_flow(str(n % 5))))
    with pytest.raises(LaneFull, match=f"{SETTINGS.lane_jobs} may"):
        await queue.enqueue(a_job("more", a_flow("other")))
    await put(queue, a_job("batch", a_flow("other", BATCH)))
    await put(queue, a_job("elsewhere", a_flow("other"), pool="pool_2"))
    assert await queue.remove("0") is Removal.WAS_WAITING
    await put(queue, a_job("more", a_flow("other")))
    assert await queue.remove("elsewhere") is Removal.WAS_WAITING


async def test_q5_leased_jobs_do_not_count_and_returned_ones_are_never_refused(
    queue: JobQueue, clock: FakeClock
) -> None:
    await put(queue, *(a_job(str(n)) for n in range(4)))
    leases = await take(queue, slots=2)
    await put(queue, a_job("4"), a_job("5"))
    await queue.nack(leases[0], served=Served(0), resume=Resume(preemptions=1))
    clock.advance(SECONDS)
    [lost] = await queue.reap()
    await put(queue, replace(lost, attempt=2))
    assert ids(await take(queue, slots=9)) == ["0", "1", "2", "3", "4", "5"]


async def test_a_weight_below_one_is_refused(queue: JobQueue) -> None:
    with pytest.raises(ValueError, match="weight 0"):
        await queue.enqueue(a_job("a", weight=0))
    assert await queue.depths(POOL) == {}


# -- the rest -----------------------------------------------------------------------------------------


async def test_pools_are_independent(queue: JobQueue) -> None:
    await put(queue, a_job("a"), a_job("b", pool="pool_2"))
    b = await take_one(queue, pool="pool_2")
    assert b.job.id == "b"
    assert await queue.depths("pool_3") == {}
    assert await take(queue, pool="pool_3") == []
    assert ids(await take(queue, slots=9)) == ["a"]
    await serve(queue, b)
    assert await queue.depths("pool_2") == {}


async def test_depths_say_what_waits(queue: JobQueue, clock: FakeClock) -> None:
    await put(queue, a_job("a"))
    clock.advance(2)
    await put(queue, a_job("b", ceiling_tokens=7), a_job("c", a_flow("c", BATCH)))
    clock.advance(1)
    depths = await queue.depths(POOL)
    assert set(depths) == {a_flow(), a_flow("c", BATCH)}
    a = depths[a_flow()]
    assert (a.waiting, a.leased, a.oldest_wait_seconds, a.next_kv_tokens) == (2, 0, 3.0, 30)
    assert a.waiting_cost == queue.cost(20, 27)
    lease = await take_one(queue)
    assert lease.waited_seconds == 3
    a = (await queue.depths(POOL))[a_flow()]
    assert (a.waiting, a.leased, a.oldest_wait_seconds, a.next_kv_tokens) == (1, 1, 1.0, 17)
    await take(queue, lanes=frozenset({INTERACTIVE}))
    a = (await queue.depths(POOL))[a_flow()]
    assert (a.waiting, a.leased, a.oldest_wait_seconds) == (0, 2, 0.0)
    assert (a.waiting_cost, a.next_kv_tokens) == (0, 0)


async def test_the_oldest_wait_counts_behind_a_returned_job_too(
    queue: JobQueue, clock: FakeClock
) -> None:
    await put(queue, a_job("a"))
    clock.advance(1)
    await put(queue, a_job("b"), a_job("c", attempt=2))
    assert (await queue.depths(POOL))[a_flow()].oldest_wait_seconds == 1.0


async def test_cost_is_linear_in_tokens(queue: JobQueue) -> None:
    assert queue.cost(3, 2) == 3 * SETTINGS.w_in + 2 * SETTINGS.w_out


async def test_changed_wakes_for_jobs_enqueued_and_returned(queue: JobQueue) -> None:
    seen = await queue.changed(POOL, 0, timeout_seconds=0.01)
    waiting = [asyncio.ensure_future(queue.changed(POOL, seen, timeout_seconds=20)) for _ in "12"]
    await asyncio.sleep(0)
    await put(queue, a_job("a"), a_job("b", a_flow("b")))
    first, second = await asyncio.wait_for(asyncio.gather(*waiting), 5)
    assert first == second != seen
    lease = await take_one(queue)
    woken = asyncio.ensure_future(queue.changed(POOL, first, timeout_seconds=20))
    await asyncio.sleep(0)
    await queue.nack(lease, served=Served(0), resume=Resume())
    assert await asyncio.wait_for(woken, 5) != first


async def test_changed_returns_at_once_for_what_was_missed_and_else_times_out(
    queue: JobQueue,
) -> None:
    await put(queue, a_job("a"))
    seen = await asyncio.wait_for(queue.changed(POOL, 0, timeout_seconds=20), 5)
    assert await queue.changed(POOL, seen, timeout_seconds=0.01) == seen
    await put(queue, a_job("b", pool="pool_2"))
    assert await queue.changed(POOL, seen, timeout_seconds=0.01) == seen
