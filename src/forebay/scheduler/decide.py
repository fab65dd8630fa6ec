"""What a worker does now with its engine: take jobs, send some back, or wait. Pure.

`decide` looks at plain data and answers plain data; `pipeline/worker.py` acts on it. Rules:
- Free slots are offered to all lanes at once: which job is next is the queue's choice (Q7-Q9), and
  the snapshot may be older than the queue.
- Batch jobs use free slots, but leave a reserve of them to what may arrive, and are started a few at
  a time: an arrival waits for the engine's step, and the more sequences and prompts it has to
  process, the longer it takes; one that finds no free slot costs a batch job its place. At least one
  slot of an engine is never reserved, and none while no other lane has had a job for a while.
- A waiting job that does not fit what is free may have one running job of a lower lane sent back,
  if the policy lets that lane be preempted. So there are never more victims than waiting jobs of
  higher lanes that do not fit; one that needs more room asks again when the first has left.
- Victims are resumable ones first, then the newest. Never one that is protected (Q7), and never one
  that has published output and cannot be resumed (E8).
- A run that is on its way out already counts as room for the waiting, and is no victim again.
  Nobody is sent back for the reserve's sake.

Not here: who is protected (the queue says so with the lease), how a job is sent back, that the
reserve does not keep the batch lane from its share (Q7, Q9).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from forebay.core.job import Lane


@dataclass(frozen=True, slots=True)
class Waiting:
    """A lane's waiting jobs, and the KV memory (E9) and sequences that its next one needs."""

    jobs: int
    next_kv_tokens: int
    next_slots: int = 1


@dataclass(frozen=True, slots=True)
class Running:
    """A job that the engine runs. The larger its `order`, the later it was started.

    `begun`: this lease has had a token, so its prompt has been processed.
    """

    job_id: str
    lane: Lane
    order: int
    output_tokens: int
    resumable: bool
    published: bool
    protected: bool
    kv_tokens: int
    leaving: bool = False
    slots: int = 1
    begun: bool = True


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One pool as one worker sees it. Lanes without waiting jobs may be absent.

    `quiet_seconds`: since it last began a job of another lane than batch.
    """

    waiting: Mapping[Lane, Waiting]
    running: tuple[Running, ...]
    free_slots: int
    free_kv_tokens: int
    quiet_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator allows.

    `victims` are the lanes whose running jobs may be sent back for a higher one. Batch jobs leave
    `batch_reserve_percent` of the engine's sequences free, until it has been quiet for
    `batch_reserve_seconds`. Of their sequences `batch_starts` may be without a token at once; None:
    any number.
    """

    victims: frozenset[Lane] = frozenset({Lane.BATCH})
    batch_reserve_percent: int = 0
    batch_reserve_seconds: float = math.inf
    batch_starts: int | None = None


@dataclass(frozen=True, slots=True)
class Take:
    """Lease jobs of up to so many sequences, with so much KV memory, of these lanes; of the batch
    lane not more than `batch_slots`, unless it is owed."""

    slots: int
    kv_tokens: int
    lanes: frozenset[Lane]
    batch_slots: int


@dataclass(frozen=True, slots=True)
class Preempt:
    """Stop this job and return it to the front of its flow."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until a job arrives, ends or leaves."""


Decision = Take | Preempt | Wait


def decide(snapshot: Snapshot, policy: Policy) -> list[Decision]:
    """What to do now, in order: first take, then preempt; `[Wait()]` if there is neither."""
    decisions: list[Decision] = []
    slots, kv_tokens = snapshot.free_slots, snapshot.free_kv_tokens
    if slots > 0 and kv_tokens > 0:
        batch_slots = _batch_slots(snapshot, policy)
        decisions.append(Take(slots, kv_tokens, frozenset(Lane), batch_slots))
    decisions.extend(map(Preempt, _victims(snapshot, policy)))
    return decisions or [Wait()]


def _batch_slots(snapshot: Snapshot, policy: Policy) -> int:
    """What the reserve, and the batch jobs whose prompts are being processed, leave to the lane."""
    all_slots = snapshot.free_slots + sum(run.slots for run in snapshot.running)
    percent = policy.batch_reserve_percent
    if snapshot.quiet_seconds > policy.batch_reserve_seconds:
        percent = 0
    left = snapshot.free_slots - min(all_slots * percent // 100, all_slots - 1)
    if policy.batch_starts is not None:
        beginning = (run.slots for run in snapshot.running if _begins_batch(run))
        left = min(left, policy.batch_starts - sum(beginning))
    return max(0, left)


def _begins_batch(run: Running) -> bool:
    return run.lane is Lane.BATCH and not (run.begun or run.leaving)


def _victims(snapshot: Snapshot, policy: Policy) -> list[str]:
    """One for each waiting job that does not fit, highest lane first, while there are any."""
    leaving = [run for run in snapshot.running if run.leaving]
    slots = snapshot.free_slots + sum(run.slots for run in leaving)
    kv_tokens = snapshot.free_kv_tokens + sum(run.kv_tokens for run in leaving)
    candidates = [run for run in snapshot.running if _may_go(run, policy)]
    candidates.sort(key=lambda run: (run.resumable, run.order))  # the best victim is last
    chosen: list[str] = []
    for lane in sorted(snapshot.waiting, key=lambda lane: lane.rank):
        waiting = snapshot.waiting[lane]
        for _ in range(waiting.jobs):
            if slots < waiting.next_slots or kv_tokens < waiting.next_kv_tokens:
                victim = _pop_below(lane, candidates)
                if victim is None:
                    break  # the jobs behind this one are no easier to place
                chosen.append(victim.job_id)
                slots, kv_tokens = slots + victim.slots, kv_tokens + victim.kv_tokens
            slots, kv_tokens = slots - waiting.next_slots, kv_tokens - waiting.next_kv_tokens
    return chosen


def _may_go(run: Running, policy: Policy) -> bool:
    lost = run.published and not run.resumable
    return run.lane in policy.victims and not (run.protected or run.leaving or lost)


def _pop_below(lane: Lane, candidates: list[Running]) -> Running | None:
    """Take the best victim whose lane is lower than this one."""
    for index in range(len(candidates) - 1, -1, -1):
        if candidates[index].lane.rank > lane.rank:
            return candidates.pop(index)
    return None
