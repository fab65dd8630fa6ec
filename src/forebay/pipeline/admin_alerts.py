"""Spend alerts: who is told that an organisation or a project has spent so much this month.

Not here: watching the spend and telling.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from forebay.core.errors import InvalidRequest, NotFound
from forebay.core.money import format_usd
from forebay.pipeline.desk import Section
from forebay.tenancy import ProjectInfo, SpendAlert

MAX_URL_CHARACTERS = 2_000
_URL = re.compile(r"https?://[^\s/?#@]+([/?#]\S*)?")


@dataclass(frozen=True, slots=True)
class AlertRequest:
    """What an alert is to be."""

    threshold_nanos: int
    webhook_url: str
    recipients: tuple[str, ...] = ()
    subject_prefix: str | None = None


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
        home = await self._place(project_id)
        alert = SpendAlert(
            id=self._desk.ids.new("alert"),
            organisation_id=home.scopes.organisation_id,
            project_id=project_id,
            threshold_nanos=request.threshold_nanos,
            webhook_url=_checked(request.webhook_url),
            recipients=request.recipients,
            subject_prefix=request.subject_prefix,
            created_at=self._desk.clock.now(),
        )
        await self._put(alert, home)
        return alert

    async def update(
        self, project_id: str | None, alert_id: str, request: AlertRequest
    ) -> SpendAlert:
        """Everything but its id."""
        home = await self._place(project_id)
        alert = replace(
            await self.one(project_id, alert_id),
            threshold_nanos=request.threshold_nanos,
            webhook_url=_checked(request.webhook_url),
            recipients=request.recipients,
            subject_prefix=request.subject_prefix,
        )
        await self._put(alert, home)
        return alert

    async def delete(self, project_id: str | None, alert_id: str) -> None:
        home = await self._place(project_id)
        await self.one(project_id, alert_id)
        await self._desk.alerts.remove(alert_id)
        await self._note(alert_id, project_id, home, None)

    async def _place(self, project_id: str | None) -> ProjectInfo:
        return await (self._home() if project_id is None else self._project(project_id))

    async def _put(self, alert: SpendAlert, home: ProjectInfo) -> None:
        await self._desk.alerts.put(alert)
        await self._note(alert.id, alert.project_id, home, format_usd(alert.threshold_nanos))

    async def _note(
        self,
        alert_id: str,
        project_id: str | None,
        home: ProjectInfo,
        threshold_usd: str | None,
    ) -> None:
        asked = {"spend_alert_usd": threshold_usd}
        if project_id is None:
            await self._record(
                "organization.updated",
                alert_id,
                home.scopes.organisation_id,
                changes_requested=asked,
            )
        else:
            await self._record("project.updated", alert_id, home, changes_requested=asked)


def _checked(url: str) -> str:
    if len(url) > MAX_URL_CHARACTERS or _URL.fullmatch(url) is None:
        raise InvalidRequest(
            f"webhook_url is {url!r:.100}, but must be an address as https://example.org/hook of "
            f"at most {MAX_URL_CHARACTERS} characters.",
            param="webhook_url",
        )
    return url
