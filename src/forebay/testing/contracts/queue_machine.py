"""Random walks through a queue and the oracle side by side: the second layer of the contract.

`queue_machine(make)` gives a Hypothesis state machine for the backend that `make(settings, clock)`
makes. It plays random verbs on it and on `MemoryQueue` and compares every answer. Beside them it
keeps a model so naive that it is obviously right, and checks Q1 to Q6 and Q9 against that; so the
oracle itself is checked when it is the backend.

Not here: the examples that say what each rule means (`queue.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from forebay.core.clock import Clock
from forebay.core.errors import FlowFull, ForebayError, LaneFull, LeaseLost
from forebay.core.job import (
    Ask,
    Flow,
    Job,
    Lane,
    Lease,
    Progress,
    Removal,
    Sampling,
    Served,
)
from forebay.queue import JobQueue, QueueSettings
from forebay.queue.memory import MemoryQueue
from forebay.testing.clock import FakeClock

T = TypeVar("T")
SETTINGS = QueueSettings(flow_jobs=3, lane_jobs=7)
POOL = "pool"
SECONDS = 10.0
FLOWS = tuple(
    Flow(lane, f"org_{organisation}", f"proj_{organisation}{project}")
    for lane in Lane
    for organisation, project in ("aa", "ab", "ba")
)
JOB_IDS = tuple(f"job_{n}" for n in range(12))


@dataclass(slots=True)
class Known:
    """What the model knows of a job that is in the queue."""

    job: Job
    returned: bool
    arrival: int
    lease: Lease | None = None
    expires: float = 0.0


class Model:
    """Where every job must be (Q1), in the plainest way."""

    def __init__(self) -> None:
        self.here: dict[str, Known] = {}
        self.ended: dict[str, int] = {}
        self.arrivals = 0
        self.fence = 0

    def waiting(self, flow: Flow) -> list[Known]:
        """The flow's waiting jobs in the order in which they must leave (Q3)."""
        line = [k for k in self.here.values() if k.job.flow == flow and k.lease is None]
        return sorted(line, key=lambda k: (not k.returned, k.arrival))

    def lane_waiting(self, lane: Lane) -> int:
        return sum(k.lease is None and k.job.flow.lane is lane for k in self.here.values())

    def expected_enqueue(self, job: Job) -> bool | type[ForebayError]:
        """Q4, Q5."""
        known = self.here.get(job.id)
        newest = known.job.attempt if known else self.ended.get(job.id, 0)
        if newest >= job.attempt:
            return False
        if job.attempt > 1:
            return True
        if len(self.waiting(job.flow)) >= SETTINGS.flow_jobs:
            return FlowFull
        return LaneFull if self.lane_waiting(job.flow.lane) >= SETTINGS.lane_jobs else True

    def add(self, job: Job) -> None:
        self.arrivals += 1
        self.here[job.id] = Known(job, job.attempt > 1, self.arrivals)

    def end(self, job: Job) -> None:
        del self.here[job.id]
        self.ended[job.id] = job.attempt


