"""Spend alerts by the names of what they are about, as plain data: for the control socket.

Not here: what an alert is (`admin_alerts.py`), the wording on a terminal (`forebay.cli`).
"""

from __future__ import annotations

from typing import Any

from forebay.alerts import AlertEvent, SpendAlert
from forebay.core.errors import InvalidRequest
from forebay.core.money import format_usd
from forebay.ledger import day_id, period_id
from forebay.pipeline.admin_alerts import AlertRequest, SpendAlerts
from forebay.pipeline.admin_names import (
    LEAST_ENDING,
    nanos_of,
    organisation_of,
    period_of,
    project_of,
)
from forebay.pipeline.desk import Actor, Desk, Section
from forebay.tenancy import ProjectInfo


class NamedAlerts(Section):
    """Of the organisations that the actor may see."""

    def __init__(self, desk: Desk, actor: Actor) -> None:
        super().__init__(desk, actor)
        self._by_id = SpendAlerts(desk, actor)

    async def add(
        self,
        organisation: str,
        threshold_usd: str,
        webhook_url: str,
        project: str | None = None,
        interval: str = "month",
    ) -> dict[str, Any]:
        """Make an alert; the signing secret is in the answer, for its receiver."""
        projects = await self._projects()
        home, project_id = organisation_of(projects, organisation)[0], None
        if project is not None:
            home = project_of(projects, organisation, project)
            project_id = home.scopes.project_id
        threshold = nanos_of(threshold_usd, param="threshold_usd")
        request = AlertRequest(threshold, webhook_url, interval=period_of(interval))
        alert = await self._by_id.create_at(home, project_id, request)
        return {**_row(alert, home, None), "secret": self._by_id.secret(alert.id)}

    async def remove(self, alert_id: str) -> dict[str, Any]:
        """Forget an alert; what it has not delivered yet is not sent any more."""
        alert, home = await self._find(alert_id)
        await self._by_id.remove_at(home, alert)
        return _row(alert, home, None)

    async def test(self, alert_id: str) -> dict[str, Any]:
        """Send its receiver a sample now, once; how that went."""
        alert, _ = await self._find(alert_id)
        now = self._desk.clock.now()
        event = AlertEvent(
            id=self._desk.ids.new("evt"),
            alert_id=alert.id,
            period_id=period_id(alert.interval, day_id(now)),
            threshold_nanos=alert.threshold_nanos,
            spent_nanos=alert.threshold_nanos,
            created_at=now,
        )
        reply = await self._desk.webhooks.send(event, alert, verb="test")
        return {
            "alert_id": alert.id,
            "event_id": event.id,
            "status": reply.status,
            "reason": reply.reason,
        }

    async def _seen(self) -> list[tuple[SpendAlert, ProjectInfo]]:
        """Alerts of what the actor may see, each with its project or one of its organisation."""
        homes: dict[str, ProjectInfo] = {}
        for info in await self._projects():
            homes.setdefault(info.scopes.organisation_id, info)
            homes[info.scopes.project_id] = info
        every = await self._desk.alerts.alerts()
        return [(alert, homes[alert.scope]) for alert in every if alert.scope in homes]

    async def _find(self, text: str) -> tuple[SpendAlert, ProjectInfo]:
        """By its id, or an end of that which only one has."""
        end = text.removeprefix("…")
        found = [
            (alert, home)
            for alert, home in await self._seen()
            if len(end) >= LEAST_ENDING and alert.id.endswith(end)
        ]
        if len(found) == 1:
            return found[0]
        what = "means several alerts" if found else "is no alert"
        raise InvalidRequest(
            f"{text!r} {what}. `forebay alerts list` shows them; use an id, or its last "
            f"{LEAST_ENDING} characters or more.",
            param="alert_id",
        )

    async def list(self) -> list[dict[str, Any]]:
        """All alerts, oldest first, each with its newest event."""
        rows = []
        for alert, home in await self._seen():
            events = await self._desk.alerts.events(alert.id)
            rows.append(_row(alert, home, events[0] if events else None))
        return rows


def _row(alert: SpendAlert, home: ProjectInfo, newest: AlertEvent | None) -> dict[str, Any]:
    return {
        "id": alert.id,
        "organisation_id": alert.organisation_id,
        "organisation": home.organisation,
        "project_id": alert.project_id,
        "project": None if alert.project_id is None else home.project,
        "interval": alert.interval.value,
        "threshold_usd": format_usd(alert.threshold_nanos),
        "webhook_url": alert.webhook_url,
        "enabled": alert.enabled,
        "created_at": alert.created_at,
        "last_event": None if newest is None else _event(newest),
    }


def _event(event: AlertEvent) -> dict[str, Any]:
    return {
        "id": event.id,
        "period": event.period_id,
        "spent_usd": format_usd(event.spent_nanos),
        "created_at": event.created_at,
        "state": event.state.value,
        "attempts": event.attempts,
        "next_at": event.next_at,
    }
