"""The queue of one process: the default on one machine, and the specification for other backends.

No verb awaits, so each runs to completion on the event loop: that is the atomicity which a shared
store has to provide otherwise. What a backend must answer, it answers as this file does.

Decisions that the contract leaves open, and that are binding here:
- A lease lives until `reap` takes it: one that is past its time but not yet reaped can still be
  extended, acknowledged or returned.
- Returned jobs (nack, or an attempt after the first) go before all that never ran, in arrival order
  among themselves. They had a place already, so the bounds (Q5) never refuse them; there are never
  more of them than were leased at once.
- A newer attempt replaces an older one that is still here; the older one's lease is lost.
- A job that was acknowledged or reaped is remembered for a while, so that a late duplicate of its
  enqueue does not run again (Q4). A removed one never ran and may come back.
- A job first leased after its `deadline_seconds` is handed over to be turned away: it is charged
  nothing unless it is run all the same.
- An expired lease is charged what it had reported with its last `extend`.

Not here: the arithmetic of fairness (`fairness.py`).
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from forebay.core.clock import Clock
from forebay.core.errors import FlowFull, LaneFull, LeaseLost
from forebay.core.job import (
    Ahead,
    Ask,
    Depth,
    Flow,
    Job,
    Lane,
    Lease,
    Progress,
    Removal,
    Resume,
    Served,
)
from forebay.queue.contract import JobQueue
from forebay.queue.fairness import (
    Charge,
    FlowCounters,
    LaneShares,
    QueueSettings,
    cost_ahead,
    served_cost,
)

# Acknowledged and reaped jobs remembered for Q4: minutes of traffic; duplicates come within seconds.
_GONE_JOBS = 4096


@dataclass(slots=True, eq=False)
class _Waiting:
    """A waiting job. `order` puts returned jobs first; `ran`: a lease has paid for its prefill."""

    job: Job
    order: tuple[int, int]
    since: float
    ran: bool
    cost: int


@dataclass(slots=True, eq=False)
class _Leased:
    """A leased job with what is needed to return it. `expires` is on the monotonic clock."""

    entry: _Waiting
    lease: Lease
    expires: float
    charge: Charge
    reported: int = 0


@dataclass(slots=True, eq=False)
class _FlowJobs:
    """One flow's jobs: the waiting ones in order, and how many are leased."""

    waiting: list[_Waiting]
    cost: int = 0
    leased: int = 0


class _LaneJobs:
    """One lane of one pool."""

    def __init__(self, settings: QueueSettings) -> None:
        self.flows: dict[Flow, _FlowJobs] = {}
        self.counters = FlowCounters(order=settings.order)
        self.waiting = 0

    def head_order(self, flow: Flow) -> tuple[int, int]:
        return self.flows[flow].waiting[0].order


class _Pool:
    """One pool: independent of all others."""

    def __init__(self, settings: QueueSettings) -> None:
        self.lanes = {lane: _LaneJobs(settings) for lane in Lane}
        self.shares = LaneShares(settings)
        self.arrivals = 0

    def waiting(self) -> list[Lane]:
        return [lane for lane, jobs in self.lanes.items() if jobs.waiting]


