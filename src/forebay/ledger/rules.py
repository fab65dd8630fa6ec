"""The ledger's decisions, pure: what a hold may take, what a settlement charges, who is dead.

Both backends ask these functions and only differ in where they keep the numbers. A *standing* is
one scope as a hold finds it; *held* is a committed hold as a settlement finds it.

- A hold is granted if posted + pending + H <= cap on every scope (L2); a scope without an account
  refuses everything; no cap still ends where 64-bit integers do.
- Money is looked at before concurrency: "your budget is spent" is final, "too many at once" is not.
- A settlement's input is the hold's own P and its output is clamped to n·M (L3, L8).
- A claimed idempotency key is remembered while its hold is open, and for a day if that was settled
  as completed (L9); a day is wall time, so a clock that jumps forgets early or late.
- A process is dead when its counter stood still for 10 s of the caller's monotonic clock (L10).

Not here: the arithmetic of prices (`pricing`), the hash chain (`audit`), any storage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NamedTuple

from forebay.core.errors import InsufficientQuota, StaleAttempt, TooManyOpenCalls
from forebay.core.hold import Account, Bill, Claim, Hold, HoldRequest, Period, Remembered
from forebay.core.job import Lane
from forebay.core.money import MAX_NANOS, Price, format_usd
from forebay.core.principal import Scopes
from forebay.core.usage import Kind, Outcome, Usage, UsageRow
from forebay.ledger.audit import seal
from forebay.ledger.contract import StartsAfresh
from forebay.ledger.pricing import affordable_ceiling, amount_nanos, hold_nanos

DEAD_AFTER_SECONDS = 10.0  # ten beats of one second each
OPEN_RETRY_SECONDS = 1.0  # calls end all the time; a better prediction is not the ledger's
REMEMBERED_SECONDS = 86_400.0  # a claimed key and its answer, from the claim on
KEPT_ANSWER_BYTES = 256 << 20  # of all answers together; the oldest go first
FORGOTTEN_PER_SWEEP = 1_000  # expired claims; more wait for the next sweep, invisible
KEPT_DAYS = 2  # rows of younger calls are never dropped
SECONDS_PER_DAY = 86_400
FINGERPRINT_BYTES = 32
KINDS = ("organisation", "project", "key")  # the order of Scopes

_ADJECTIVES = {Period.TOTAL: "", Period.MONTH: "monthly ", Period.DAY: "daily "}
_WAITS = {
    Period.TOTAL: "",
    Period.MONTH: ", wait for the next month (UTC)",
    Period.DAY: ", wait for the next day (UTC)",
}

View = dict[str, tuple[int | None, float]]
"""Per process: the counter last seen, and when (monotonic) it was first seen."""


class Standing(NamedTuple):
    """One scope as a hold finds it. `account` None: there is none."""

    account: Account | None
    posted_nanos: int = 0
    pending_nanos: int = 0
    open_holds: int = 0

    @property
    def headroom_nanos(self) -> int:
        """What a hold may take; negative after a cap was lowered below what is spoken for."""
        cap = 0
        if self.account is not None:
            cap = MAX_NANOS if self.account.cap_nanos is None else self.account.cap_nanos
        return cap - self.posted_nanos - self.pending_nanos


@dataclass(frozen=True, slots=True)
class Held:
    """A committed, unresolved hold. `periods` are the ids of its balances, one per scope."""

    id: str
    scopes: Scopes
    periods: tuple[str, str, str]
    model: str
    lane: Lane
    price: Price
    input_tokens: int
    ceiling_tokens: int
    choices: int
    streamed: bool
    owner: str
    attempt: int
    amount_nanos: int
    created_at: float
    claim_key: str | None = None
    kind: Kind = Kind.CALL

    def answer(self) -> Hold:
        """What the caller of `hold` gets, the first time and every time."""
        return Hold(self.id, self.attempt, self.amount_nanos, self.ceiling_tokens, self.price)


class Charge(NamedTuple):
    """What a resolution writes down and what it costs; `settled` tells a settlement from a release."""

    usage: Usage
    amount_nanos: int
    settled: bool


def day_id(at: float) -> str:
    """The UTC day, such as 2026-11-30; its first seven characters are the month."""
    try:
        return datetime.fromtimestamp(at, UTC).date().isoformat()
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"{at!r} is not a time in Unix seconds") from None


def period_id(period: Period, day: str) -> str:
    """The identity of a period's balance: '' for total, '2026-11', '2026-11-30'."""
    if period is Period.TOTAL:
        return ""
    return day[:7] if period is Period.MONTH else day


