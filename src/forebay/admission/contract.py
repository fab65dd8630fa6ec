"""The cheap refusals: calls per minute, and calls that would wait longer than their lane allows.

Invariants
- A1 One check takes all its dimensions or none; a refusal further on does not give the knock's
  permit back (the attempt was made).
- A3 The observed concurrency at the engine never exceeds a scope's limit: concurrency is the
  ledger's open holds (L15); nothing is counted twice here.

`limits.py` is GCRA (the generic cell rate algorithm, ITU-T I.371) in integers; `wait.py` predicts
the wait of a job from what is queued before it. Both are pure.

Not here: tokens per minute and the other limits of keys, projects and models (later); concurrency
and budgets (`forebay.ledger`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from forebay.core.job import Depth, Flow
from forebay.core.principal import Principal


class Admission(ABC):
    """Shared by the gateways of one process."""

    @abstractmethod
    async def knock(self, principal: Principal) -> None:
        """Take one call's permit. Raises RateLimited with the seconds until the next one."""

    @abstractmethod
    async def admit(self, pool: str, flow: Flow, cost: int, depths: Mapping[Flow, Depth]) -> None:
        """Refuse a job that would wait past its lane's deadline behind `depths`.

        Raises Overloaded with the predicted drain as `retry_after_seconds` (jittered).
        """

    @abstractmethod
    def served(self, pool: str, cost: int, *, busy: bool) -> None:
        """A worker served this much cost; `busy`: jobs were waiting. Feeds the service rate."""

    @abstractmethod
    def deadline_seconds(self, flow: Flow) -> float | None:
        """The longest a job of this flow's lane may wait before its first lease."""
