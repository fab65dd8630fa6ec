"""Tells receivers that a threshold was reached: follows the ledger's outbox, delivers what fired.

    outbox ─▶ follow: sums, events, cursor (one commit) ─▶ deliver: POST, until it is accepted

The ledger's archive may have taken rows that were never followed (before the first look, or since the
copy of forebay.db that was restored): their sums are lost, and that is logged as an error.

An event is durable before the cursor passes what caused it, and is delivered at least once: whoever
dies between an answer and its record sends again, with the same id. Each address gets one request at
a time, so that one that hangs keeps nobody waiting but itself.

Not here: what fires (`forebay.alerts`), what an operator does with alerts (`admin_alerts.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from forebay.alerts import (
    AlertEvent,
    Alerts,
    AlertSettings,
    Courier,
    Delivery,
    EventState,
    Posting,
    Reply,
    SpendAlert,
    Verdict,
    compose,
    headers_of,
    judge,
    require_url,
    retry_seconds,
    secret_of,
)
from forebay.core.clock import Clock, IdSource, Spawn
from forebay.core.errors import ForebayError
from forebay.core.hold import Period
from forebay.core.usage import UsageRow
from forebay.ledger import Records, day_id, period_id
from forebay.pipeline.report import Reporter

LOOK_SECONDS = 1.0
OUTBOX_ROWS = 1_000
# Each waits for a receiver and for nothing else; the slowest is cut off after 10 s.
MOST_AT_ONCE = 32
_DRAW_BYTES = 4


@dataclass(frozen=True, slots=True)
class Webhooks:
    """Signs and sends. `key` is this installation's, from which each alert's secret is derived."""

    courier: Courier
    key: bytes
    clock: Clock
    settings: AlertSettings

    async def send(self, event: AlertEvent, alert: SpendAlert, *, verb: str = "triggered") -> Reply:
        """One attempt."""
        body = compose(event, alert, verb=verb)
        headers = headers_of(event, body, key=self.key, now=self.clock.now())
        return await self.courier.post(alert.webhook_url, headers, body)

    def require(self, url: str) -> None:
        """Raises InvalidRequest unless webhooks may be sent there."""
        require_url(url, self.settings)

    def secret(self, alert_id: str) -> str:
        """What the alert's receiver verifies with."""
        return secret_of(alert_id, self.key)


class Alerting:
    """One per installation, in the keeper's process; a second one would only send more often."""

    def __init__(
        self, alerts: Alerts, records: Records, webhooks: Webhooks, ids: IdSource, spawn: Spawn,
        report: Reporter,
    ) -> None:  # fmt: skip
        self._alerts = alerts
        self._records = records
        self._webhooks = webhooks
        self._clock = webhooks.clock
        self._ids = ids
        self._spawn = spawn
        self._report = report
        self._busy: set[str] = set()  # addresses

    async def run(self) -> None:
        """Follow and deliver, for ever. A store that fails is asked again in a second."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.follow()
                await self.deliver()
            except ForebayError as fault:
                self._report.log.error("alerting_failed", error=str(fault))

    async def follow(self) -> None:
        """Fold everything that the outbox has."""
        more = True
        while more:
            after = await self._alerts.cursor()
            rows = await self._records.outbox(after, OUTBOX_ROWS)
            more = len(rows) == OUTBOX_ROWS
            if rows:
                self._notice_gap(after, rows[0].sequence)
                postings = [posting for row in rows for posting in postings_of(row)]
                through, at = rows[-1].sequence, self._clock.now()
                for event in await self._alerts.fold(postings, after=after, through=through, at=at):
                    self._report.metrics.alert_events.inc()
                    self._report.log.info(
                        "alert_fired",
                        alert_id=event.alert_id,
                        event_id=event.id,
                        period=event.period_id,
                        spent_nanos=event.spent_nanos,
                    )

    def _notice_gap(self, after: int, first: int) -> None:
        if first != after + 1:
            self._report.log.error(
                "alert_sums_incomplete",
                missing_rows=first - after - 1,
                from_sequence=after + 1,
                through_sequence=first - 1,
                what_to_do="The ledger's archive took these rows before spend alerts had counted "
                "them. Alerts of this month and in all fire that much too late; `forebay budgets "
                "list` and `forebay usage` show what was spent. Lower their thresholds, or wait "
                "for the next month.",
            )

    async def deliver(self) -> None:
        """Begin an attempt of whatever is due, and return without waiting for receivers.

        Those being asked now are still due, so as many are looked at beyond them.
        """
        for delivery in await self._alerts.due(self._clock.now(), 2 * MOST_AT_ONCE):
            url = delivery.alert.webhook_url
            if url not in self._busy and len(self._busy) < MOST_AT_ONCE:
                self._busy.add(url)
                self._spawn(self._attempt(delivery), name="webhook")

    async def _attempt(self, delivery: Delivery) -> None:
        try:
            reply = await self._webhooks.send(delivery.event, delivery.alert)
            await self._record(self._judged(delivery.event, reply))
        finally:
            self._busy.discard(delivery.alert.webhook_url)

    def _judged(self, event: AlertEvent, reply: Reply) -> AlertEvent:
        """The event after this attempt, told to whoever watches."""
        draw = int.from_bytes(self._ids.random_bytes(_DRAW_BYTES)) / 2 ** (8 * _DRAW_BYTES)
        after = judged(event, reply.status, now=self._clock.now(), draw=draw)
        log, told = self._report.log, _told(after, reply)
        if after.state is EventState.DELIVERED:
            log.info("webhook_delivered", **told)
        elif after.state is EventState.PENDING:
            log.warning("webhook_failed", **told, next_at=after.next_at)
        else:
            log.error("webhook_given_up", **told, state=after.state.value)
        result = "failed" if after.state is EventState.PENDING else after.state.value
        self._report.metrics.webhook_attempts.labels(result).inc()
        return after

    async def _record(self, event: AlertEvent) -> None:
        """Until it is stored: what is not would be sent again at once."""
        while True:
            try:
                return await self._alerts.record(event)
            except ForebayError as fault:
                self._report.log.error("alerting_failed", error=str(fault))
                await asyncio.sleep(LOOK_SECONDS)


def postings_of(row: UsageRow) -> Iterator[Posting]:
    """What a resolved hold adds to which sums: to the period in which its call was held, as its
    money does."""
    if row.amount_nanos == 0:
        return
    day = day_id(row.created_at)
    for scope in (row.organisation_id, row.project_id):
        for period in Period:
            yield Posting(scope, period_id(period, day), row.amount_nanos)


def _told(event: AlertEvent, reply: Reply) -> dict[str, Any]:
    """What the log says of an attempt; the address is not among it: its path may be a secret."""
    return {
        "alert_id": event.alert_id,
        "event_id": event.id,
        "attempts": event.attempts,
        "status": reply.status,
        "reason": reply.reason,
    }


def judged(event: AlertEvent, status: int | None, *, now: float, draw: float) -> AlertEvent:
    """The event after one more attempt was answered with this status."""
    attempts = event.attempts + 1
    state, next_at = EventState.PENDING, None
    match judge(status):
        case Verdict.DELIVERED:
            state = EventState.DELIVERED
        case Verdict.GONE:
            state = EventState.REFUSED
        case Verdict.FAILED:
            wait = retry_seconds(attempts, draw)
            if wait is None:
                state = EventState.GIVEN_UP
            else:
                next_at = now + wait
    return replace(event, state=state, attempts=attempts, next_at=next_at)
