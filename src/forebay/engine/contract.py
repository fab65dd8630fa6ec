"""An engine turns token ids into token ids. Cancelling is stopping or closing the iterator.

Invariants
- E1 Stopping or closing the iterator stops the engine's work for it (embedded: before its next step).
- E2 The tokens of the deltas sum to the usage the engine reports, where it reports any.
- E3 No more than `max_tokens` per choice, whatever the engine does.
- E4 Stop strings never leak into the text. (Engines that get ids are not told the stop strings:
  `forebay.tokens` matches them over the joined text.)
- E5 A token that is half a character is held back (`forebay.tokens` decodes).
- E6 Two organisations never share a cached prefix: `cache_salt` where the engine has one; where it has
  none, the prefix cache is on only while one organisation exists, or if the operator declared it shared.
- E7 The engine's request is rebuilt from an allow-list: `EngineRequest` is all that ever reaches it.
- E8 A prefix that carries all decoding state can be continued on any engine (`Job.resumable`).
- E9 An engine that runs out of KV memory never looks like an end: that is an EngineFault.

Not here: which job runs (`forebay.scheduler`), decoding and stop strings (`forebay.tokens`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from forebay.core.delta import (
    EngineDelta,
    EngineLimits,
    EngineRequest,
    EngineSignals,
    EngineTally,
)


class Generation(ABC):
    """One running generation, iterated by one task."""

    def __aiter__(self) -> Generation:
        return self

    @abstractmethod
    async def __anext__(self) -> EngineDelta:
        """What the next engine step adds. Submits at the first call. Raises EngineFault."""

    @property
    @abstractmethod
    def submitted(self) -> bool:
        """Whether the engine was given it: if not, it has cost nothing."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the engine's work now (E1). Deltas that were received before are still yielded, so
        that they can be charged; then iteration ends. Wakes a waiting `__anext__`. Idempotent."""

    @abstractmethod
    async def aclose(self) -> None:
        """Stop and forget; must be called in any case. Idempotent."""


class Engine(ABC):
    """Driven by one worker; many generations at once, each iterated by one task."""

    @abstractmethod
    async def start(self) -> None:
        """Load, warm up and return when the engine can serve. Raises EngineFault."""

    @abstractmethod
    def generate(self, request: EngineRequest) -> Generation:
        """A generation of this request; nothing is submitted before it is iterated."""

    @abstractmethod
    def signals(self) -> EngineSignals:
        """The newest load report; never waits."""

    @abstractmethod
    def tally(self) -> EngineTally:
        """What became of every output token so far, by the engine's own count and by ours."""

    @abstractmethod
    def limits(self) -> EngineLimits:
        """What this engine can hold; constant once started."""

    @abstractmethod
    def state(self) -> str:
        """ "starting", "ready", "renewing" (what runs goes on, what comes waits), "restarting" or
        "stopped", for health checks and doctor."""

    @abstractmethod
    async def isolate(self) -> None:
        """More than one organisation exists from now on: stop sharing prefixes before returning (E6)."""

    @abstractmethod
    async def close(self) -> None:
        """Stop all work and free everything, including a child process. Idempotent."""
