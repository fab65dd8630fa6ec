"""Holds and accounts: what is asked of the ledger and what it answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from forebay.core.job import Lane
from forebay.core.money import Price
from forebay.core.principal import Scopes
from forebay.core.usage import Kind, Outcome, Timings, Usage


class Period(StrEnum):
    """How often a cap starts afresh (UTC). The period is part of a balance's identity, so a new
    month is a new balance: there is no reset to race with."""

    TOTAL = "total"
    MONTH = "month"
    DAY = "day"


@dataclass(frozen=True, slots=True)
class Account:
    """A scope's limits. None means no limit, and says so: a scope without an account has cap 0."""

    scope: str
    cap_nanos: int | None = None
    period: Period = Period.TOTAL
    max_open_holds: int | None = None


@dataclass(frozen=True, slots=True)
class Balance:
    """One scope in its current period. `posted + pending <= high_water` always (L2)."""

    account: Account
    period_id: str
    posted_nanos: int
    pending_nanos: int
    high_water_nanos: int | None
    open_holds: int


@dataclass(frozen=True, slots=True)
class Claim:
    """An idempotency key, claimed by a hold for its organisation (L9).

    `fingerprint` is the SHA-256 of what was asked; `head` is what a replay of the answer needs
    besides the answer itself. The ledger looks into neither.
    """

    key: str
    fingerprint: bytes
    head: bytes = b""


@dataclass(frozen=True, slots=True)
class Remembered:
    """A claimed key: whose it is and what was asked. `answer` is None until its call was settled as
    completed, and then what was kept with that settlement."""

    call_id: str
    claim: Claim
    claimed_at: float
    answer: bytes | None


@dataclass(frozen=True, slots=True)
class HoldRequest:
    """The most a call can cost: H = in·P + out·n·M at the pinned price.

    `floor_tokens` is the smallest M that still makes sense: equal to `ceiling_tokens` when the
    client asked for a maximum, lower when a default may shrink to what the balances afford.
    `owner` is the process whose death the keeper watches for.
    """

    id: str
    scopes: Scopes
    model: str
    lane: Lane
    price_version: int
    input_tokens: int
    ceiling_tokens: int
    floor_tokens: int
    choices: int
    streamed: bool
    owner: str
    created_at: float
    claim: Claim | None = None
    kind: Kind = Kind.CALL


@dataclass(frozen=True, slots=True)
class Hold:
    """A committed reservation. `ceiling_tokens` is M, final: the engine gets exactly this."""

    id: str
    attempt: int
    amount_nanos: int
    ceiling_tokens: int
    price: Price


@dataclass(frozen=True, slots=True)
class Bill:
    """What a worker asks to have settled for an attempt. `answer` is kept with the settlement of a
    call that claimed an idempotency key."""

    usage: Usage
    outcome: Outcome = Outcome.COMPLETED
    reason: str = ""
    timings: Timings = field(default_factory=Timings)
    answer: bytes = b""


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """Which usage rows; None means all. Times are Unix seconds, half-open [since, until)."""

    organisation_id: str | None = None
    project_id: str | None = None
    key_id: str | None = None
    call_id: str | None = None
    since: float | None = None
    until: float | None = None
    limit: int = 1000
