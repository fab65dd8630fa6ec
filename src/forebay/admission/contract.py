"""The cheap refusals: what a scope may use a minute, and calls that would wait too long.

    knock ──▶ weigh ──▶ foresee ──▶ admit ──▶ Permit ──▶ settle
    a call    bytes     the wait    tokens               what was not used comes back

Invariants
- A1 One check takes all its dimensions or none; a refusal further on does not give the knock's
  permit back (the attempt was made).
- A2 In any t seconds at most limit·(1 + t/60) of a scope's permits are taken and not returned; a
  call dearer than the limit is refused for good.
- A3 The observed concurrency at the engine never exceeds a scope's limit: concurrency is the
  ledger's open holds (L15); nothing is counted twice here.
- A4 Token permits that a call did not use come back when it is settled, all of them if it never
  ran; what time has given back is not given twice. Of a process that dies they return with time.

`limits.py` is GCRA (the generic cell rate algorithm, ITU-T I.371) in integers; `scopes.py` says
which limits a call has; `wait.py` predicts the wait of a job from what is queued before it. All
three are pure.

Not here: concurrency and budgets (`forebay.ledger`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from forebay.core.job import Ahead, Flow
from forebay.core.principal import Principal


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job would wait, and behind what.

    `deadline_seconds` is the client's own, which counts if it is earlier than the lane's.
    """

    pool: str
    flow: Flow
    ahead: Ahead
    deadline_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Need:
    """The most tokens that a call can use: P, and n·M. `of_batch`: it is a line of a batch, which has
    limits of its own, those of a day."""

    model: str
    input_tokens: int
    most_output_tokens: int
    of_batch: bool = False


@dataclass(frozen=True, slots=True)
class Permit:
    """Token permits of one call: from which buckets, and how many of each. For `settle` alone."""

    serial: int
    taken: tuple[tuple[tuple[str, str, str], int], ...]


@dataclass(frozen=True, slots=True)
class Allowance:
    """How a scope stands in one dimension. `reset_seconds`: until all of `limit` is there again."""

    limit: int
    remaining: int
    reset_seconds: float


@dataclass(frozen=True, slots=True)
class Standing:
    """Requests and tokens a minute, each of the scope with the least left; None: no limit."""

    requests: Allowance | None = None
    tokens: Allowance | None = None


class Admission(ABC):
    """Shared by the gateways of one process."""

    @abstractmethod
    async def knock(self, principal: Principal) -> None:
        """Take one call's permit of key, project and organisation.

        Raises RateLimited with the seconds until all have one; None if they never will.
        """

    @abstractmethod
    async def weigh(self, principal: Principal, body_bytes: int) -> None:
        """Refuse a body of more than 16 bytes for each token that is left; takes nothing.

        Raises RateLimited as `knock` does.
        """

    @abstractmethod
    async def foresee(self, place: Place) -> None:
        """Refuse a job that is likely to wait past its deadline: the predicted wait is more than three
        quarters of it. Takes nothing.

        Raises Overloaded; `retry_after_seconds` is a quarter of the predicted drain, jittered: SDKs try
        twice again, and all of a call's tries lie within it.
        """

    @abstractmethod
    async def admit(self, principal: Principal, need: Need, place: Place) -> Permit:
        """`foresee`, then take what the call needs of every limit: the model's call, tokens of key,
        project, organisation and model, and in the batch lane the day's input tokens. A line of a
        batch takes nothing else.

        Raises Overloaded, or RateLimited as `knock` does; then nothing was taken.
        """

    @abstractmethod
    def settle(self, permit: Permit, used_tokens: int) -> None:
        """Return what was not used of a permit; again, it does nothing. Never waits, never fails."""

    @abstractmethod
    def standing(self, principal: Principal, model: str | None = None) -> Standing:
        """What is left now; with a model's id, of that model's limits too. Never waits."""

    @abstractmethod
    def served(self, pool: str, cost: int, *, busy: bool) -> None:
        """A worker served this much cost; `busy`: jobs were waiting. Feeds the service rate."""

    @abstractmethod
    def deadline_seconds(self, flow: Flow, asked: float | None = None) -> float | None:
        """The longest a job of this flow may wait before its first lease: the lane's deadline, or
        what its client asked for if that is less."""