def check_account(account: Account) -> None:
    """Raise ValueError for limits that mean nothing."""
    if not account.scope:
        raise ValueError("an account needs a scope")
    check_cap(account.cap_nanos)
    check_max_open(account.max_open_holds)


def check_cap(cap_nanos: int | None) -> None:
    """Raise ValueError for a cap that cannot be stored."""
    if cap_nanos is not None and not 0 <= cap_nanos <= MAX_NANOS:
        raise ValueError(
            f"a cap of {format_usd(cap_nanos)} USD is not between 0.00 and {format_usd(MAX_NANOS)} USD"
        )


def check_max_open(max_open_holds: int | None) -> None:
    """Raise ValueError for a limit of open calls that is none."""
    if max_open_holds is not None and not 0 <= max_open_holds <= MAX_NANOS:
        raise ValueError(f"{max_open_holds} is not a number of calls (None: no limit)")


def check_top_up(amount_nanos: int, id: str) -> None:
    """Raise ValueError for credit that cannot be booked."""
    if not id:
        raise ValueError("a top-up needs an id, so that booking it twice adds it once")
    if not 1 <= amount_nanos <= MAX_NANOS:
        raise ValueError(
            f"a top-up of {format_usd(amount_nanos)} USD is not above 0 and at most "
            f"{format_usd(MAX_NANOS)} USD"
        )


def check_same_top_up(id: str, known: tuple[str, int], asked: tuple[str, int]) -> None:
    """Raise ValueError if the id was used for another scope or amount."""
    if tuple(known) != asked:
        scope, amount_nanos = known
        raise ValueError(
            f"top-up {id} was booked before, as {format_usd(amount_nanos)} USD for {scope}; "
            "use another id"
        )


def topped_up(account: Account, amount_nanos: int, *, spoken_for: int) -> Account:
    """Prepaid credit: the cap of the period total is raised.

    A scope without a cap starts from what is posted and pending, so that exactly the amount can
    be spent from now on; for a new scope that is 0.
    """
    if account.period is not Period.TOTAL:
        raise StartsAfresh(
            f"{account.scope} has a cap per {account.period}, and credit does not start afresh; "
            "give it a cap of period total first"
        )
    cap = (spoken_for if account.cap_nanos is None else account.cap_nanos) + amount_nanos
    check_cap(cap)
    return replace(account, cap_nanos=cap)


def check_request(request: HoldRequest) -> None:
    """Raise ValueError for a request that no caller should ever make."""
    if not request.id or not request.owner:
        raise ValueError("a hold needs an id and an owner")
    if len(set(request.scopes)) != len(request.scopes):
        raise ValueError(f"{request.scopes} names one scope twice")
    if request.input_tokens < 0 or request.choices < 1:
        raise ValueError(f"hold {request.id}: input_tokens >= 0 and choices >= 1 are needed")
    if not 1 <= request.floor_tokens <= request.ceiling_tokens:
        raise ValueError(f"hold {request.id}: 1 <= floor_tokens <= ceiling_tokens is needed")
    claim = request.claim
    if claim and (not claim.key or len(claim.fingerprint) != FINGERPRINT_BYTES):
        raise ValueError(f"hold {request.id}: a claim needs a key and a fingerprint of 32 bytes")


def check_progress(progress: Mapping[str, int]) -> None:
    """Raise ValueError for a watermark that is no count of tokens."""
    if any(tokens < 0 for tokens in progress.values()):
        raise ValueError("a watermark cannot be negative")


