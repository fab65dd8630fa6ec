"""Spend limits and spend alerts of the admin API, of the organisation and of its projects.

Not here: that a limit holds (`forebay.ledger`), telling (`forebay.pipeline.alerting`).
"""

from __future__ import annotations

import msgspec

from forebay.alerts import SpendAlert
from forebay.core.hold import Balance
from forebay.gateway.admin import Asked, Operation
from forebay.gateway.admin_pages import page
from forebay.gateway.admin_projects import PROJECTS
from forebay.gateway.admin_schema import (
    NANOS_PER_CENT,
    AlertBody,
    AlertListing,
    Channel,
    Deleted,
    Enforcement,
    LimitDeleted,
    NewAlert,
    Page,
    SpendLimitBody,
    WireAlert,
    WireSpendLimit,
)
from forebay.pipeline.admin_alerts import AlertRequest

_ORGANISATION = "/v1/organization"
_PROJECT = PROJECTS + "/{project_id}"


async def get_limit(asked: Asked) -> WireSpendLimit:
    return _limit(asked, await asked.administration.budgets.limit(asked.project_id))


async def set_limit(asked: Asked) -> WireSpendLimit:
    cap = asked.body.threshold_amount * NANOS_PER_CENT
    return _limit(asked, await asked.administration.budgets.set_limit(asked.project_id, cap))


async def delete_limit(asked: Asked) -> LimitDeleted:
    await asked.administration.budgets.limit(asked.project_id)
    await asked.administration.budgets.set_limit(asked.project_id, None)
    if asked.project_id is None:
        return LimitDeleted("organization.spend_limit.deleted")
    return LimitDeleted("project.spend_limit.deleted")


async def list_alerts(asked: Asked) -> Page[WireAlert]:
    found = await asked.administration.alerts.list(asked.project_id)
    return page(found, asked.query, _alert, lambda alert: alert.id)


async def create_alert(asked: Asked) -> NewAlert:
    alerts = asked.administration.alerts
    made = await alerts.create(asked.project_id, _request(asked.body))
    return NewAlert(**msgspec.structs.asdict(_alert(made)), webhook_secret=alerts.secret(made.id))


async def get_alert(asked: Asked) -> WireAlert:
    one = asked.administration.alerts.one(asked.project_id, asked.path["alert_id"])
    return _alert(await one)


async def update_alert(asked: Asked) -> WireAlert:
    changed = asked.administration.alerts.update(
        asked.project_id, asked.path["alert_id"], _request(asked.body)
    )
    return _alert(await changed)


async def delete_alert(asked: Asked) -> Deleted:
    alert_id = asked.path["alert_id"]
    await asked.administration.alerts.delete(asked.project_id, alert_id)
    owner = "organization" if asked.project_id is None else "project"
    return Deleted(alert_id, f"{owner}.spend_alert.deleted")


def _operations(place: str, whose: str) -> tuple[Operation, ...]:
    limit, alerts = f"{place}/spend_limit", f"{place}/spend_alerts"
    alert = alerts + "/{alert_id}"
    return (
        Operation("GET", limit, f"The spend limit of {whose}", WireSpendLimit, get_limit),
        Operation("POST", limit, f"Limit the spend of {whose}", WireSpendLimit, set_limit,
                  SpendLimitBody),
        Operation("DELETE", limit, f"Lift the spend limit of {whose}", LimitDeleted, delete_limit),
        Operation("GET", alerts, f"List the spend alerts of {whose}", Page[WireAlert], list_alerts,
                  query=AlertListing),
        Operation("POST", alerts, f"Create a spend alert of {whose}", NewAlert, create_alert,
                  AlertBody),
        Operation("GET", alert, f"One spend alert of {whose}", WireAlert, get_alert),
        Operation("POST", alert, f"Change a spend alert of {whose}", WireAlert, update_alert,
                  AlertBody),
        Operation("DELETE", alert, f"Delete a spend alert of {whose}", Deleted, delete_alert),
    )  # fmt: skip


OPERATIONS = (*_operations(_ORGANISATION, "the organization"), *_operations(_PROJECT, "a project"))


def _limit(asked: Asked, balance: Balance) -> WireSpendLimit:
    cap = balance.account.cap_nanos or 0
    spent = balance.posted_nanos + balance.pending_nanos
    return WireSpendLimit(
        threshold_amount=cap // NANOS_PER_CENT,
        enforcement=Enforcement("enforcing" if spent >= cap else "inactive"),
        interval=balance.account.period.value,
        object="organization.spend_limit" if asked.project_id is None else "project.spend_limit",
    )


def _request(body: AlertBody) -> AlertRequest:
    channel = body.notification_channel
    return AlertRequest(
        threshold_nanos=body.threshold_amount * NANOS_PER_CENT,
        webhook_url=body.webhook_url,
        recipients=tuple(channel.recipients),
        subject_prefix=channel.subject_prefix,
    )


def _alert(alert: SpendAlert) -> WireAlert:
    return WireAlert(
        id=alert.id,
        threshold_amount=-(-alert.threshold_nanos // NANOS_PER_CENT),
        enabled=alert.enabled,
        webhook_url=alert.webhook_url,
        notification_channel=Channel(
            recipients=list(alert.recipients), subject_prefix=alert.subject_prefix
        ),
        object="organization.spend_alert" if alert.project_id is None else "project.spend_alert",
        interval=alert.interval.value,
    )
