"""The ledger reserves money before anything runs and charges exactly once for what ran.

       hold                 settle (attempt current)
    ─────────▶ HELD ─────────────────────────────────▶ SETTLED   the usage row, with an amount
                │  dispatch: attempt + 1
                └──────── release / sweep ───────────▶ RELEASED  the usage row, with amount 0

Invariants
- L1 For every scope and period: pending = Σ unresolved holds, posted = Σ settlements.
- L2 A hold is granted only if posted + pending + H <= cap on every scope, under any concurrency;
  posted + pending <= high_water is also checked by the store itself (high_water follows a lowered
  cap down as holds resolve).
- L3 0 <= settled <= hold.
- L4 Exactly one resolution per hold, also across kill -9, retries and duplicates.
- L5 The resolution row is the usage event, the outbox entry and the audit link (sequence and
  SHA-256 chain in commit order).
- L6 Nothing runs without a committed hold: when `hold` returns, it is durable.
- L7 An older attempt settles nothing and releases nothing.
- L8 watermark <= billed output <= n·M, and never more than the caller reports; our fault is a release.
- L9 One hold per idempotency key of an organisation while the key is remembered: it is claimed in the
  hold's transaction, remembered while the hold is open, and for a day if that was settled as
  completed, with its answer, stored with the settlement. Any other ending forgets it at once.
- L10 Wall-clock jumps change no balance and kill no process: liveness is counters on the keeper's
  monotonic clock.
- L11 Every amount can be recomputed from its stored price version (`pricing.amount_nanos`).
- L12 The audit chain verifies: a row that was changed, deleted or moved, also the newest, is found.
- L13 When `settle` returns, the charge is durable: who saw the end of a call finds it in `usage`.
- L14 No row read for organisation A belongs to B.
- L15 The concurrency of a scope is its unresolved holds: an exact, durable integer with its own check.

Not here: who decides what is charged (`forebay.pipeline`), calls per minute (`forebay.admission`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from forebay.core.hold import (
    Account,
    Balance,
    Bill,
    Hold,
    HoldRequest,
    Period,
    Remembered,
    UsageQuery,
)
from forebay.core.money import Price, PriceTerms
from forebay.core.records import EngineWindow, Reconciled, Verified
from forebay.core.usage import UsageRow, UsageSlice, UsageTotal


class StartsAfresh(ValueError):
    """Credit was to be booked for a cap a day or a month, and would be forgotten with it."""


class Ledger(ABC):
    """What the walk of a call needs. Safe from any number of tasks; every verb is idempotent.

    A verb whose caller is cancelled may commit all the same. The verbs of one process commit in the
    order in which they were called, so whoever undoes one just calls the verb that does.
    """

    @abstractmethod
    async def hold(self, request: HoldRequest) -> Hold:
        """Reserve H on all scopes or on none. The same id again answers the same hold.

        A ceiling may be lowered down to `floor_tokens` to fit the balances. Raises
        InsufficientQuota (also for a scope without an account), TooManyOpenCalls,
        AlreadyResolved, KeyClaimed (another call has claimed its idempotency key, L9; asked
        before money, as a replay is free); StoreUnavailable only if nothing was stored.
        """

    @abstractmethod
    async def dispatch(self, hold_id: str, attempt: int) -> None:
        """Raise the hold's attempt to `attempt` durably; the owner calls it before it enqueues one.

        Equal to the current attempt: no-op. Raises StaleAttempt for an older one,
        AlreadyResolved, UnknownHold.
        """

    @abstractmethod
    async def adopt(self, hold_id: str, owner: str) -> int:
        """Make this process the hold's owner and raise its attempt, which is answered; durably.

        For what outlives its process: whoever had it before settles nothing any more (L7), and its
        death resolves nothing. Asked again, it is one attempt more. Raises AlreadyResolved,
        UnknownHold.
        """

    @abstractmethod
    async def settle(self, hold_id: str, attempt: int, bill: Bill) -> UsageRow:
        """Charge for an attempt and return the rest of the hold, in one commit (L4, L5).

        The amount is computed here from the pinned price, with input = the hold's P and output
        clamped to n·M (L3, L8); the bill's answer is kept for a claimed key (L9). Raises
        AlreadyResolved (carrying the row), StaleAttempt (L7), UnknownHold.
        """

    @abstractmethod
    async def release(self, hold_id: str, attempt: int, bill: Bill) -> UsageRow:
        """Return the whole hold: amount 0; `bill` says what ran and why it is free. Raises as settle."""

    @abstractmethod
    async def beat(self, process: str, counter: int, progress: Mapping[str, int]) -> None:
        """This process lives; `progress` (hold id -> output tokens read) is the durable watermark."""

    @abstractmethod
    async def sweep(self, monotonic: float) -> list[UsageRow]:
        """Resolve the holds of owners whose counter has stood still for 10 s of this clock.

        A streamed call with a watermark is settled at it (Outcome.CANCELLED, reason
        "owner_died"), any other is released (Outcome.FAILED). Owners that never beat count from
        the first sweep that saw their holds.
        """

    @abstractmethod
    async def balances(self, scope: str) -> Balance:
        """The scope's current balance. A scope without an account answers cap 0 and zeros."""

    @abstractmethod
    async def recall(self, organisation_id: str, key: str) -> Remembered | None:
        """The call that has claimed this idempotency key, with its answer once it is there (L9).

        None: free to claim. Answers are bounded in bytes; the oldest are forgotten first.
        """

    @abstractmethod
    async def usage(self, query: UsageQuery) -> list[UsageRow]:
        """Resolved holds, newest first."""

    @abstractmethod
    async def close(self) -> None:
        """Finish what was accepted, then close the store."""


