"""What one worker does next: a pure function from a snapshot to decisions, see `decide.py`."""

from forebay.scheduler.decide import (
    Decision,
    Policy,
    Preempt,
    Running,
    Snapshot,
    Take,
    Wait,
    Waiting,
    decide,
)

__all__ = [
    "Decision",
    "Policy",
    "Preempt",
    "Running",
    "Snapshot",
    "Take",
    "Wait",
    "Waiting",
    "decide",
]