def grant(request: HoldRequest, price: Price, standings: Sequence[Standing]) -> Held:
    """The hold that all scopes allow, with the largest ceiling they afford; or raise why not."""
    for kind, standing in zip(KINDS, standings, strict=True):
        if standing.account is None:
            raise InsufficientQuota(
                f"This call's {kind} has no account, so its budget is 0.00 USD. "
                "Ask the operator to open one."
            )
    headroom = min(standing.headroom_nanos for standing in standings)
    ceiling = request.ceiling_tokens
    amount = hold_nanos(price, request.input_tokens, ceiling, request.choices)
    if amount > headroom:
        ceiling = affordable_ceiling(price, request.input_tokens, request.choices, headroom)
        if ceiling < request.floor_tokens:
            raise _too_dear(request, price, standings, ceiling)
        amount = hold_nanos(price, request.input_tokens, ceiling, request.choices)
    _check_room(standings)
    return Held(
        id=request.id,
        scopes=request.scopes,
        periods=_periods(request, standings),
        model=request.model,
        lane=request.lane,
        price=price,
        input_tokens=request.input_tokens,
        ceiling_tokens=ceiling,
        choices=request.choices,
        streamed=request.streamed,
        owner=request.owner,
        attempt=1,
        amount_nanos=amount,
        created_at=request.created_at,
        claim_key=request.claim.key if request.claim else None,
        kind=request.kind,
    )


def _check_room(standings: Sequence[Standing]) -> None:
    """Raise TooManyOpenCalls if one more open hold is too much for a scope (L15)."""
    for kind, standing in zip(KINDS, standings, strict=True):
        limit = standing.account.max_open_holds if standing.account else 0
        if limit is not None and standing.open_holds >= limit:
            raise TooManyOpenCalls(
                f"This call's {kind} has {standing.open_holds} calls open; its limit is {limit}. "
                "Retry when one of them has ended.",
                retry_after_seconds=OPEN_RETRY_SECONDS,
            )


def _periods(request: HoldRequest, standings: Sequence[Standing]) -> tuple[str, str, str]:
    day = day_id(request.created_at)
    organisation, project, key = (
        period_id(standing.account.period if standing.account else Period.TOTAL, day)
        for standing in standings
    )
    return organisation, project, key


def _too_dear(
    request: HoldRequest, price: Price, standings: Sequence[Standing], affordable: int
) -> InsufficientQuota:
    """Name the tightest scope (the outermost of equals), the cost, what is left and what to do."""
    index = min(range(len(standings)), key=lambda i: standings[i].headroom_nanos)
    account = standings[index].account
    assert account is not None
    least = hold_nanos(price, request.input_tokens, request.floor_tokens, request.choices)
    bound = "up to" if request.floor_tokens == request.ceiling_tokens else "at least"
    left = format_usd(max(standings[index].headroom_nanos, 0))
    cheaper = (
        f"Ask for at most {affordable} output token{'s' * (affordable != 1)}"
        if affordable
        else "Send a shorter prompt"
    )
    return InsufficientQuota(
        f"This call needs {bound} {format_usd(least)} USD, but the {_ADJECTIVES[account.period]}"
        f"budget of its {KINDS[index]} has {left} USD left. "
        f"{cheaper}{_WAITS[account.period]}, or have the budget raised."
    )


def moved(held: Held, scope: str, period: Period) -> Held:
    """The hold with the balance of this scope in its period of the new kind."""
    now = period_id(period, day_id(held.created_at))
    ids = zip(held.scopes, held.periods, strict=True)
    organisation, project, key = (now if each == scope else before for each, before in ids)
    return replace(held, periods=(organisation, project, key))


def check_attempt(held: Held, attempt: int) -> None:
    """Raise StaleAttempt unless this is the hold's current attempt (L7)."""
    if attempt < held.attempt:
        raise StaleAttempt()
    if attempt > held.attempt:
        raise StaleAttempt(
            f"attempt {attempt} of hold {held.id} was never dispatched (current: {held.attempt})"
        )


def is_remembered(remembered: Remembered, at: float) -> bool:
    """Whether a claim still counts: always while its call is open, then for a day (L9)."""
    return remembered.answer is None or at - remembered.claimed_at < REMEMBERED_SECONDS


def keeps_answer(bill: Bill, charged: Charge) -> bool:
    """Whether a claimed key outlives its hold; any other ending forgets it (L9)."""
    return charged.settled and bill.outcome is Outcome.COMPLETED


def kept_bytes(claim: Claim, answer: bytes) -> int:
    """What a kept answer counts as against the bound of all answers."""
    return len(claim.key.encode()) + len(claim.fingerprint) + len(claim.head) + len(answer)


def drop_limit(before: str | None, now: float) -> float:
    """When the day begins from which on rows stay: `before`, or two days ago at the latest."""
    newest = day_id(now - KEPT_DAYS * SECONDS_PER_DAY)
    day = newest if before is None else before
    try:
        limit = datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise ValueError(f"{day!r} is not a UTC day such as 2026-11-30") from None
    if limit > datetime.strptime(newest, "%Y-%m-%d").replace(tzinfo=UTC).timestamp():
        raise ValueError(
            f"rows of today and of the {KEPT_DAYS} days before it stay: before {newest} at the latest, not {day}"
        )
    return limit


