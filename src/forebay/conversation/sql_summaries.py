"""Summaries in forebay.db through SQLAlchemy Core.

A summary is a row beside the last item that it covers, so it is found with the past that it is of.

Not here: how a past is read (`sql_turns`), what is forgotten with its items (`sql_rows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import sqlalchemy as sa

from forebay.conversation.contract import Summaries
from forebay.conversation.rules import require_covered, summary_bytes
from forebay.conversation.settings import ConversationSettings
from forebay.conversation.sql_rows import forget_summaries, reserve
from forebay.conversation.sql_tables import SUMMARIES, summary_of
from forebay.conversation.sql_turns import Runner, in_past_rows
from forebay.core.clock import Clock


class SqlSummaries(Summaries):
    """One per process, beside SqlConversations."""

    def __init__(self, runner: Runner, settings: ConversationSettings, clock: Clock) -> None:
        self._runner = runner
        self._settings = settings
        self._clock = clock

    async def store(
        self,
        organisation_id: str,
        text: str,
        covered: Sequence[str],
        *,
        conversation_id: str | None,
        previous_id: str | None,
    ) -> None:
        past = partial(in_past_rows, organisation_id, conversation_id, previous_id)
        now = self._clock.now()

        def work(connection: sa.Connection) -> None:
            rows = past(now, connection)
            first = rows[: len(covered)]
            require_covered([row.id for row in first], covered)
            known = summary_of(rows)
            if known is not None and known.items > len(covered):
                return
            older = [row.sequence for row in first if row.summary is not None]
            forget_summaries(older, connection)
            reserve(organisation_id, summary_bytes(text), now, self._settings, connection)
            values = {
                "item_sequence": first[-1].sequence,
                "organisation_id": organisation_id,
                "item_count": len(covered),
                "text": text,
                "size_bytes": summary_bytes(text),
            }
            connection.execute(sa.insert(SUMMARIES).values(values))

        await self._runner.run(work)
