"""When a job is given up: it came too late, or too many engines died over it. Pure.

Not here: what becomes of it then (`worker.py`).
"""

from __future__ import annotations

from forebay.core.job import Job
from forebay.pipeline.run import Run

# A job of which two engines died before it had a token gets no third one: it may be what kills them.
# One that had tokens each time is most likely a bystander; but engines do not die that often.
MOST_BARREN_FAULTS, MOST_FAULTS = 2, 5
# A line of a batch runs beside very many others, one of which may be what kills them, and has time.
MOST_BARREN_FAULTS_OF_LINES, MOST_FAULTS_OF_LINES = 4, 10


def too_often(job: Job, barren: int, faults: int) -> bool:
    """Whether so many faults, of which so many before any token, are enough."""
    if job.batch_id:
        return barren >= MOST_BARREN_FAULTS_OF_LINES or faults >= MOST_FAULTS_OF_LINES
    return barren >= MOST_BARREN_FAULTS or faults >= MOST_FAULTS


def too_late(run: Run) -> bool:
    """Checked again at the first lease: the owner's timer may not have fired yet."""
    deadline = run.job.deadline_seconds
    first = run.job.resume.sequence == 0
    return first and deadline is not None and run.lease.waited_seconds > deadline