def check_drop_end(sequence: int, hash: str, last: tuple[int, str] | None) -> None:
    """Raise ValueError unless the last row that goes is the one that the caller has."""
    if last is None or last[0] != sequence:
        raise ValueError(f"there is no row {sequence} in the ledger; nothing was dropped")
    if last[1] != hash:
        raise ValueError(f"row {sequence} has another hash than {hash}; nothing was dropped")


def check_drop_age(young: int | None, limit: float) -> None:
    """Raise ValueError if a row is too young to go; `young` is the first such."""
    if young is not None:
        raise ValueError(
            f"row {young} was created or resolved on {day_id(limit)} or later; nothing was dropped"
        )


def charge(held: Held, usage: Usage) -> Charge:
    """A settlement: the hold's own P, the output clamped to n·M, at the pinned price."""
    billed = Usage(
        input_tokens=held.input_tokens,
        output_tokens=_clamp(usage.output_tokens, held.choices * held.ceiling_tokens),
        cached_input_tokens=_clamp(usage.cached_input_tokens, held.input_tokens),
        finish_reasons=usage.finish_reasons,
        counted=usage.counted,
    )
    amount = amount_nanos(held.price, billed)
    assert 0 <= amount <= held.amount_nanos, "L3"
    return Charge(billed, amount, settled=True)


def waive(held: Held, usage: Usage) -> Charge:
    """A release: what ran is written down (never more than was held for), and it is free."""
    input_tokens = _clamp(usage.input_tokens, held.input_tokens)
    ran = Usage(
        input_tokens=input_tokens,
        output_tokens=_clamp(usage.output_tokens, held.choices * held.ceiling_tokens),
        cached_input_tokens=_clamp(usage.cached_input_tokens, input_tokens),
        finish_reasons=usage.finish_reasons,
        counted=usage.counted,
    )
    return Charge(ran, 0, settled=False)


def _clamp(tokens: int, most: int) -> int:
    return max(0, min(tokens, most))


class Place(NamedTuple):
    """Where a resolution goes in the chain, and when (wall time)."""

    sequence: int
    previous_hash: str
    at: float


def resolution(held: Held, bill: Bill, charged: Charge, place: Place) -> UsageRow:
    """The one row that ends a hold: usage event, outbox entry and audit link (L5)."""
    return seal(
        UsageRow(
            sequence=place.sequence,
            call_id=held.id,
            organisation_id=held.scopes.organisation_id,
            project_id=held.scopes.project_id,
            key_id=held.scopes.key_id,
            model=held.model,
            lane=held.lane,
            outcome=bill.outcome,
            reason=bill.reason,
            attempt=held.attempt,
            usage=charged.usage,
            timings=bill.timings,
            price_version=held.price.version,
            amount_nanos=charged.amount_nanos,
            created_at=held.created_at,
            resolved_at=place.at,
            previous_hash=place.previous_hash,
            hash="",
            kind=held.kind,
        )
    )


def owner_died(held: Held, watermark: int) -> tuple[Bill, Charge]:
    """How a dead owner's hold ends: a streamed call that was read from pays up to its watermark."""
    if held.streamed and watermark > 0:
        bill = Bill(Usage(held.input_tokens, watermark), Outcome.CANCELLED, "owner_died")
        return bill, charge(held, bill.usage)
    bill = Bill(Usage(0, 0), Outcome.FAILED, "owner_died")
    return bill, waive(held, bill.usage)


def judge(
    view: View, counters: Mapping[str, int | None], monotonic: float
) -> tuple[list[str], View]:
    """Who is dead, in order of name, and the view to judge with next time.

    `counters` has every process that beats or owns an open hold (None: it never beat). The dead
    leave the view: one that comes back is new. So do those who neither beat nor own anything.
    """
    dead: list[str] = []
    seen: View = {}
    for process, counter in counters.items():
        known = view.get(process)
        if known is None or known[0] != counter:
            seen[process] = (counter, monotonic)
        elif monotonic - known[1] >= DEAD_AFTER_SECONDS:
            dead.append(process)
        else:
            seen[process] = known
    return sorted(dead), seen