class MemoryQueue(JobQueue):
    """Owned by one process; any number of tasks of its event loop."""

    def __init__(self, settings: QueueSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._pools: dict[str, _Pool] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._leased: dict[str, _Leased] = {}
        self._gone: OrderedDict[str, int] = OrderedDict()
        self._watchers: dict[str, list[asyncio.Future[None]]] = {}
        self._order = 0
        self._fence = 0

    # -- the owner's verbs ------------------------------------------------------------------------

    async def enqueue(self, job: Job) -> bool:
        if job.weight < 1:
            raise ValueError(f"job {job.id} has weight {job.weight}; a weight is at least 1")
        if self._known(job.id) >= job.attempt:
            return False
        returned = job.attempt > 1
        if not returned:
            self._require_room(job)
        self._replace(job.id)
        self._order += 1
        order = (0 if returned else 1, self._order)
        ran = returned or job.resume != Resume()
        self._put(_Waiting(job, order, self._clock.monotonic(), ran, cost=0))
        return True

    async def remove(self, job_id: str) -> Removal:
        if job_id in self._leased:
            return Removal.WAS_LEASED
        entry = self._waiting.get(job_id)
        if entry is None:
            return Removal.UNKNOWN
        self._take(entry)
        self._rest(entry.job)
        return Removal.WAS_WAITING

    # -- the worker's verbs -----------------------------------------------------------------------

    async def lease(self, ask: Ask, *, worker: str, seconds: float) -> list[Lease]:
        leases: list[Lease] = []
        pool, kv_tokens = self._pools.get(ask.pool), ask.kv_tokens
        slots, batch_slots = ask.slots, ask.batch_slots
        while pool is not None and slots > 0:
            asked = [lane for lane in pool.waiting() if lane in ask.lanes]
            if not asked:
                break
            lane, owed = pool.shares.choose(asked, self._second())
            if lane is Lane.BATCH and not owed and batch_slots <= 0:
                break  # Q9: it is the lowest lane, so no other waits now
            jobs = pool.lanes[lane]
            entry = jobs.flows[jobs.counters.choose(jobs.head_order)].waiting[0]
            need = self._kv_need(entry.job, ask)
            if need > kv_tokens or entry.job.choices > slots:
                break  # Q9: what does not fit now is not overtaken
            kv_tokens -= need
            slots -= entry.job.choices
            batch_slots -= entry.job.choices if lane is Lane.BATCH else 0
            leases.append(self._grant(entry, owed, worker, seconds))
        return leases

    async def extend(
        self, worker: str, progress: Sequence[Progress], *, seconds: float
    ) -> list[str]:
        lost = []
        for each in progress:
            held = self._leased.get(each.lease.job.id)
            if held is None or held.lease.fence != each.lease.fence or held.lease.worker != worker:
                lost.append(each.lease.job.id)
                continue
            held.expires = self._clock.monotonic() + seconds
            held.reported = max(held.reported, each.output_tokens)
            cost = self._cost_so_far(held)
            if each.output_tokens > held.charge.estimate and cost > held.charge.cost:
                self._settle(held, cost)
        return lost

    async def ack(self, lease: Lease, *, served: Served) -> None:
        held = self._require_live(lease)
        self._end(held, served)
        job = held.entry.job
        if served.output_tokens:
            output_tokens = job.resume.output_tokens + served.output_tokens
            self._lane(job).counters.finished(job.flow, output_tokens)
        self._remember(job)
        self._rest(job)

    async def nack(self, lease: Lease, *, served: Served, resume: Resume) -> None:
        held = self._require_live(lease)
        self._end(held, served)
        entry = held.entry
        entry.job = replace(entry.job, resume=resume)
        entry.order, entry.ran = (0, entry.order[1]), True
        self._put(entry)

    # -- the keeper's verbs and questions ---------------------------------------------------------

    async def reap(self) -> list[Job]:
        now = self._clock.monotonic()
        expired = [held for held in self._leased.values() if held.expires <= now]
        for held in expired:
            self._evict(held)
            self._remember(held.entry.job)
            self._rest(held.entry.job)
        return [held.entry.job for held in expired]

    async def depths(self, pool: str) -> dict[Flow, Depth]:
        now = self._clock.monotonic()
        lanes = self._pools[pool].lanes.values() if pool in self._pools else ()
        return {flow: _depth(jobs, now) for lane in lanes for flow, jobs in lane.flows.items()}

    async def ahead(self, pool: str, flow: Flow, cost: int) -> Ahead:
        found = self._pools.get(pool)
        waiting = sum(lane.waiting for lane in found.lanes.values()) if found else 0
        if found is None or not waiting:
            return Ahead(0, 0)
        mine = found.lanes[flow.lane].flows
        own = mine[flow].cost if flow in mine else 0
        higher = (
            jobs.cost
            for lane, line in found.lanes.items()
            if lane.rank < flow.lane.rank
            for jobs in line.flows.values()
        )
        return Ahead(waiting, cost_ahead(own, cost, (jobs.cost for jobs in mine.values()), higher))

    async def changed(self, pool: str, seen: int, *, timeout_seconds: float) -> int:
        if self._arrivals(pool) == seen:
            watcher = asyncio.get_running_loop().create_future()
            watchers = self._watchers.setdefault(pool, [])
            watchers.append(watcher)
            try:
                await asyncio.wait([watcher], timeout=timeout_seconds)
            finally:
                watchers.remove(watcher)
        return self._arrivals(pool)

    def cost(self, input_tokens: int, output_tokens: int) -> int:
        settings = self._settings
        return settings.input_cost(input_tokens) + settings.output_cost(output_tokens)

    # -- waiting ----------------------------------------------------------------------------------

    def _known(self, job_id: str) -> int:
        """The newest attempt of this job that is or was here; 0 for none."""
        if job_id in self._waiting:
            return self._waiting[job_id].job.attempt
        if job_id in self._leased:
            return self._leased[job_id].entry.job.attempt
        return self._gone.get(job_id, 0)

    def _require_room(self, job: Job) -> None:
        """Q5. A replaced older attempt does not count twice: only first attempts come here."""
        lane, settings = self._lane(job), self._settings
        flow = lane.flows.get(job.flow)
        if flow is not None and len(flow.waiting) >= settings.flow_jobs:
            raise FlowFull(
                f"{len(flow.waiting)} calls of this project are waiting in the {job.flow.lane} "
                f"lane, and {settings.flow_jobs} may. Wait for some to finish, or send fewer "
                "at once.",
                retry_after_seconds=1.0,
            )
        if lane.waiting >= settings.lane_jobs:
            raise LaneFull(
                f"{lane.waiting} calls are waiting in the {job.flow.lane} lane of this model, and "
                f"{settings.lane_jobs} may. Retry later."
            )

    def _replace(self, job_id: str) -> None:
        """Take out an older attempt of this job, if there is one."""
        if (entry := self._waiting.get(job_id)) is not None:
            self._take(entry)
            self._rest(entry.job)
        elif (held := self._leased.get(job_id)) is not None:
            self._evict(held)
            self._rest(held.entry.job)

    def _put(self, entry: _Waiting) -> None:
        """Add the job to its flow, which may begin with it, and tell who waits for arrivals."""
        job = entry.job
        assert job.id not in self._waiting, "Q1"
        assert job.id not in self._leased, "Q1"
        lane = self._lane(job)
        flow = lane.flows.get(job.flow)
        if flow is None:
            flow = lane.flows[job.flow] = _FlowJobs([])
            lane.counters.begin(job.flow)
        entry.cost = self._estimated_cost(entry)
        insort(flow.waiting, entry, key=lambda each: each.order)
        if len(flow.waiting) == 1:
            lane.counters.wait(job.flow)
        flow.cost += entry.cost
        lane.waiting += 1
        self._waiting[job.id] = entry
        self._pools[job.pool].arrivals += 1
        for watcher in self._watchers.get(job.pool, ()):
            if not watcher.done():
                watcher.set_result(None)

    def _take(self, entry: _Waiting) -> None:
        """Take the job out of its flow's line."""
        lane = self._lane(entry.job)
        flow = lane.flows[entry.job.flow]
        flow.waiting.remove(entry)
        flow.cost -= entry.cost
        lane.waiting -= 1
        if not flow.waiting:
            lane.counters.unwait(entry.job.flow)
        del self._waiting[entry.job.id]

    def _rest(self, job: Job) -> None:
        """Forget the job's flow if this was its last job."""
        lane = self._lane(job)
        flow = lane.flows[job.flow]
        if not flow.waiting and not flow.leased:
            del lane.flows[job.flow]
            lane.counters.end(job.flow)

    def _estimated_cost(self, entry: _Waiting) -> int:
        input_tokens = 0 if entry.ran else entry.job.input_tokens
        return self.cost(input_tokens, self._lane(entry.job).counters.estimate(entry.job))

    # -- leased -----------------------------------------------------------------------------------

    def _grant(self, entry: _Waiting, owed: bool, worker: str, seconds: float) -> Lease:
        """WAITING to LEASED: choose nothing, charge (Q8), fence (Q2)."""
        job, now = entry.job, self._clock.monotonic()
        pool, lane = self._pools[job.pool], self._lane(job)
        waited = now - entry.since
        charge = self._charge(entry, waited)
        lane.counters.served(job.flow)
        self._take(entry)
        lane.flows[job.flow].leased += 1
        # Q2: the wall clock, so that fences grow even over a store that has lost its memory.
        self._fence = max(self._fence + 1, int(self._clock.now() * 1_000_000))
        lease = Lease(job, worker, self._fence, waited, self._protection(job, owed))
        self._leased[job.id] = _Leased(entry, lease, now + seconds, charge)
        input_cost = self._settings.input_cost(charge.input_tokens)
        difference = lane.counters.settle(
            charge, input_cost + self._settings.output_cost(charge.estimate)
        )
        pool.shares.add(charge, difference, charge.second, charge.watching)
        assert job.id not in self._waiting, "Q1"
        return lease

    def _charge(self, entry: _Waiting, waited: float) -> Charge:
        """An empty charge for this lease, with the terms under which it will be filled."""
        job = entry.job
        counters, late = self._lane(job).counters, job.deadline_seconds
        overdue = not entry.ran and late is not None and waited > late
        return Charge(
            flow=job.flow,
            input_tokens=0 if entry.ran or overdue else job.input_tokens,
            estimate=0 if overdue else counters.estimate(job),
            parts=counters.parts(job.flow),
            weight=job.weight,
            watching=tuple(self._pools[job.pool].waiting()),
            second=self._second(),
        )

    def _protection(self, job: Job, owed: bool) -> float:
        """Q7."""
        if job.resume.preemptions >= self._settings.protect_after_preemptions:
            return math.inf
        return float(self._settings.protect_seconds) if owed else 0.0

    def _require_live(self, lease: Lease) -> _Leased:
        held = self._leased.get(lease.job.id)
        if held is None or held.lease.fence != lease.fence:
            raise LeaseLost
        return held

    def _end(self, held: _Leased, served: Served) -> None:
        """LEASED to somewhere else: charge what was served, up or down (Q8)."""
        if served.output_tokens and not held.entry.ran:
            held.charge.input_tokens = held.entry.job.input_tokens  # also if it came too late
        self._settle(held, served_cost(self._settings, held.charge, served))
        del self._leased[held.entry.job.id]
        flow = self._lane(held.entry.job).flows[held.entry.job.flow]
        flow.leased -= 1

    def _evict(self, held: _Leased) -> None:
        """End a lease whose worker does not say what it served: its last report counts."""
        self._end(held, Served(held.reported))

    def _cost_so_far(self, held: _Leased) -> int:
        return self.cost(held.charge.input_tokens, held.reported)

    def _settle(self, held: _Leased, cost: int) -> None:
        job = held.entry.job
        pool = self._pools[job.pool]
        difference = self._lane(job).counters.settle(held.charge, cost)
        pool.shares.add(held.charge, difference, self._second(), pool.waiting())

    # -- small things -----------------------------------------------------------------------------

    def _lane(self, job: Job) -> _LaneJobs:
        if job.pool not in self._pools:
            self._pools[job.pool] = _Pool(self._settings)
        return self._pools[job.pool].lanes[job.flow.lane]

    def _kv_need(self, job: Job, ask: Ask) -> int:
        """Q9: all the job may come to need, or for an engine that can evict what it should."""
        if not ask.evicts:
            return job.kv_tokens(ask.block_tokens)
        so_far = job.input_tokens + job.resume.output_tokens
        return so_far + self._lane(job).counters.estimate(job)

    def _remember(self, job: Job) -> None:
        self._gone[job.id] = job.attempt
        self._gone.move_to_end(job.id)
        if len(self._gone) > _GONE_JOBS:
            self._gone.popitem(last=False)

    def _arrivals(self, pool: str) -> int:
        return self._pools[pool].arrivals if pool in self._pools else 0

    def _second(self) -> int:
        return int(self._clock.monotonic())


def _depth(jobs: _FlowJobs, now: float) -> Depth:
    # Both returned jobs and others stand in the order in which they came, so the oldest is first
    # of either. Asked for with every call, hence no walk over all of them.
    fresh = bisect_left(jobs.waiting, (1, 0), key=lambda each: each.order)
    firsts = [*jobs.waiting[:1], *jobs.waiting[fresh : fresh + 1]]
    return Depth(
        waiting=len(jobs.waiting),
        leased=jobs.leased,
        waiting_cost=jobs.cost,
        oldest_wait_seconds=max((now - each.since for each in firsts), default=0.0),
        next_kv_tokens=jobs.waiting[0].job.kv_tokens(1) if jobs.waiting else 0,
        next_slots=jobs.waiting[0].job.choices if jobs.waiting else 1,
    )
