"""Time, identifiers and task creation as arguments, so that simulation can own all three.

Not here: the real ones (`forebay.system`) and the virtual ones (`forebay.testing`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol


class Clock(Protocol):
    """Two clocks that must never be mixed up."""

    def monotonic(self) -> float:
        """Seconds since some start; for durations, deadlines and liveness. Never jumps."""

    def now(self) -> float:
        """Wall time in Unix seconds; for what people read. May jump (L10)."""


class IdSource(Protocol):
    """Makes identifiers; random in production, counted in simulation."""

    def new(self, prefix: str) -> str:
        """A fresh `prefix_…` identifier of fixed length, sortable by creation, unguessable."""

    def random_bytes(self, count: int) -> bytes:
        """Bytes fit for secrets (production) or reproducible ones (simulation)."""


class Spawn(Protocol):
    """Starts a supervised task: one that fails is reported, never lost."""

    def __call__(self, coroutine: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]: ...
