"""What background turns need to outlive their process, in forebay.db: one transaction per verb.

Not here: the turns themselves (`sql_turns`), the tables (`sql_tables`).
"""

from __future__ import annotations

from functools import partial

import sqlalchemy as sa

from forebay.conversation.contract import TurnLogs
from forebay.conversation.sql_rows import count
from forebay.conversation.sql_tables import EVERY_TURN, IS_PENDING, ITEMS, TURN_LOGS, TURNS, turn_of
from forebay.conversation.sql_turns import Runner, in_pending_row, in_turn_row, lives
from forebay.core.clock import Clock
from forebay.core.dialogue import Turn
from forebay.core.errors import StaleAttempt


class SqlTurnLogs(TurnLogs):
    """One per process, beside SqlTurns."""

    def __init__(self, runner: Runner, clock: Clock) -> None:
        self._runner = runner
        self._clock = clock

    async def unfinished(self) -> list[Turn]:
        return await self._runner.run(partial(_in_unfinished, self._clock.now()))

    async def append(self, turn_id: str, position: int, events: bytes) -> None:
        now = self._clock.now()
        await self._runner.run(partial(_in_append, turn_id, position, events, now))

    async def read(self, turn_id: str) -> list[bytes]:
        return await self._runner.run(partial(_in_read, turn_id, self._clock.now()))


def _in_unfinished(now: float, connection: sa.Connection) -> list[Turn]:
    chosen = EVERY_TURN.where(IS_PENDING, TURNS.c.background).order_by(TURNS.c.sequence)
    turns = []
    for row in connection.execute(chosen).all():
        if lives(row, now):
            items = sa.select(ITEMS).where(ITEMS.c.turn_id == row.id).order_by(ITEMS.c.sequence)
            turns.append(turn_of(row, connection.execute(items)))
    return turns


def _in_append(
    turn_id: str, position: int, events: bytes, now: float, connection: sa.Connection
) -> None:
    row = in_pending_row(turn_id, now, connection)
    if row is None:
        raise KeyError(turn_id)
    mine = TURN_LOGS.c.turn_id == turn_id
    at = sa.select(TURN_LOGS.c.events).where(mine, TURN_LOGS.c.position == position)
    if connection.scalar(at) == events:
        return
    parts = sa.select(sa.func.count()).where(mine)
    if connection.scalar(parts) != position:
        raise StaleAttempt
    part = {"turn_id": turn_id, "position": position, "events": events}
    connection.execute(sa.insert(TURN_LOGS).values(part))
    longer = sa.update(TURNS).where(TURNS.c.id == turn_id)
    connection.execute(longer.values(own_bytes=TURNS.c.own_bytes + len(events)))
    count(row.organisation_id, len(events), connection)


def _in_read(turn_id: str, now: float, connection: sa.Connection) -> list[bytes]:
    row = in_turn_row(turn_id, connection)
    if row is None or not lives(row, now):
        return []
    mine = sa.select(TURN_LOGS.c.events).where(TURN_LOGS.c.turn_id == turn_id)
    return list(connection.scalars(mine.order_by(TURN_LOGS.c.position)))