class QueueMachine(RuleBasedStateMachine):
    """Subclasses say which backend (`make`)."""

    make: Callable[[QueueSettings, Clock], JobQueue]

    @initialize()
    def begin(self) -> None:
        self.clock = FakeClock()
        self.runner = asyncio.Runner()
        self.queue = type(self).make(SETTINGS, self.clock)
        self.oracle = MemoryQueue(SETTINGS, self.clock)
        self.model = Model()
        self.stale: list[Lease] = []

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.runner.close()

    def both(self, ask: Callable[[JobQueue], Coroutine[Any, Any, T]]) -> T | type[ForebayError]:
        """Ask the backend and the oracle; their answers, or errors, must be equal."""
        answer, expected = self._answer(ask, self.queue), self._answer(ask, self.oracle)
        assert answer == expected
        return answer

    def _answer(
        self, ask: Callable[[JobQueue], Coroutine[Any, Any, T]], queue: JobQueue
    ) -> T | type[ForebayError]:
        try:
            return self.runner.run(ask(queue))
        except ForebayError as error:
            return type(error)

    # -- what owners do ---------------------------------------------------------------------------

    @rule(
        job_id=st.sampled_from(JOB_IDS),
        flow=st.sampled_from(FLOWS),
        attempt=st.sampled_from((1, 1, 1, 2, 3)),
        shape=st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 3)),
    )
    def enqueue(self, job_id: str, flow: Flow, attempt: int, shape: tuple[int, int, int]) -> None:
        """Q4, Q5."""
        known = self.model.here.get(job_id)
        flow = known.job.flow if known else flow  # a job keeps its flow
        prompt, ceiling, weight = shape
        job = Job(
            job_id, attempt, "gateway", POOL, "m", flow, weight, tuple(range(prompt)), ceiling,
            Sampling(), streamed=True, resumable=True,
        )  # fmt: skip
        expected = self.model.expected_enqueue(job)
        assert self.both(lambda queue: queue.enqueue(job)) == expected
        if expected is True:
            if known and known.lease:
                self.stale.append(known.lease)
            self.model.add(job)

    @rule(job_id=st.sampled_from(JOB_IDS))
    def remove(self, job_id: str) -> None:
        """Q1."""
        known = self.model.here.get(job_id)
        expected = Removal.UNKNOWN
        if known:
            expected = Removal.WAS_LEASED if known.lease else Removal.WAS_WAITING
        assert self.both(lambda queue: queue.remove(job_id)) is expected
        if expected is Removal.WAS_WAITING:
            del self.model.here[job_id]

    # -- what workers do --------------------------------------------------------------------------

    @rule(
        slots=st.integers(0, 4),
        kv_tokens=st.integers(0, 250),
        lanes=st.frozensets(st.sampled_from(Lane), min_size=1),
        batch_slots=st.sampled_from((0, 1, 4)),
        block_tokens=st.sampled_from((1, 16)),
    )
    def lease(
        self,
        slots: int,
        kv_tokens: int,
        lanes: frozenset[Lane],
        batch_slots: int,
        block_tokens: int,
    ) -> None:
        """Q1, Q2, Q3, Q9."""
        ask = Ask(POOL, slots, kv_tokens, lanes, batch_slots, block_tokens)
        heads = [line[0] for flow in FLOWS if flow.lane in lanes and (line := self._line(flow))]
        if heads and not batch_slots and all(k.job.flow.lane is Lane.BATCH for k in heads):
            heads = []  # only what is owed is leased
        leases = self.both(lambda queue: queue.lease(ask, worker="w", seconds=SECONDS))
        assert isinstance(leases, list)
        assert len(leases) <= slots
        assert sum(lease.job.kv_tokens(block_tokens) for lease in leases) <= kv_tokens, "Q9"
        if slots and heads and all(k.job.kv_tokens(block_tokens) <= kv_tokens for k in heads):
            assert leases, "Q9: refused although every choice fits"
        batch = [lease for lease in leases if lease.job.flow.lane is Lane.BATCH]
        unprotected = sum(not lease.protected_seconds for lease in batch)
        assert unprotected <= batch_slots, "Q9: more of the batch lane, and not owed"
        for lease in leases:
            known = self.model.here[lease.job.id]
            assert known is self._line(lease.job.flow)[0], "Q1, Q3"
            assert lease.job == known.job
            assert lease.job.flow.lane in lanes
            assert lease.fence > self.model.fence, "Q2"
            self.model.fence = lease.fence
            known.lease, known.expires = lease, self.clock.monotonic() + SECONDS

    def _line(self, flow: Flow) -> list[Known]:
        return self.model.waiting(flow)

    @rule(data=st.data(), output_tokens=st.integers(0, 60))
    def extend(self, data: st.DataObject, output_tokens: int) -> None:
        """Q6."""
        leases = self._leases()
        if leases:
            chosen = data.draw(st.lists(st.sampled_from(leases), unique_by=id, max_size=3))
            progress = [Progress(lease, output_tokens) for lease in chosen]
            lost = [lease.job.id for lease in chosen if not self._is_live(lease)]
            assert self.both(lambda q: q.extend("w", progress, seconds=SECONDS)) == lost
            for lease in filter(self._is_live, chosen):
                self.model.here[lease.job.id].expires = self.clock.monotonic() + SECONDS

    @rule(data=st.data(), output_tokens=st.integers(0, 60), back=st.booleans())
    def end_lease(self, data: st.DataObject, output_tokens: int, back: bool) -> None:
        """Acknowledge or return, with a live lease or a stale one (Q6)."""
        leases = self._leases()
        if not leases:
            return
        lease = data.draw(st.sampled_from(leases))
        served = Served(output_tokens, cached_input_tokens=output_tokens // 2)
        before = lease.job.resume
        resume = replace(before, preemptions=before.preemptions + 1)
        if back:
            answer = self.both(lambda queue: queue.nack(lease, served=served, resume=resume))
        else:
            answer = self.both(lambda queue: queue.ack(lease, served=served))
        if not self._is_live(lease):
            assert answer is LeaseLost
            return
        assert answer is None
        self.stale.append(lease)
        known = self.model.here[lease.job.id]
        if back:
            known.job = replace(known.job, resume=resume)
            known.returned, known.lease = True, None
        else:
            self.model.end(known.job)

    def _leases(self) -> list[Lease]:
        live = [known.lease for known in self.model.here.values() if known.lease]
        return live + self.stale[-5:]

    def _is_live(self, lease: Lease) -> bool:
        known = self.model.here.get(lease.job.id)
        return known is not None and known.lease is not None and known.lease.fence == lease.fence

    # -- time, and the keeper ---------------------------------------------------------------------

    @rule(seconds=st.sampled_from((0.0, 0.4, 1.0, 5.0, 9.0, 61.0)))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def wall_clock_is_set_back(self) -> None:
        """Q2: fences grow all the same."""
        self.clock.jump_wall(-100.0)

    @rule()
    def reap(self) -> None:
        """Q1: exactly the expired ones, out of the queue."""
        now = self.clock.monotonic()
        expired = [k for k in self.model.here.values() if k.lease and k.expires <= now]
        answer = self.both(lambda queue: queue.reap())
        assert isinstance(answer, list)
        by_id = {job.id: job for job in answer}
        assert by_id == {known.job.id: known.job for known in expired}
        for known in expired:
            assert known.lease is not None
            self.stale.append(known.lease)
            self.model.end(known.job)

    @invariant()
    def depths_are_what_the_model_says(self) -> None:
        """Q1, Q5."""
        if not hasattr(self, "model"):
            return
        depths = self.both(lambda queue: queue.depths(POOL))
        assert isinstance(depths, dict)
        counted = {flow: (depth.waiting, depth.leased) for flow, depth in depths.items()}
        expected: dict[Flow, tuple[int, int]] = {}
        for known in self.model.here.values():
            waiting, leased = expected.get(known.job.flow, (0, 0))
            is_leased = known.lease is not None
            expected[known.job.flow] = (waiting + (not is_leased), leased + is_leased)
        assert counted == expected
        assert all(depth.waiting_cost >= 0 for depth in depths.values())


def queue_machine(
    make: Callable[[QueueSettings, Clock], JobQueue], *, walks: int = 40, steps: int = 40
) -> type[QueueMachine]:
    """The machine for one backend; pytest runs its `TestCase`."""
    machine: Any = type("QueueWalk", (QueueMachine,), {"make": staticmethod(make)})
    machine.TestCase.settings = hypothesis_settings(
        max_examples=walks, stateful_step_count=steps, deadline=None
    )
    walk: type[QueueMachine] = machine
    return walk
