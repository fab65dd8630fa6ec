"""What an auditor may do with the books: verify, reconcile, export, archive. One function per verb.

Arguments and answers are plain data, as those of `administration`. Rows leave in pages, so that no
answer grows with the ledger.

Not here: files (`forebay.cli`), how a page of rows is verified by others (`forebay.ledger.archive`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import takewhile
from typing import Any

from forebay.core.clock import Clock
from forebay.core.errors import InvalidRequest
from forebay.core.records import EngineWindow
from forebay.core.usage import UsageRow
from forebay.ledger import Records, archived, drop_limit

PAGE_ROWS = 1_000
SHOWN_WINDOWS = 20


class Bookkeeping:
    """One per data directory, used by whoever holds its lock."""

    def __init__(self, records: Records, clock: Clock) -> None:
        self._records = records
        self._clock = clock

    async def verify(self) -> dict[str, Any]:
        """Walk the audit chain (L12): rows, the head, the first break or None."""
        return asdict(await self._records.verify())

    async def reconcile(self) -> dict[str, Any]:
        """Every difference as a sentence, what was compared, and the newest flagged windows."""
        found = await self._records.reconcile()
        windows = await self._records.windows(0.0) if found.flagged_windows else []
        flagged = [_flagged(window) for window in windows if not window.complete]
        return {**asdict(found), "flagged": flagged[-SHOWN_WINDOWS:]}

    async def outbox(self, after: int = 0, limit: int = PAGE_ROWS) -> list[dict[str, Any]]:
        """The rows behind this sequence, oldest first, each with its link; empty: no more."""
        return [archived(row) for row in await self._page(after, limit)]

    async def archivable(
        self, before: str, after: int = 0, limit: int = PAGE_ROWS
    ) -> list[dict[str, Any]]:
        """The same of the rows that `drop` would take, up to the first one that has to stay."""
        with _refusing("before"):
            day = drop_limit(before, self._clock.now())

        def is_over(row: UsageRow) -> bool:
            return max(row.created_at, row.resolved_at) < day

        return [archived(row) for row in takewhile(is_over, await self._page(after, limit))]

    async def drop(self, before: str, through_sequence: int, hash: str) -> dict[str, Any]:
        """Take archived rows out of the ledger. The last one's hash says that they are these."""
        with _refusing("through_sequence"):
            dropped = await self._records.drop(through_sequence, hash, before=before)
        return {"dropped": dropped}

    async def _page(self, after: int, limit: int) -> list[UsageRow]:
        if not 0 <= after < 2**63 or not 1 <= limit <= PAGE_ROWS:
            raise InvalidRequest(
                f"A page is 1 to {PAGE_ROWS} rows behind a sequence, not {limit} behind {after}.",
                param="limit",
            )
        return await self._records.outbox(after, limit)


@contextmanager
def _refusing(param: str) -> Iterator[None]:
    """The ledger's own words, to whoever asked."""
    try:
        yield
    except ValueError as refused:
        sentence = str(refused)
        raise InvalidRequest(f"{sentence[:1].upper()}{sentence[1:]}.", param=param) from None


def _flagged(window: EngineWindow) -> dict[str, Any]:
    return {
        "engine": window.engine,
        "minute_at": window.minute_at,
        "engine_tokens": window.engine_tokens,
        "received_tokens": window.received_tokens,
        "discarded_tokens": window.discarded_tokens,
    }
