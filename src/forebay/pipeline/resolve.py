"""Resolving a hold, whatever the store does: now if it can, else as soon as it can again.

Whoever owns a hold must resolve it exactly once, also when the ledger cannot be written at that
moment; a hold that its living owner gives up on would be open for ever. So a resolution that meets
an unavailable store is tried again until it is stored, in the background.

Not here: what is charged (`interactive.py`, `worker.py`, `keeper.py` say settle or release).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from forebay.core.clock import Spawn
from forebay.core.errors import (
    AlreadyResolved,
    ForebayError,
    StaleAttempt,
    StoreUnavailable,
    UnknownHold,
)
from forebay.core.hold import Bill
from forebay.core.usage import Outcome, UsageRow
from forebay.ledger import Ledger
from forebay.pipeline.report import Reporter

FIRST_DELAY_SECONDS = 0.25
LAST_DELAY_SECONDS = 15.0
# A client is kept waiting for its charge to be stored this often before it is told that we failed.
TRIES = 4
# Why a call that had ended is free: its charge could not be stored before its client was told.
GIVEN_UP = "store_unavailable"

Verb = Callable[[str, int, Bill], Awaitable[UsageRow]]
Hear = Callable[[UsageRow], Awaitable[None]]


class Resolver:
    """Shared by the gateway, worker and keeper roles of a process. `concluded` hears of every call that
    is known to be resolved, before its client does."""

    def __init__(self, ledger: Ledger, spawn: Spawn, report: Reporter, *, concluded: Hear) -> None:
        self._concluded = concluded
        self._ledger = ledger
        self._spawn = spawn
        self._report = report
        self._given_up: set[str] = set()

    async def settle(self, hold_id: str, attempt: int, bill: Bill) -> UsageRow | None:
        """Charge, while somebody waits for the answer. The row, also if it was resolved before.

        None: a newer attempt has the hold, there is none, or the store refused `TRIES` times. In
        that last case StoreUnavailable is raised instead, and the hold is released in the
        background: what cannot be stored before the client is told of a failure is free.
        """
        for number in range(TRIES):
            if number:
                await asyncio.sleep(FIRST_DELAY_SECONDS * 2 ** (number - 1))
                if hold_id in self._given_up:  # it is being released: somebody was told so
                    raise StoreUnavailable("The ledger cannot be written; this call costs nothing.")
            try:
                return await self._once(self._ledger.settle, hold_id, attempt, bill, number > 0)
            except StoreUnavailable:
                continue
        given_up = replace(bill, outcome=Outcome.FAILED, reason=GIVEN_UP)
        self._later(self._ledger.release, hold_id, attempt, given_up)
        raise StoreUnavailable("The ledger cannot be written; this call costs nothing.")

    async def try_settle(self, hold_id: str, attempt: int, bill: Bill) -> UsageRow | None:
        """Charge, for somebody who tries again. As `settle`, but any StoreUnavailable is raised at once
        and changes nothing: an earlier try may have been stored although its answer was lost."""
        return await self._once(self._ledger.settle, hold_id, attempt, bill, again=True)

    async def settle_later(self, hold_id: str, attempt: int, bill: Bill) -> UsageRow | None:
        """Charge; nobody waits. None also if the store refused: then it is tried until stored."""
        return await self._now_or_later(self._ledger.settle, hold_id, attempt, bill)

    async def release(self, hold_id: str, attempt: int, bill: Bill) -> UsageRow | None:
        """Return the whole hold. None also if the store refused: then it is tried until stored."""
        return await self._now_or_later(self._ledger.release, hold_id, attempt, bill)

    async def _now_or_later(
        self, verb: Verb, hold_id: str, attempt: int, bill: Bill
    ) -> UsageRow | None:
        try:
            return await self._once(verb, hold_id, attempt, bill)
        except StoreUnavailable:
            self._later(verb, hold_id, attempt, bill)
            return None

    def _later(self, verb: Verb, hold_id: str, attempt: int, bill: Bill) -> None:
        self._given_up.add(hold_id)
        self._spawn(self._until_stored(verb, hold_id, attempt, bill), name=f"resolve {hold_id}")

    async def _until_stored(self, verb: Verb, hold_id: str, attempt: int, bill: Bill) -> None:
        delay = FIRST_DELAY_SECONDS
        try:
            while True:
                await asyncio.sleep(delay)
                delay = min(delay * 2, LAST_DELAY_SECONDS)
                try:
                    await self._once(verb, hold_id, attempt, bill, again=True)
                    return
                except StoreUnavailable:
                    continue
        finally:
            self._given_up.discard(hold_id)

    async def _once(
        self, verb: Verb, hold_id: str, attempt: int, bill: Bill, again: bool = False
    ) -> UsageRow | None:
        """`again`: an earlier try may have been stored although its answer was lost."""
        try:
            row = await verb(hold_id, attempt, bill)
        except AlreadyResolved as done:
            row = done.row
            await self._concluded(row)
            tried = {bill.outcome, Outcome.COMPLETED if bill.reason == GIVEN_UP else bill.outcome}
            if not again or row.attempt != attempt or row.outcome not in tried:
                return row  # somebody else resolved it, and reported
        except (StaleAttempt, UnknownHold):
            return None
        except ForebayError as fault:
            self._report.log.error("settle_failed", request_id=hold_id, error=str(fault))
            raise
        self._report.resolved(row)
        await self._concluded(row)
        return row
