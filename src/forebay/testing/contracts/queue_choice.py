"""The contract suite of `forebay.queue`, second part: who goes first (Q7, Q8, Q9).

Fixtures as in `queue.py`, which also has the first part and the helpers.
"""

from __future__ import annotations

import math
from dataclasses import replace

from forebay.core.job import Ahead, Job, Lane, Lease, Progress, Removal, Resume, Served
from forebay.queue import JobQueue
from forebay.testing.clock import FakeClock
from forebay.testing.contracts.queue import (
    BATCH,
    INTERACTIVE,
    POOL,
    PREMIUM,
    SECONDS,
    SETTINGS,
    a_flow,
    a_job,
    ids,
    put,
    serve,
    take,
    take_one,
)

# -- Q7: lanes ----------------------------------------------------------------------------------------


async def test_q7_lanes_go_in_order(queue: JobQueue) -> None:
    for lane in (BATCH, INTERACTIVE, PREMIUM):
        await put(queue, a_job(lane, a_flow("a", lane)))
    [premium] = await take(queue)
    assert premium.job.id == PREMIUM
    assert premium.protected_seconds == 0


async def test_q7_only_the_asked_lanes_are_leased(queue: JobQueue) -> None:
    await put(queue, a_job("p", a_flow("a", PREMIUM)), a_job("b", a_flow("a", BATCH)))
    assert ids(await take(queue, slots=9, lanes=frozenset({BATCH}))) == ["b"]
    assert ids(await take(queue, slots=9, lanes=frozenset({PREMIUM}))) == ["p"]


async def _serve_saturated(queue: JobQueue, clock: FakeClock, calls: int) -> list[Lease]:
    """One call after the other while every lane always has a waiting job."""
    leases = []
    for n in range(calls):
        for lane in Lane:
            await put(queue, a_job(f"{lane}{n}", a_flow("a", lane)))
        lease = await take_one(queue)
        clock.advance(0.5)
        await serve(queue, lease, 20)
        leases.append(lease)
        for lane in Lane:
            if lane is not lease.job.flow.lane:  # keep their lines short
                assert await queue.remove(f"{lane}{n}") is Removal.WAS_WAITING
    return leases


async def test_q7_waiting_lanes_get_their_shares_of_the_cost_and_protection(
    queue: JobQueue, clock: FakeClock
) -> None:
    leases = await _serve_saturated(queue, clock, 100)
    lanes = [lease.job.flow.lane for lease in leases]
    assert lanes.count(INTERACTIVE) in (20, 21)
    assert lanes.count(BATCH) in (5, 6)
    for lease in leases:
        owed = lease.job.flow.lane is not PREMIUM
        assert lease.protected_seconds == (SETTINGS.protect_seconds if owed else 0)


async def test_q7_a_lane_that_did_not_wait_is_owed_nothing(
    queue: JobQueue, clock: FakeClock
) -> None:
    """A batch burst after a quiet minute does not go before interactive jobs."""
    for n in range(50):
        await put(queue, a_job(f"i{n}"))
        await serve(queue, await take_one(queue), 20)
        clock.advance(1)
    await put(queue, a_job("batch", a_flow("a", BATCH)), a_job("i"))
    assert ids(await take(queue)) == ["i"]


async def test_q7_what_a_lane_missed_is_forgotten_after_the_window(
    queue: JobQueue, clock: FakeClock
) -> None:
    await put(queue, a_job("batch", a_flow("a", BATCH)), a_job("i"))
    await serve(queue, await take_one(queue), 20)
    clock.advance(SETTINGS.window_seconds - 1)
    await put(queue, a_job("i2"))
    [lease] = await take(queue)
    assert lease.job.id == "batch"
    await queue.nack(lease, served=Served(0), resume=Resume(preemptions=1))
    clock.advance(SETTINGS.window_seconds)
    assert ids(await take(queue)) == ["i2"]


async def test_q7_a_job_preempted_three_times_is_protected_from_then_on(queue: JobQueue) -> None:
    await put(queue, a_job("a", a_flow("a", BATCH)))
    for preemptions in range(1, 4):
        lease = await take_one(queue)
        assert lease.protected_seconds == 0
        await queue.nack(lease, served=Served(1), resume=Resume(preemptions=preemptions))
    assert (await take_one(queue)).protected_seconds == math.inf


# -- Q8: flows ----------------------------------------------------------------------------------------