class Books(ABC):
    """Accounts, caps and price versions: the operator's side of the same store."""

    @abstractmethod
    async def open_account(self, account: Account) -> bool:
        """Create the account; False, and nothing changed, if it exists."""

    @abstractmethod
    async def set_cap(
        self, scope: str, cap_nanos: int | None, period: Period | None = None
    ) -> None:
        """Change a cap now. A lowered one refuses new holds and lets running ones finish (L2).

        With another period the scope's balances are those of that period, from the first call
        that it ever made: what was settled counts in the period of its hold, and open holds
        move (L1). Raises KeyError for a scope that has no account.
        """

    @abstractmethod
    async def set_max_open_holds(self, scope: str, max_open_holds: int | None) -> None:
        """Change how many calls may be open at once (L15), as `set_cap` does. Raises KeyError."""

    @abstractmethod
    async def top_up(self, scope: str, amount_nanos: int, id: str) -> Account:
        """Book prepaid credit: raise the scope's cap, which must be of period total. Append-only.

        The same id again changes nothing. A scope without a cap starts from what is posted and
        pending (0 for a new one), and is limited from now on. Raises KeyError for a scope without
        account, StartsAfresh for another period, ValueError for an id that booked something else.
        """

    @abstractmethod
    async def publish_price(self, terms: PriceTerms) -> Price:
        """The newest version if its terms are these, else these appended as a new version."""

    @abstractmethod
    async def price(self, version: int) -> Price:
        """A stored version. Raises KeyError for one that was never published."""

    @abstractmethod
    async def totals(self, query: UsageQuery, *, by: str) -> list[UsageTotal]:
        """Sums of usage rows, largest amount first.

        Grouped by "key", "project" or "organisation" (their ids), "model" or "day" (UTC).
        """

    @abstractmethod
    async def slices(self, query: UsageQuery, *, width_seconds: int) -> list[UsageSlice]:
        """Sums of usage rows by time, key, model and lane, in that order.

        A slice begins at a multiple of the width, in Unix seconds. The query's limit is not read:
        its times bound the answer.
        """


class Records(ABC):
    """The books read back: exported, audited, archived. The same store, beside the calls that go on."""

    @abstractmethod
    async def outbox(self, after: int, limit: int) -> list[UsageRow]:
        """Resolved holds with a sequence above `after`, oldest first. Their call id is the event id.

        Sequences count up by one, so a reader that finds a gap was overtaken by `drop`.
        """

    @abstractmethod
    async def verify(self) -> Verified:
        """Walk the audit chain from the newest seal to the newest row (L5, L12)."""

    @abstractmethod
    async def reconcile(self) -> Reconciled:
        """Compute every balance, count and amount anew and compare (L1, L3, L11, L15)."""

    @abstractmethod
    async def drop(self, through_sequence: int, hash: str, *, before: str | None = None) -> int:
        """Take the rows up to this one, which has this hash, out of the ledger; how many went.

        Their sums stay, and a seal from which the chain goes on. Rows of calls that were created
        or resolved on the UTC day `before` or later stay (None, and at the latest: two days ago).
        Raises ValueError for another hash, or if a row up to this one has to stay; StoreUnavailable
        may leave a part of the rows dropped, and the same call drops the rest.
        """

    @abstractmethod
    async def record_window(self, window: EngineWindow) -> None:
        """Keep one minute of one engine; the same minute and boot again replaces it."""

    @abstractmethod
    async def windows(self, since: float) -> list[EngineWindow]:
        """Windows that begin at `since` or later, oldest first."""
