"""Spend alerts: who is told when an organisation or a project has spent so much in a period.

      fold: the posted sum has reached the threshold
    ─────────────▶ PENDING ──2xx──▶ DELIVERED
                    │   ▲ │
                    │   └─┘ anything else: again later, the same event
                    ├──410──▶ REFUSED    the alert is disabled
                    └───────▶ GIVEN_UP   the last attempt failed

The store follows the ledger's outbox: it keeps a cursor (the last sequence it has seen) and the
posted sums of every scope and period, and moves all of them in one transaction.

Invariants
- A posting counts once: `fold` changes nothing unless the cursor stands where its caller read it.
- At most one event per alert, period and threshold, also across crashes; it is durable before the
  cursor passes the posting that caused it.
- An event keeps its id over all attempts: it is what receivers recognise a repetition by.
- Periods before the one in which an alert was last put make no events of it; a sum that is above
  the threshold already when it is put does.
- A receiver that does not answer delays no other: `due` names each address once.

Not here: who reads the outbox and sends (`forebay.pipeline.alerting`), what a period is called
(`forebay.ledger.period_id`), caps (the ledger refuses calls; an alert only tells).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from forebay.core.hold import Period


@dataclass(frozen=True, slots=True)
class SpendAlert:
    """A threshold of an organisation, or of one of its projects, and the address to tell.

    We send no mail: `recipients` and `subject_prefix` travel in the webhook, for who does.
    """

    id: str
    organisation_id: str
    project_id: str | None
    threshold_nanos: int
    webhook_url: str
    recipients: tuple[str, ...]
    subject_prefix: str | None
    created_at: float
    interval: Period = Period.MONTH
    enabled: bool = True

    @property
    def scope(self) -> str:
        """Whose spending is meant."""
        return self.project_id or self.organisation_id


@dataclass(frozen=True, slots=True)
class Posting:
    """What was charged to a scope in a period. Several of the same scope and period add up."""

    scope: str
    period_id: str
    amount_nanos: int


class EventState(StrEnum):
    """How far an event has come."""

    PENDING = "pending"
    DELIVERED = "delivered"
    REFUSED = "refused"  # 410: the receiver wants none
    GIVEN_UP = "given_up"


@dataclass(frozen=True, slots=True)
class AlertEvent:
    """A threshold was reached. `spent_nanos` is the posted sum when that was noticed."""

    id: str
    alert_id: str
    period_id: str
    threshold_nanos: int
    spent_nanos: int
    created_at: float
    state: EventState = EventState.PENDING
    attempts: int = 0
    next_at: float | None = None


@dataclass(frozen=True, slots=True)
class Delivery:
    """An event to send, and the alert that says where to."""

    event: AlertEvent
    alert: SpendAlert


class Alerts(ABC):
    """The store. Safe from any number of tasks; a cancelled caller's verb may commit all the same."""

    @abstractmethod
    async def put(self, alert: SpendAlert, *, at: float, since: str) -> SpendAlert:
        """Create the alert, or replace the one of this id (but for its scope and `created_at`).

        `since` is the present period of its interval: '' for total, '2026-11', '2026-11-30'.
        Makes the event at once if the sum has reached the threshold already.
        """

    @abstractmethod
    async def remove(self, alert_id: str) -> SpendAlert:
        """Forget the alert with its events: what was not delivered is not sent any more.

        Raises KeyError for an unknown id.
        """

    @abstractmethod
    async def alerts(self) -> list[SpendAlert]:
        """All alerts, oldest first."""

    @abstractmethod
    async def events(self, alert_id: str) -> list[AlertEvent]:
        """Events of an alert, newest first."""

    @abstractmethod
    async def cursor(self) -> int:
        """Sequence of the last outbox row that was folded; 0 before the first."""

    @abstractmethod
    async def fold(
        self, postings: Iterable[Posting], *, after: int, through: int, at: float
    ) -> list[AlertEvent]:
        """Add what the outbox rows in (after, through] posted; the events that this made.

        All in one durable commit. No-op if the cursor is not `after` (any more).
        """

    @abstractmethod
    async def due(self, now: float, limit: int) -> list[Delivery]:
        """Pending events of enabled alerts whose time has come, longest overdue first, one per address.

        One that would wait longer than any wait is, because the clock was set back, is due too.
        """

    @abstractmethod
    async def record(self, event: AlertEvent) -> None:
        """Keep what became of an attempt: `state`, `attempts`, `next_at` of this event.

        REFUSED disables its alert. No-op for an event that is gone.
        """


@dataclass(frozen=True, slots=True)
class Reply:
    """A receiver's status; None when it gave none, and then `reason` says why."""

    status: int | None
    reason: str = ""


class Courier(ABC):
    """Sends webhooks. Safe from any number of tasks."""

    @abstractmethod
    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """One POST, at most 10 s; follows no redirect and reads no body. Never raises."""

    @abstractmethod
    async def close(self) -> None:
        """Break off what is under way. Idempotent."""
