"""Alerts in forebay.db through SQLAlchemy Core.

A fold is one transaction: sums, events and the cursor. At most one event per alert, period and
threshold is the database's own rule (a unique constraint), whoever inserts.

Not here: the schema's steps (`forebay.migrations.versions`; a test compares them with the tables).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from forebay.alerts.contract import AlertEvent, Alerts, Delivery, EventState, Posting, SpendAlert
from forebay.alerts.rules import fires, is_day, longest_wait_seconds, oldest_day_kept
from forebay.core.clock import IdSource
from forebay.core.hold import Period

T = TypeVar("T")

METADATA = sa.MetaData()
ALERTS = sa.Table(
    "spend_alerts",
    METADATA,
    sa.Column("sequence", sa.Integer, primary_key=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("scope", sa.Text, nullable=False, index=True),
    sa.Column("organisation_id", sa.Text, nullable=False),
    sa.Column("project_id", sa.Text),
    sa.Column("threshold_nanos", sa.BigInteger, nullable=False),
    sa.Column("webhook_url", sa.Text, nullable=False),
    sa.Column("recipients", sa.JSON, nullable=False),
    sa.Column("subject_prefix", sa.Text),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("interval", sa.Text, nullable=False),
    sa.Column("since_period", sa.Text, nullable=False),
    sa.Column("enabled", sa.Boolean, nullable=False),
)
EVENTS = sa.Table(
    "alert_events",
    METADATA,
    sa.Column("sequence", sa.Integer, primary_key=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("alert_id", sa.Text, sa.ForeignKey("spend_alerts.id"), nullable=False),
    sa.Column("period_id", sa.Text, nullable=False),
    sa.Column("threshold_nanos", sa.BigInteger, nullable=False),
    sa.Column("spent_nanos", sa.BigInteger, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("next_at", sa.Double, index=True),
    sa.UniqueConstraint("alert_id", "period_id", "threshold_nanos"),
)
SUMS = sa.Table(
    "alert_sums",
    METADATA,
    sa.Column("scope", sa.Text, primary_key=True),
    sa.Column("period_id", sa.Text, primary_key=True),
    sa.Column("posted_nanos", sa.BigInteger, nullable=False),
)
CURSOR = sa.Table("alert_cursor", METADATA, sa.Column("sequence", sa.BigInteger, nullable=False))
# What replacing an alert leaves as it was.
_LASTING = {"id", "scope", "organisation_id", "project_id", "created_at"}


class Runner(Protocol):
    """The open database: runs a function in a transaction of its own, off the event loop."""

    async def run(self, work: Callable[[sa.Connection], T]) -> T: ...


class SqlAlerts(Alerts):
    """One per process. Called from the event loop; its functions named `_in_…` run in `Runner`."""

    def __init__(self, runner: Runner, ids: IdSource) -> None:
        self._runner = runner
        self._ids = ids

    async def put(self, alert: SpendAlert, *, at: float, since: str) -> SpendAlert:
        return await self._runner.run(partial(self._in_put, alert, at, since))

    async def remove(self, alert_id: str) -> SpendAlert:
        return await self._runner.run(partial(_in_remove, alert_id))

    async def alerts(self) -> list[SpendAlert]:
        every = sa.select(ALERTS).order_by(ALERTS.c.sequence)
        return await self._runner.run(lambda it: [_alert(row) for row in it.execute(every)])

    async def events(self, alert_id: str) -> list[AlertEvent]:
        chosen = sa.select(EVENTS).where(EVENTS.c.alert_id == alert_id)
        newest = chosen.order_by(EVENTS.c.sequence.desc())
        return await self._runner.run(lambda it: [_event(row) for row in it.execute(newest)])

    async def cursor(self) -> int:
        return await self._runner.run(_in_cursor)

    async def fold(
        self, postings: Iterable[Posting], *, after: int, through: int, at: float
    ) -> list[AlertEvent]:
        added: dict[tuple[str, str], int] = {}
        for each in postings:
            place = (each.scope, each.period_id)
            added[place] = added.get(place, 0) + each.amount_nanos
        return await self._runner.run(partial(self._in_fold, added, after, through, at))

    async def due(self, now: float, limit: int) -> list[Delivery]:
        return await self._runner.run(partial(_in_due, now, limit))

    async def record(self, event: AlertEvent) -> None:
        await self._runner.run(partial(_in_record, event))

    def _in_put(
        self, alert: SpendAlert, at: float, since: str, connection: sa.Connection
    ) -> SpendAlert:
        values = {**asdict(alert), "scope": alert.scope, "since_period": since}
        changed = {name: value for name, value in values.items() if name not in _LASTING}
        connection.execute(
            insert(ALERTS).values(values).on_conflict_do_update(["id"], set_=changed)
        )
        stored = _one(connection, alert.id)
        self._in_fire(ALERTS.c.id == alert.id, at, connection)
        return stored

    def _in_fold(
        self,
        added: dict[tuple[str, str], int],
        after: int,
        through: int,
        at: float,
        connection: sa.Connection,
    ) -> list[AlertEvent]:
        moved = sa.update(CURSOR).where(CURSOR.c.sequence == after).values(sequence=through)
        if connection.execute(moved).rowcount == 0:
            return []
        _in_forget_days([period_id for _, period_id in added if is_day(period_id)], connection)
        events = []
        for (scope, period_id), amount in added.items():
            place = sa.and_(SUMS.c.scope == scope, SUMS.c.period_id == period_id)
            _in_add(scope, period_id, amount, connection)
            events += self._in_fire(place, at, connection)
        return events

    def _in_fire(
        self, chosen: sa.ColumnElement[bool], at: float, connection: sa.Connection
    ) -> list[AlertEvent]:
        """The events that these alerts, or these sums, make."""
        watched = sa.select(ALERTS, SUMS.c.period_id, SUMS.c.posted_nanos)
        watched = watched.join(SUMS, SUMS.c.scope == ALERTS.c.scope).where(chosen)
        made = []
        for row in connection.execute(watched.order_by(ALERTS.c.sequence)).all():
            if not fires(_alert(row), row.since_period, row.period_id, row.posted_nanos):
                continue
            event = AlertEvent(
                id=self._ids.new("evt"),
                alert_id=row.id,
                period_id=row.period_id,
                threshold_nanos=row.threshold_nanos,
                spent_nanos=row.posted_nanos,
                created_at=at,
                next_at=at,
            )
            once = insert(EVENTS).values(asdict(event)).on_conflict_do_nothing()
            made += [event] if connection.execute(once).rowcount else []
        return made


def _in_remove(alert_id: str, connection: sa.Connection) -> SpendAlert:
    alert = _one(connection, alert_id)
    connection.execute(sa.delete(EVENTS).where(EVENTS.c.alert_id == alert_id))
    connection.execute(sa.delete(ALERTS).where(ALERTS.c.id == alert_id))
    return alert


def _in_cursor(connection: sa.Connection) -> int:
    return int(connection.scalar(sa.select(CURSOR.c.sequence)) or 0)


def _in_add(scope: str, period_id: str, amount: int, connection: sa.Connection) -> None:
    row = insert(SUMS).values(scope=scope, period_id=period_id, posted_nanos=amount)
    added = row.on_conflict_do_update(
        ["scope", "period_id"], set_={"posted_nanos": SUMS.c.posted_nanos + amount}
    )
    connection.execute(added)


def _in_forget_days(days: list[str], connection: sa.Connection) -> None:
    """Once a day: when the first posting of a new one comes."""
    newest = max(days, default="")
    known = sa.select(sa.func.max(SUMS.c.period_id)).where(sa.func.length(SUMS.c.period_id) == 10)
    if newest and newest > (connection.scalar(known) or ""):
        old = SUMS.c.period_id < oldest_day_kept(newest)
        connection.execute(sa.delete(SUMS).where(sa.func.length(SUMS.c.period_id) == 10, old))


def _in_due(now: float, limit: int, connection: sa.Connection) -> list[Delivery]:
    events = [column.label(f"event_{column.name}") for column in EVENTS.c]
    overdue = sa.or_(EVENTS.c.next_at <= now, EVENTS.c.next_at > now + longest_wait_seconds())
    rows = connection.execute(
        sa.select(ALERTS, *events)
        .join(ALERTS, ALERTS.c.id == EVENTS.c.alert_id)
        .where(ALERTS.c.enabled, overdue)
        .order_by(EVENTS.c.next_at, EVENTS.c.sequence)
    )
    one_per_address: dict[str, Delivery] = {}
    for row in rows:
        if row.webhook_url not in one_per_address:
            one_per_address[row.webhook_url] = Delivery(_event(row, "event_"), _alert(row))
        if len(one_per_address) == limit:
            break
    rows.close()
    return list(one_per_address.values())


def _in_record(event: AlertEvent, connection: sa.Connection) -> None:
    connection.execute(
        sa.update(EVENTS)
        .where(EVENTS.c.id == event.id)
        .values(state=event.state, attempts=event.attempts, next_at=event.next_at)
    )
    if event.state is EventState.REFUSED:
        connection.execute(
            sa.update(ALERTS).where(ALERTS.c.id == event.alert_id).values(enabled=False)
        )


def _one(connection: sa.Connection, alert_id: str) -> SpendAlert:
    row = connection.execute(sa.select(ALERTS).where(ALERTS.c.id == alert_id)).one_or_none()
    if row is None:
        raise KeyError(alert_id)
    return _alert(row)


def _alert(row: sa.Row[Any]) -> SpendAlert:
    return SpendAlert(
        id=row.id,
        organisation_id=row.organisation_id,
        project_id=row.project_id,
        threshold_nanos=row.threshold_nanos,
        webhook_url=row.webhook_url,
        recipients=tuple(row.recipients),
        subject_prefix=row.subject_prefix,
        created_at=row.created_at,
        interval=Period(row.interval),
        enabled=row.enabled,
    )


def _event(row: sa.Row[Any], prefix: str = "") -> AlertEvent:
    fields = row._mapping
    return AlertEvent(
        id=fields[f"{prefix}id"],
        alert_id=fields[f"{prefix}alert_id"],
        period_id=fields[f"{prefix}period_id"],
        threshold_nanos=fields[f"{prefix}threshold_nanos"],
        spent_nanos=fields[f"{prefix}spent_nanos"],
        created_at=fields[f"{prefix}created_at"],
        state=EventState(fields[f"{prefix}state"]),
        attempts=fields[f"{prefix}attempts"],
        next_at=fields[f"{prefix}next_at"],
    )