async def _shares(queue: JobQueue, jobs: dict[str, Job], calls: int, out: int = 10) -> list[str]:
    """Which flow each of `calls` leases went to, one at a time, while all flows always wait.

    Always: two jobs of each, or a flow whose only job is leased would be lifted with its next one.
    """
    served = []
    for n, (name, job) in enumerate([*jobs.items()] * 2):
        await put(queue, replace(job, id=f"{name}.first{n}"))
    for n in range(calls):
        lease = await take_one(queue)
        name = lease.job.id.split(".")[0]
        await put(queue, replace(jobs[name], id=f"{name}.{n}"))
        await serve(queue, lease, out)
        served.append(name)
    return served


async def test_q8_equal_flows_take_turns(queue: JobQueue) -> None:
    jobs = {name: a_job(name, a_flow(name)) for name in "abc"}
    served = await _shares(queue, jobs, 30)
    assert served[:3] == ["a", "b", "c"], "equal counters: by arrival"
    assert all(sorted(served[n : n + 3]) == ["a", "b", "c"] for n in range(0, 30, 3))


async def test_q8_service_follows_the_weights(queue: JobQueue) -> None:
    jobs = {"a": a_job("a", a_flow("a"), weight=1), "b": a_job("b", a_flow("b"), weight=3)}
    served = await _shares(queue, jobs, 80)
    assert served.count("a") in (19, 20, 21)


async def test_q8_the_projects_of_an_organisation_share_its_weight(queue: JobQueue) -> None:
    jobs = {name: a_job(name, a_flow(name, organisation="one")) for name in "abc"}
    jobs["d"] = a_job("d", a_flow("d", organisation="two"))
    served = await _shares(queue, jobs, 60)
    assert served.count("d") in (29, 30, 31)
    assert {served.count(name) for name in "abc"} <= {9, 10, 11}


async def test_q8_service_is_cost_not_jobs(queue: JobQueue) -> None:
    """A flow with four times the tokens per job gets a quarter of the jobs."""
    big = a_job("a", a_flow("a"), prompt_ids=tuple(range(200)), ceiling_tokens=1)
    small = a_job("b", a_flow("b"), prompt_ids=tuple(range(50)), ceiling_tokens=1)
    served = await _shares(queue, {"a": big, "b": small}, 50, out=0)
    assert served.count("a") in (9, 10, 11, 12)


async def test_q8_many_slots_at_once_do_not_all_go_to_one_flow(queue: JobQueue) -> None:
    await put(queue, *(a_job(f"a{n}", a_flow("a")) for n in range(4)))
    await put(queue, *(a_job(f"b{n}", a_flow("b")) for n in range(4)))
    assert ids(await take(queue, slots=4)) == ["a0", "b0", "a1", "b1"]


async def test_q8_idling_earns_no_credit(queue: JobQueue) -> None:
    for n in range(30):
        await put(queue, a_job(f"alone{n}", a_flow("a")))
        await serve(queue, await take_one(queue), 10)
    served = await _shares(queue, {name: a_job(name, a_flow(name)) for name in "ab"}, 20)
    assert served.count("b") in (9, 10, 11)


async def test_q8_an_acknowledgement_corrects_the_charge_downwards(queue: JobQueue) -> None:
    """Charged 20 output tokens each at the lease, flow a generated none and b all of them."""
    await put(queue, *(a_job(f"a{n}", a_flow("a")) for n in range(4)))
    await put(queue, *(a_job(f"b{n}", a_flow("b")) for n in range(4)))
    a, b = await take(queue, slots=2)
    await serve(queue, a, 0)
    await serve(queue, b, 20)
    assert ids(await take(queue, slots=1)) == ["a1"]


async def test_q8_extend_raises_the_charge_above_the_estimate_only(queue: JobQueue) -> None:
    """Both flows have an average of one token, so a lease is charged one; a's generates more."""
    await put(queue, *(a_job(f"a{n}", a_flow("a")) for n in range(4)))
    await serve(queue, await take_one(queue), 1)
    lease = await take_one(queue)
    await put(queue, *(a_job(f"b{n}", a_flow("b")) for n in range(4)))
    b0 = await take_one(queue)
    assert b0.job.id == "b0", "lifted to a's counter, and leased longer ago"
    await serve(queue, b0, 1)
    assert await queue.extend("worker_1", [Progress(lease, 1)], seconds=SECONDS) == []
    assert ids(await take(queue)) == ["a2"], "one token was charged at the lease"
    await queue.extend("worker_1", [Progress(lease, 19)], seconds=SECONDS)
    assert ids(await take(queue, slots=3)) == ["b1", "b2", "b3"]


