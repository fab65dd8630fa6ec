"""The ledger's third contract on SQLite: what is exported, audited and archived, beside the calls.

Long work never keeps a call waiting: questions have a thread of their own, and rows are dropped a
thousand at a time, between the transactions of calls. Each such step leaves a whole ledger, with
a seal further on.

Not here: the questions (`sqlite_audits`), what changes a row (`sqlite_verbs`).
"""

from __future__ import annotations

from functools import partial

from forebay.core.clock import Clock
from forebay.core.records import Break, EngineWindow, Reconciled, Verified
from forebay.core.usage import UsageRow
from forebay.ledger import audit, differences, rules, sqlite_audits
from forebay.ledger.audit import Link
from forebay.ledger.contract import Records
from forebay.ledger.sqlite_audits import Ends
from forebay.ledger.sqlite_reader import Reader
from forebay.ledger.sqlite_verbs import Verbs
from forebay.ledger.sqlite_writer import GroupCommit


class SqliteRecords(Records):
    """On the threads and the connections of a `SqliteLedger`, which closes them."""

    def __init__(self, writer: GroupCommit, verbs: Verbs, auditor: Reader, clock: Clock) -> None:
        self._writer = writer
        self._verbs = verbs
        self._auditor = auditor
        self._clock = clock

    async def outbox(self, after: int, limit: int) -> list[UsageRow]:
        return await self._auditor.ask(partial(sqlite_audits.outbox, after=after, limit=limit))

    async def verify(self) -> Verified:
        while (ends := await self._auditor.ask(sqlite_audits.ends)) is not None:
            rows, found = await self._walk(ends)
            if found is None or not await self._was_dropped(ends.seal):
                return Verified(rows, ends.head.sequence, ends.head.hash, found)
        lost = Break(0, "the ledger's own note of its newest row or of its seal was deleted")
        return Verified(0, 0, audit.GENESIS, lost)

    async def _walk(self, ends: Ends) -> tuple[int, Break | None]:
        """From the seal to the row that was the newest when the walk began."""
        rows, last = 0, ends.seal
        if ends.oldest is not None and ends.oldest <= ends.seal.sequence:
            return rows, Break(
                ends.oldest, "it is there, although the seal says that it was dropped"
            )
        through = max(ends.head.sequence, ends.newest or 0)
        while last.sequence < through:
            step = await self._auditor.ask(
                partial(sqlite_audits.follow, before=last, through=through)
            )
            rows += step.rows
            if step.found is not None:
                return rows, step.found
            if step.last == last:
                break
            last = step.last
        return rows, audit.end_problem(last, ends.head)

    async def _was_dropped(self, seal: Link) -> bool:
        """Whether rows left while the walk was under way: then it has to start at the new seal."""
        ends = await self._auditor.ask(sqlite_audits.ends)
        return ends is not None and ends.seal != seal

    async def reconcile(self) -> Reconciled:
        return await self._auditor.ask(sqlite_audits.reconcile)

    async def drop(self, through_sequence: int, hash: str, *, before: str | None = None) -> int:
        limit = rules.drop_limit(before, self._clock.now())
        through = Link(through_sequence, hash)
        check = partial(sqlite_audits.check_drop, through=through, limit=limit)
        if not await self._auditor.ask(check):
            return 0
        dropped = 0
        while gone := await self._writer.submit(partial(self._verbs.seal, through_sequence)):
            dropped += gone
        await self._writer.submit(partial(self._verbs.drop_windows, limit))
        return dropped

    async def record_window(self, window: EngineWindow) -> None:
        differences.check_window(window)
        await self._writer.submit(partial(self._verbs.record_window, window))

    async def windows(self, since: float) -> list[EngineWindow]:
        return await self._auditor.ask(partial(sqlite_audits.windows, since=since))
