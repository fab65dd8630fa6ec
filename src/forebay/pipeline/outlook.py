"""A worker's runs and its pool's queue, as `decide` looks at them. Pure.

Not here: the decision (`forebay.scheduler`), what is done about it (`worker.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from forebay.core.job import Depth, Flow, Lane
from forebay.pipeline.run import Run
from forebay.scheduler import Running, Waiting

# A prompt that takes longer, or an engine that says nothing to it, keeps no others from beginning.
BEGINNING_SECONDS = 5.0


def running(run: Run, now: float) -> Running:
    """What is being generated; `now` is monotonic."""
    job = run.job
    return Running(
        job_id=job.id,
        lane=job.flow.lane,
        order=run.order,
        output_tokens=run.output_tokens,
        resumable=job.resumable,
        published=run.published,
        protected=run.protected(now),
        kv_tokens=run.kv_tokens,
        leaving=run.interruption is not None,
        slots=job.choices,
        begun=run.generated > 0 or now - run.last_delta_at > BEGINNING_SECONDS,
    )


def waiting(depths: Mapping[Flow, Depth], block_tokens: int) -> dict[Lane, Waiting]:
    """Per lane: how many wait, and the most that a next one of a flow needs."""
    lanes: dict[Lane, Waiting] = {}
    for flow, depth in depths.items():
        if depth.waiting:
            before = lanes.get(flow.lane, Waiting(0, 0))
            rounding = depth.next_slots * (block_tokens - 1)
            lanes[flow.lane] = Waiting(
                jobs=before.jobs + depth.waiting,
                next_kv_tokens=max(before.next_kv_tokens, depth.next_kv_tokens + rounding),
                next_slots=max(before.next_slots, depth.next_slots),
            )
    return lanes
