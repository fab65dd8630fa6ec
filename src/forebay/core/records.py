"""What is kept and found by those who look after the books: windows of engines, answers of audits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineWindow:
    """One minute of one engine: what it says it made, and what its worker received or discarded.

    `boot` names one run of the engine's process. An engine that was started or killed within the
    minute could not be asked for all of it: its window is not `complete`.
    """

    engine: str
    boot: str
    minute_at: float
    engine_tokens: int
    received_tokens: int
    discarded_tokens: int
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Break:
    """Where the audit chain breaks first, and what is wrong there."""

    sequence: int
    problem: str


@dataclass(frozen=True, slots=True)
class Verified:
    """A walk along the audit chain: rows that were read, the newest one's place, the first break."""

    rows: int
    head_sequence: int
    head_hash: str
    first_break: Break | None


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What was compared, and every difference as a sentence; none: the books are right.

    `flagged_windows` are those that are not complete and so prove nothing.
    """

    differences: tuple[str, ...]
    rows: int
    holds: int
    balances: int
    windows: int
    flagged_windows: int
