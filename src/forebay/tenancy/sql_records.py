"""The journal in forebay.db.

Triggers refuse to change or delete a row of the journal, whoever asks.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

import sqlalchemy as sa

from forebay.tenancy.contract import Change, ChangeQuery, Journal
from forebay.tenancy.sql import Runner
from forebay.tenancy.sql_tables import CHANGES


class SqlJournal(Journal):
    """One per process."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    async def record(self, change: Change) -> None:
        await self._runner.run(partial(_in_record, change))

    async def changes(self, query: ChangeQuery) -> list[Change]:
        return await self._runner.run(partial(_in_changes, query))


def _in_record(change: Change, connection: sa.Connection) -> None:
    connection.execute(sa.insert(CHANGES).values(**asdict(change)))


def _in_changes(query: ChangeQuery, connection: sa.Connection) -> list[Change]:
    table = CHANGES.c
    asked = sa.select(CHANGES).where(table.organisation_id == query.organisation_id)
    if query.after is not None:
        place = (
            sa.select(table.sequence)
            .where(table.id == query.after, table.organisation_id == query.organisation_id)
            .scalar_subquery()
        )
        behind = sa.and_(place.is_(None), table.id < query.after)
        asked = asked.where(sa.or_(table.sequence < place, behind))
    for column, wanted in (
        (table.type, query.types),
        (table.project_id, query.project_ids),
        (table.actor_id, query.actor_ids),
        (table.subject_id, query.subject_ids),
    ):
        if wanted is not None:
            asked = asked.where(column.in_(wanted))
    if query.since is not None:
        asked = asked.where(table.at >= query.since)
    if query.until is not None:
        asked = asked.where(table.at < query.until)
    newest = asked.order_by(table.sequence.desc()).limit(query.limit)
    return [
        Change(
            id=row.id,
            at=row.at,
            organisation_id=row.organisation_id,
            project_id=row.project_id,
            actor_id=row.actor_id,
            type=row.type,
            subject_id=row.subject_id,
            details=row.details,
        )
        for row in connection.execute(newest)
    ]
