"""Alerts in memory: the specification that the other store is compared with.

No verb awaits, so each runs to completion on the event loop: that is its atomicity.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from forebay.alerts.contract import AlertEvent, Alerts, Delivery, EventState, Posting, SpendAlert
from forebay.alerts.rules import fires, is_day, longest_wait_seconds, oldest_day_kept
from forebay.core.clock import IdSource


class MemoryAlerts(Alerts):
    """Everything in dictionaries, in the order of its making."""

    def __init__(self, ids: IdSource) -> None:
        self._ids = ids
        self._alerts: dict[str, SpendAlert] = {}
        self._since: dict[str, str] = {}
        self._events: dict[str, AlertEvent] = {}
        self._sums: dict[tuple[str, str], int] = {}
        self._cursor = 0

    async def put(self, alert: SpendAlert, *, at: float, since: str) -> SpendAlert:
        if (old := self._alerts.get(alert.id)) is not None:
            alert = replace(
                alert,
                organisation_id=old.organisation_id,
                project_id=old.project_id,
                created_at=old.created_at,
            )
        self._alerts[alert.id], self._since[alert.id] = alert, since
        for (scope, period_id), posted in self._sums.items():
            if scope == alert.scope:
                self._fire(alert, period_id, posted, at)
        return alert

    async def remove(self, alert_id: str) -> SpendAlert:
        alert = self._alerts.pop(alert_id)
        self._events = {
            key: event for key, event in self._events.items() if event.alert_id != alert_id
        }
        return alert

    async def alerts(self) -> list[SpendAlert]:
        return list(self._alerts.values())

    async def events(self, alert_id: str) -> list[AlertEvent]:
        return [each for each in reversed(self._events.values()) if each.alert_id == alert_id]

    async def cursor(self) -> int:
        return self._cursor

    async def fold(
        self, postings: Iterable[Posting], *, after: int, through: int, at: float
    ) -> list[AlertEvent]:
        if self._cursor != after:
            return []
        self._cursor = through
        touched: dict[tuple[str, str], None] = {}
        for each in postings:
            place = (each.scope, each.period_id)
            touched[place] = None
            self._sums[place] = self._sums.get(place, 0) + each.amount_nanos
        self._forget_days()
        return [
            event
            for scope, period_id in touched
            for alert in self._alerts.values()
            if alert.scope == scope
            for event in self._fire(alert, period_id, self._sums.get((scope, period_id), 0), at)
        ]

    async def due(self, now: float, limit: int) -> list[Delivery]:
        horizon = now + longest_wait_seconds()
        waiting = [
            (event.next_at, Delivery(event, self._alerts[event.alert_id]))
            for event in self._events.values()
            if event.next_at is not None and not now < event.next_at <= horizon
        ]
        one_per_address: dict[str, Delivery] = {}
        for _, delivery in sorted(waiting, key=lambda each: each[0]):
            if delivery.alert.enabled:
                one_per_address.setdefault(delivery.alert.webhook_url, delivery)
        return list(one_per_address.values())[:limit]

    async def record(self, event: AlertEvent) -> None:
        if event.id not in self._events:
            return
        self._events[event.id] = event
        if event.state is EventState.REFUSED:
            alert = self._alerts[event.alert_id]
            self._alerts[alert.id] = replace(alert, enabled=False)

    def _fire(self, alert: SpendAlert, period_id: str, posted: int, at: float) -> list[AlertEvent]:
        """The event, if there is none of this period and threshold yet."""
        made = (alert.id, period_id, alert.threshold_nanos)
        known = ((e.alert_id, e.period_id, e.threshold_nanos) for e in self._events.values())
        if not fires(alert, self._since[alert.id], period_id, posted) or made in known:
            return []
        event = AlertEvent(self._ids.new("evt"), *made, posted, at, next_at=at)
        self._events[event.id] = event
        return [event]

    def _forget_days(self) -> None:
        days = [period_id for _, period_id in self._sums if is_day(period_id)]
        oldest = oldest_day_kept(max(days)) if days else ""
        for place in [each for each in self._sums if is_day(each[1]) and each[1] < oldest]:
            del self._sums[place]
