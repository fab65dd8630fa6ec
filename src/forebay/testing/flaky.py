"""Stores that are slow and fail now and then, before or after they have done what was asked.

They wrap any ledger, and any store of turns, of their logs, of summaries, or of batches. Each verb may wait a
little; some raise StoreUnavailable, half of those although the operation took effect: an answer that was
lost (not of holds, whose contract rules it out). Opening accounts and prices never fails.

Not here: what must hold all the same (`watched.py`, `world.py`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, TypeVar

from forebay.batch import Batches, Learnt, Listing
from forebay.conversation import Summaries, TurnLogs, Turns
from forebay.core.batch import Answered, Batch, BatchState, Item, Place, Refused
from forebay.core.dialogue import Ending, Past, Pending, Said, Turn
from forebay.core.errors import StoreUnavailable
from forebay.core.hold import Balance, Bill, Hold, HoldRequest, Remembered, UsageQuery
from forebay.core.usage import UsageRow
from forebay.ledger import Ledger

T = TypeVar("T")


class _Flaky:
    """`share` of the verbs fail; between two moments of `stalls` (loop time) nothing is answered."""

    def __init__(
        self,
        inner: Any,
        rng: random.Random,
        *,
        share: float,
        stalls: tuple[float, float] | None = None,
    ) -> None:
        self._inner = inner
        self._random = rng
        self._share = share
        self._stalls = stalls or (0.0, 0.0)

    async def _do(self, operation: Awaitable[T], *, lost: float = 0.5) -> T:
        """`lost`: of the failures, how many took effect."""
        chance = self._random.random
        now, (start, end) = asyncio.get_running_loop().time(), self._stalls
        try:
            if start <= now < end:
                await asyncio.sleep(end - now)
            if chance() < 0.5:
                await asyncio.sleep(chance() / 50)
        except asyncio.CancelledError:
            operation.close()  # type: ignore[attr-defined]
            raise
        if chance() < self._share:
            if chance() < lost:
                await operation
            else:
                operation.close()  # type: ignore[attr-defined]
            raise StoreUnavailable("simulated")
        return await operation


class FlakyLedger(_Flaky, Ledger):
    """A ledger like that."""

    async def hold(self, request: HoldRequest) -> Hold:
        return await self._do(self._inner.hold(request), lost=0.0)

    async def dispatch(self, hold_id: str, attempt: int) -> None:
        await self._do(self._inner.dispatch(hold_id, attempt))

    async def adopt(self, hold_id: str, owner: str) -> int:
        return await self._do(self._inner.adopt(hold_id, owner))

    async def settle(self, hold_id: str, attempt: int, bill: Bill) -> UsageRow:
        return await self._do(self._inner.settle(hold_id, attempt, bill))

    async def release(self, hold_id: str, attempt: int, bill: Bill) -> UsageRow:
        return await self._do(self._inner.release(hold_id, attempt, bill))

    async def beat(self, process: str, counter: int, progress: Mapping[str, int]) -> None:
        await self._do(self._inner.beat(process, counter, progress))

    async def sweep(self, monotonic: float) -> list[UsageRow]:
        return await self._do(self._inner.sweep(monotonic))

    async def balances(self, scope: str) -> Balance:
        return await self._do(self._inner.balances(scope))

    async def recall(self, organisation_id: str, key: str) -> Remembered | None:
        return await self._do(self._inner.recall(organisation_id, key))

    async def usage(self, query: UsageQuery) -> list[UsageRow]:
        return await self._do(self._inner.usage(query))

    async def close(self) -> None:
        await self._inner.close()


class FlakyTurns(_Flaky, Turns):
    """A store of turns like that."""

    async def past(
        self, organisation_id: str, *, conversation_id: str | None, previous_id: str | None
    ) -> Past:
        where = {"conversation_id": conversation_id, "previous_id": previous_id}
        return await self._do(self._inner.past(organisation_id, **where))

    async def begin(self, turn: Turn, *, revision: int = 0) -> None:
        await self._do(self._inner.begin(turn, revision=revision))

    async def keep(self, turn_id: str, attempt: int, said: Said) -> None:
        await self._do(self._inner.keep(turn_id, attempt, said))

    async def show(self, turn_id: str) -> None:
        await self._do(self._inner.show(turn_id))

    async def drop(self, turn_id: str, ending: Ending | None = None) -> None:
        await self._do(self._inner.drop(turn_id, ending))

    async def find(self, organisation_id: str, turn_id: str) -> Turn:
        return await self._do(self._inner.find(organisation_id, turn_id))

    async def delete(self, organisation_id: str, turn_id: str) -> None:
        await self._do(self._inner.delete(organisation_id, turn_id))

    async def sweep(self) -> list[Pending]:
        return await self._do(self._inner.sweep())


class FlakyTurnLogs(_Flaky, TurnLogs):
    """A store of their logs like that."""

    async def unfinished(self) -> list[Turn]:
        return await self._do(self._inner.unfinished())

    async def append(self, turn_id: str, position: int, events: bytes) -> None:
        await self._do(self._inner.append(turn_id, position, events))

    async def read(self, turn_id: str) -> list[bytes]:
        return await self._do(self._inner.read(turn_id))


class FlakyBatches(_Flaky, Batches):
    """A store of batches like that."""

    async def create(self, batch: Batch) -> Batch:
        return await self._do(self._inner.create(batch))

    async def find(self, organisation_id: str, id: str) -> Batch:
        return await self._do(self._inner.find(organisation_id, id))

    async def by_key(self, organisation_id: str, key: str) -> Batch | None:
        return await self._do(self._inner.by_key(organisation_id, key))

    async def page(self, organisation_id: str, listing: Listing) -> list[Batch]:
        return await self._do(self._inner.page(organisation_id, listing))

    async def unfinished(self) -> list[Batch]:
        return await self._do(self._inner.unfinished())

    async def advance(
        self, batch_id: str, to: BatchState, at: float, learnt: Learnt | None = None
    ) -> Batch:
        return await self._do(self._inner.advance(batch_id, to, at, learnt))

    async def open(self, places: Sequence[Place]) -> None:
        await self._do(self._inner.open(places))

    async def keep(self, place: Place, attempt: int, answer: bytes) -> None:
        await self._do(self._inner.keep(place, attempt, answer))

    async def tell(self, place: Place, outcome: Answered | Refused) -> bool:
        return await self._do(self._inner.tell(place, outcome))

    async def items(self, batch_id: str, after: int, limit: int) -> list[Item]:
        return await self._do(self._inner.items(batch_id, after, limit))

    async def pending(self) -> list[Place]:
        return await self._do(self._inner.pending())

    async def forget_items(self, limit: int) -> int:
        return await self._do(self._inner.forget_items(limit))


class FlakySummaries(_Flaky, Summaries):
    """A store of summaries like that."""

    async def store(
        self,
        organisation_id: str,
        text: str,
        covered: Sequence[str],
        *,
        conversation_id: str | None,
        previous_id: str | None,
    ) -> None:
        where = {"conversation_id": conversation_id, "previous_id": previous_id}
        await self._do(self._inner.store(organisation_id, text, covered, **where))
