"""Spend alerts: who is told that an organisation or a project has spent so much.

Not here: noticing and telling (`alerting.py`); the same by names (`admin_alert_names.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from forebay.alerts import SpendAlert
from forebay.core.errors import InvalidRequest, NotFound
from forebay.core.hold import Period
from forebay.core.money import MAX_NANOS, format_usd
from forebay.ledger import day_id, period_id
from forebay.pipeline.desk import Section
from forebay.tenancy import ProjectInfo


@dataclass(frozen=True, slots=True)
class AlertRequest:
    """What an alert is to be."""

    threshold_nanos: int
    webhook_url: str
    recipients: tuple[str, ...] = ()
    subject_prefix: str | None = None
    interval: Period = Period.MONTH


class SpendAlerts(Section):
    """Of the actor's organisation (no project) or of one of its projects. An id that is none of
    theirs: NotFound."""

    async def list(self, project_id: str | None) -> Sequence[SpendAlert]:
        """Oldest first."""
        home = await self._place(project_id)
        return [
            alert
            for alert in await self._desk.alerts.alerts()
            if alert.organisation_id == home.scopes.organisation_id
            and alert.project_id == project_id
        ]

    async def one(self, project_id: str | None, alert_id: str) -> SpendAlert:
        for alert in await self.list(project_id):
            if alert.id == alert_id:
                return alert
        raise NotFound("There is no such spend alert.")

    async def create(self, project_id: str | None, request: AlertRequest) -> SpendAlert:
        return await self.create_at(await self._place(project_id), project_id, request)

    async def create_at(
        self, home: ProjectInfo, project_id: str | None, request: AlertRequest
    ) -> SpendAlert:
        """`home`: this project, or any of the organisation that is meant."""
        alert = SpendAlert(
            id=self._desk.ids.new("alert"),
            organisation_id=home.scopes.organisation_id,
            project_id=project_id,
            threshold_nanos=request.threshold_nanos,
            webhook_url=request.webhook_url,
            recipients=request.recipients,
            subject_prefix=request.subject_prefix,
            created_at=self._desk.clock.now(),
            interval=request.interval,
        )
        return await self._put(alert, home)

    async def update(
        self, project_id: str | None, alert_id: str, request: AlertRequest
    ) -> SpendAlert:
        """Everything but its id. It watches from the present period on, also one that had been
        disabled because its receiver was gone."""
        home = await self._place(project_id)
        alert = replace(
            await self.one(project_id, alert_id),
            threshold_nanos=request.threshold_nanos,
            webhook_url=request.webhook_url,
            recipients=request.recipients,
            subject_prefix=request.subject_prefix,
            interval=request.interval,
            enabled=True,
        )
        return await self._put(alert, home)

    async def delete(self, project_id: str | None, alert_id: str) -> None:
        """What it has not delivered yet is not sent any more."""
        home = await self._place(project_id)
        await self.remove_at(home, await self.one(project_id, alert_id))

    async def remove_at(self, home: ProjectInfo, alert: SpendAlert) -> None:
        await self._desk.alerts.remove(alert.id)
        await self._note(alert, home, None)

    def secret(self, alert_id: str) -> str:
        """What the alert's receiver verifies signatures with."""
        return self._desk.webhooks.secret(alert_id)

    async def _place(self, project_id: str | None) -> ProjectInfo:
        return await (self._home() if project_id is None else self._project(project_id))

    async def _put(self, alert: SpendAlert, home: ProjectInfo) -> SpendAlert:
        if not 1 <= alert.threshold_nanos <= MAX_NANOS:
            amount = format_usd(alert.threshold_nanos)
            raise InvalidRequest(
                f"The threshold is {amount} USD, but must be above 0.", param="threshold_amount"
            )
        self._desk.webhooks.require(alert.webhook_url)
        now = self._desk.clock.now()
        since = period_id(alert.interval, day_id(now))
        stored = await self._desk.alerts.put(alert, at=now, since=since)
        await self._note(stored, home, format_usd(stored.threshold_nanos))
        return stored

    async def _note(self, alert: SpendAlert, home: ProjectInfo, threshold: str | None) -> None:
        asked = {"spend_alert_usd": threshold}
        if alert.project_id is None:
            whole = home.scopes.organisation_id
            await self._record("organization.updated", alert.id, whole, changes_requested=asked)
        else:
            await self._record("project.updated", alert.id, home, changes_requested=asked)