async def test_q8_extend_never_lowers_the_charge(queue: JobQueue) -> None:
    """Little progress is not little output: the estimate stands until the lease ends."""
    for name in "ab":
        await put(queue, *(a_job(f"{name}{n}", a_flow(name)) for n in range(3)))
    _, b0 = await take(queue, slots=2)
    await queue.extend("worker_1", [Progress(b0, 1)], seconds=SECONDS)
    assert ids(await take(queue)) == ["a1"]


async def test_q8_a_prefill_is_charged_once_however_often_it_is_repeated(queue: JobQueue) -> None:
    prompt = tuple(range(100))
    await put(queue, a_job("a", prompt_ids=prompt))
    lease = await take_one(queue)
    await queue.nack(lease, served=Served(5), resume=Resume(((1,) * 5,), 6, preemptions=1))
    assert (await queue.depths(POOL))[a_flow()].waiting_cost == queue.cost(0, 15)


async def test_q8_a_job_leased_after_its_deadline_is_charged_nothing(
    queue: JobQueue, clock: FakeClock
) -> None:
    """Its worker turns it away. Its flow is not pushed back for having waited."""
    large = a_job("late", prompt_ids=(1,) * 1000, ceiling_tokens=500, deadline_seconds=5.0)
    await put(queue, large, *(a_job(f"a{n}") for n in range(2)))
    await put(queue, *(a_job(f"b{n}", a_flow("b")) for n in range(3)))
    clock.advance(6)
    late = await take_one(queue)
    assert (late.job.id, late.waited_seconds) == ("late", 6)
    assert ids(await take(queue, slots=3)) == ["b0", "a0", "b1"]
    await serve(queue, late)
    assert ids(await take(queue)) == ["a1"]


async def test_q8_a_job_that_runs_after_its_deadline_all_the_same_is_charged(
    queue: JobQueue, clock: FakeClock
) -> None:
    large = a_job("late", prompt_ids=(1,) * 1000, deadline_seconds=5.0)
    await put(queue, large, *(a_job(f"a{n}") for n in range(2)))
    await put(queue, *(a_job(f"b{n}", a_flow("b")) for n in range(3)))
    clock.advance(6)
    late = await take_one(queue)
    await serve(queue, late, 1)
    assert ids(await take(queue, slots=3)) == ["b0", "b1", "b2"]


async def test_q8_an_expired_lease_is_charged_what_it_had_reported(
    queue: JobQueue, clock: FakeClock
) -> None:
    await put(queue, *(a_job(f"a{n}", a_flow("a")) for n in range(3)))
    await put(queue, *(a_job(f"b{n}", a_flow("b")) for n in range(3)))
    a, b = await take(queue, slots=2)
    await queue.extend("worker_1", [Progress(a, 20), Progress(b, 2)], seconds=SECONDS)
    clock.advance(SECONDS)
    assert len(await queue.reap()) == 2
    assert ids(await take(queue)) == ["b1"]


# -- Q9: memory of the engine -------------------------------------------------------------------------


async def test_q9_leases_never_exceed_the_kv_tokens_and_what_fits_is_leased(
    queue: JobQueue,
) -> None:
    """30 tokens a job, rounded up to blocks of 16: 32."""
    await put(queue, *(a_job(str(n)) for n in range(4)))
    assert ids(await take(queue, slots=9, kv_tokens=3 * 32 - 1, block_tokens=16)) == ["0", "1"]
    assert await take(queue, slots=9, kv_tokens=31, block_tokens=16) == []
    assert ids(await take(queue, slots=9, kv_tokens=32, block_tokens=16)) == ["2"]
    assert ids(await take(queue, slots=9, kv_tokens=30)) == ["3"]


async def test_q9_what_does_not_fit_is_not_overtaken(queue: JobQueue) -> None:
    big = a_job("big", a_flow("a"), ceiling_tokens=500)
    await put(queue, big, a_job("b", a_flow("b")), a_job("c", a_flow("c", BATCH)))
    assert await take(queue, slots=9, kv_tokens=509) == []
    interactive = frozenset({INTERACTIVE})
    assert ids(await take(queue, slots=9, kv_tokens=540, lanes=interactive)) == ["big", "b"]


async def test_q9_an_engine_that_evicts_is_asked_for_what_the_job_should_need(
    queue: JobQueue,
) -> None:
    """P + E: 10 + 20 before the flow has finished a call, 10 + 5 afterwards."""
    await put(queue, *(a_job(str(n)) for n in range(4)))
    assert await take(queue, kv_tokens=29, evicts=True) == []
    await serve(queue, await take_one(queue, kv_tokens=30, evicts=True), 5)
    assert await take(queue, kv_tokens=14, evicts=True) == []
    assert ids(await take(queue, slots=2, kv_tokens=30, evicts=True)) == ["1", "2"]
    assert await take(queue, kv_tokens=15) == [], "one that cannot evict needs P + M"


