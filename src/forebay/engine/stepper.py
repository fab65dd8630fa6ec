"""The small interface between an engine's work and what drives it, step by step.

A stepper is synchronous and is driven by one loop (the child's, or timers in process): apply
submits and cancels, call `step` when it is due, pass on what it returns.

Invariants
- E1 `cancel` takes a sequence out before the next step begins.
- E9 A sequence that cannot go on for lack of memory ends with `Output.fault`, never with a finish.

Positions count the output tokens of one submission from 0; an output begins where the last ended.
The end-of-sequence token is neither emitted nor counted, so a sequence may end with an output that
has no tokens. With `ignore_eos` it is an ordinary token.

Not here: frames (`frames.py`), iterators and the checks of what an engine says (`mailbox.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from forebay.core.delta import EngineLimits
from forebay.engine.frames import Output, Submit


class EngineCrash(Exception):
    """The engine as a whole is lost; whatever ran on it is gone."""


class Stepper(ABC):
    """One engine's state; used by one thread."""

    @abstractmethod
    def submit(self, work: Submit) -> None:
        """Take on a sequence; it waits while `max_sequences` run. Never raises for bad work: that
        sequence's next output is a fault."""

    @abstractmethod
    def cancel(self, sequence: int) -> None:
        """Stop and forget a sequence; unknown ones are ignored."""

    @abstractmethod
    def next_due(self) -> float | None:
        """Seconds until the next step is due; None while there is nothing to do."""

    @abstractmethod
    def step(self) -> list[Output]:
        """Do one step and return what it added. Raises EngineCrash, or anything if it is broken."""

    @property
    @abstractmethod
    def made(self) -> int:
        """Output tokens since it was started, counted where they are made, not where they are sent."""

    @abstractmethod
    def limits(self) -> EngineLimits:
        """What the engine can hold; constant."""

    @abstractmethod
    def kv_use(self) -> float:
        """Share of the KV memory in use, 0..1."""

    @abstractmethod
    def close(self) -> None:
        """Free everything."""
