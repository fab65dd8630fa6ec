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

from forebay.alerts.contract import Alert, AlertEvent, Alerts, Delivery, EventState, Posting
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
    sa.Column("interval", sa.Text, nullable=False),
    sa.Column("url", sa.Text, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
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
_LASTING = {"id", "organisation_id", "project_id", "created_at"}


class Runner(Protocol):
    """The open database: runs a function in a transaction of its own, off the event loop."""

    async def run(self, work: Callable[[sa.Connection], T]) -> T: ...


class SqlAlerts(Alerts):
    """One per process. Called from the event loop; its functions named `_in_…` run in `Runner`."""

    def __init__(self, runner: Runner, ids: IdSource) -> None:
        self._runner = runner
        self._ids = ids

    async def put(self, alert: Alert, *, at: float) -> Alert:
        return await self._runner.run(partial(self._in_put, alert, at))

    async def remove(self, alert_id: str) -> Alert:
        return await self._runner.run(partial(_in_remove, alert_id))

    async def alerts(self) -> list[Alert]:
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

    def _in_put(self, alert: Alert, at: float, connection: sa.Connection) -> Alert:
        values = {**asdict(alert), "scope": alert.scope}
        changed = {name: value for name, value in asdict(alert).items() if name not in _LASTING}
        connection.execute(
            insert(ALERTS).values(values).on_conflict_do_update(["id"], set_=changed)
        )
        stored = _one(connection, alert.id)
        sums = sa.select(SUMS).where(SUMS.c.scope == stored.scope)
        for row in connection.execute(sums).all():
            self._in_fire(stored, row.period_id, row.posted_nanos, at, connection)
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
            posted = _in_add(scope, period_id, amount, connection)
            watching = sa.select(ALERTS).where(ALERTS.c.scope == scope).order_by(ALERTS.c.sequence)
            for row in connection.execute(watching).all():
                events += self._in_fire(_alert(row), period_id, posted, at, connection)
        return events

    def _in_fire(
        self, alert: Alert, period_id: str, posted: int, at: float, connection: sa.Connection
    ) -> list[AlertEvent]:
        if not fires(alert, period_id, posted):
            return []
        event = AlertEvent(
            self._ids.new("evt"), alert.id, period_id, alert.threshold_nanos, posted, at, next_at=at
        )
        once = insert(EVENTS).values(asdict(event)).on_conflict_do_nothing()
        return [event] if connection.execute(once).rowcount else []


def _in_remove(alert_id: str, connection: sa.Connection) -> Alert:
    alert = _one(connection, alert_id)
    connection.execute(sa.delete(EVENTS).where(EVENTS.c.alert_id == alert_id))
    connection.execute(sa.delete(ALERTS).where(ALERTS.c.id == alert_id))
    return alert


def _in_cursor(connection: sa.Connection) -> int:
    return int(connection.scalar(sa.select(CURSOR.c.sequence)) or 0)


def _in_add(scope: str, period_id: str, amount: int, connection: sa.Connection) -> int:
    """The sum, with this amount in it."""
    row = insert(SUMS).values(scope=scope, period_id=period_id, posted_nanos=amount)
    added = row.on_conflict_do_update(
        ["scope", "period_id"], set_={"posted_nanos": SUMS.c.posted_nanos + amount}
    )
    connection.execute(added)
    place = sa.and_(SUMS.c.scope == scope, SUMS.c.period_id == period_id)
    return int(connection.scalar(sa.select(SUMS.c.posted_nanos).where(place)) or 0)


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
    one_per_url: dict[str, Delivery] = {}
    for row in rows:
        if row.url not in one_per_url:
            one_per_url[row.url] = Delivery(_event(row, "event_"), _alert(row))
        if len(one_per_url) == limit:
            break
    rows.close()
    return list(one_per_url.values())


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


def _one(connection: sa.Connection, alert_id: str) -> Alert:
    row = connection.execute(sa.select(ALERTS).where(ALERTS.c.id == alert_id)).one_or_none()
    if row is None:
        raise KeyError(alert_id)
    return _alert(row)


def _alert(row: sa.Row[Any]) -> Alert:
    return Alert(
        id=row.id,
        organisation_id=row.organisation_id,
        project_id=row.project_id,
        threshold_nanos=row.threshold_nanos,
        interval=Period(row.interval),
        url=row.url,
        created_at=row.created_at,
        since_period=row.since_period,
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