async def test_q9_a_job_takes_a_slot_for_each_of_its_choices_and_is_not_overtaken(
    queue: JobQueue,
) -> None:
    await put(queue, a_job("n3", choices=3), a_job("b"), a_job("n2", choices=2))
    assert (await queue.depths(POOL))[a_flow()].next_slots == 3
    assert await take(queue, slots=2) == []
    assert ids(await take(queue, slots=4)) == ["n3", "b"]
    assert await take(queue, slots=1) == []
    assert ids(await take(queue, slots=2)) == ["n2"]


# -- Q9: the reserve ----------------------------------------------------------------------------------


async def test_q9_the_batch_lane_takes_no_more_than_its_slots(queue: JobQueue) -> None:
    await put(queue, *(a_job(f"b{n}", a_flow("a", BATCH)) for n in range(4)))
    assert await take(queue, slots=9, batch_slots=0) == []
    assert ids(await take(queue, slots=9, batch_slots=3)) == ["b0", "b1", "b2"]


async def test_q9_other_lanes_take_what_the_batch_lane_may_not(queue: JobQueue) -> None:
    await put(queue, *(a_job(f"b{n}", a_flow("a", BATCH)) for n in range(3)))
    await put(queue, a_job("i"), a_job("p", a_flow("a", PREMIUM)))
    assert ids(await take(queue, slots=9, batch_slots=1)) == ["p", "i", "b0"]
    await put(queue, a_job("i2"), a_job("i3"))
    assert ids(await take(queue, slots=9, batch_slots=0)) == ["i2", "i3"]


async def test_q9_a_batch_job_of_several_choices_goes_with_the_last_of_its_lanes_slots(
    queue: JobQueue,
) -> None:
    """Else it would wait for ever where the lane never has as many as it needs."""
    batch = a_flow("a", BATCH)
    await put(queue, a_job("b", batch), a_job("n3", batch, choices=3), a_job("last", batch))
    assert ids(await take(queue, slots=9, batch_slots=2)) == ["b", "n3"]
    await put(queue, a_job("n4", batch, choices=4))
    assert ids(await take(queue, slots=1, batch_slots=1)) == ["last"]
    assert await take(queue, slots=3, batch_slots=3) == [], "it does not fit the engine"


async def test_q7_a_batch_lane_that_is_owed_takes_from_the_reserve(queue: JobQueue) -> None:
    """One job puts it over its share again."""
    await put(queue, *(a_job(f"b{n}", a_flow("a", BATCH)) for n in range(3)))
    await put(queue, a_job("i0"))
    await serve(queue, await take_one(queue), 20)
    await put(queue, a_job("i1"))
    leases = await take(queue, slots=9, batch_slots=0)
    assert ids(leases) == ["b0", "i1"]
    assert [lease.protected_seconds for lease in leases] == [SETTINGS.protect_seconds, 0]
    assert ids(await take(queue, slots=9, batch_slots=1)) == ["b1"]


async def test_what_goes_before_a_new_job_is_what_the_depths_say(queue: JobQueue) -> None:
    """Every flow of its lane up to its own turn, all of higher lanes, nothing of lower ones."""
    assert await queue.ahead(POOL, a_flow("a"), 10) == Ahead(0, 0)
    flows = {"a": 3, "b": 1, "c": 4}
    for name, jobs in flows.items():
        await put(queue, *(a_job(f"{name}{n}", a_flow(name)) for n in range(jobs)))
    premium, batch = a_flow("a", Lane.PREMIUM), a_flow("a", Lane.BATCH)
    await put(queue, a_job("high", premium), a_job("low", batch))
    depths = {flow: depth.waiting_cost for flow, depth in (await queue.depths(POOL)).items()}
    one = depths[a_flow("b")]
    seen = await queue.ahead(POOL, a_flow("a"), one)
    assert seen == Ahead(10, depths[premium] + 3 * one + one + 4 * one)
    assert (await queue.ahead(POOL, a_flow("new"), one)).cost == depths[premium] + 3 * one
    assert (await queue.ahead(POOL, premium, one)).cost == depths[premium]
    everything = sum(depths.values()) - depths[batch]
    assert (await queue.ahead(POOL, batch, 10**9)).cost == everything + depths[batch]
