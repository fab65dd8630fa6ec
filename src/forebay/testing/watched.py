"""A ledger that checks its own invariants while the real rooms use it.

Wraps any ledger: every verb goes through, what it answers is recorded, and the money invariants
L1-L4, L7-L9 and L15 are asserted against the record at once. Simulation asks `check` after each step.

Not here: what the calls should cost (`world.py` compares with what clients and engines saw).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from forebay.core.errors import InsufficientQuota, KeyClaimed
from forebay.core.hold import (
    Account,
    Balance,
    Bill,
    Hold,
    HoldRequest,
    Period,
    Remembered,
    UsageQuery,
)
from forebay.core.money import Price, PriceTerms
from forebay.core.usage import Outcome, UsageRow, UsageSlice, UsageTotal
from forebay.ledger import REMEMBERED_SECONDS, Books, Ledger, Records, amount_nanos
from forebay.ledger.pricing import hold_nanos
from forebay.ledger.rules import day_id

T = TypeVar("T")


def peek(coroutine: Coroutine[Any, Any, T]) -> T:
    """The answer of a coroutine that never waits (memory implementations)."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        answer: T = done.value
        return answer
    coroutine.close()
    raise AssertionError("a memory implementation waited")


def check_audit(records: Records) -> None:
    """L12, and every number computed anew (L1, L3, L11, L15)."""
    assert peek(records.verify()).first_break is None, "L12"
    differences = peek(records.reconcile()).differences
    assert differences == (), f"L1: {differences}"


def _sum(by_day: Counter[str], period_id: str) -> int:
    return sum(nanos for day, nanos in by_day.items() if day.startswith(period_id))


class _PassedOn(Books):
    """Questions that nothing is watched of."""

    _inner: Any

    async def totals(self, query: UsageQuery, *, by: str) -> list[UsageTotal]:
        totals: list[UsageTotal] = await self._inner.totals(query, by=by)
        return totals

    async def slices(self, query: UsageQuery, *, width_seconds: int) -> list[UsageSlice]:
        slices: list[UsageSlice] = await self._inner.slices(query, width_seconds=width_seconds)
        return slices


class WatchedLedger(Ledger, _PassedOn):
    """Records and asserts; answers are the wrapped ledger's (any that has both contracts)."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.records: Records = inner.records
        self.requests: dict[str, HoldRequest] = {}
        self.holds: dict[str, Hold] = {}
        self.rows: dict[str, UsageRow] = {}
        self.attempts: dict[str, int] = {}
        self.watermarks: dict[str, int] = {}
        self._pending: dict[str, Counter[str]] = defaultdict(Counter)  # by scope and UTC day
        self._posted: dict[str, Counter[str]] = defaultdict(Counter)
        self._open: dict[str, int] = defaultdict(int)
        self._changed = False
        self._claims: dict[tuple[str, str], str] = {}
        self._kept: dict[str, bytes] = {}
        self._forgotten: set[str] = set()
        self.a_day_passed = (
            False  # on the wall clock, if only for a moment: all keys may have expired
        )

    async def hold(self, request: HoldRequest) -> Hold:
        try:
            hold: Hold = await self._inner.hold(request)
        except InsufficientQuota:
            await self._check_refusal(request)
            raise
        except KeyClaimed as claimed:
            self._check_remembered(request.scopes.organisation_id, claimed.remembered)
            raise
        self._changed = True
        self._check_claim(request)
        if request.id not in self.holds:
            self.requests[request.id], self.holds[request.id] = request, hold
            self.attempts[request.id] = hold.attempt
            assert request.floor_tokens <= hold.ceiling_tokens <= request.ceiling_tokens
            for scope in request.scopes:
                self._pending[scope][day_id(request.created_at)] += hold.amount_nanos
                self._open[scope] += 1
        return hold

    def _check_claim(self, request: HoldRequest) -> None:
        """L9: whoever had the key before must be forgotten by now."""
        if (claim := request.claim) is None:
            return
        place = request.scopes.organisation_id, claim.key
        before = self.requests.get(self._claims.get(place, ""))
        if before is not None and before.id != request.id:
            aged = request.created_at - before.created_at >= REMEMBERED_SECONDS
            expired = (aged or self.a_day_passed) and before.id in self._kept
            assert expired or before.id in self._forgotten, "L9: claimed twice"
        if request.id not in self.rows:
            self._claims[place] = request.id

    def _check_remembered(self, organisation_id: str, remembered: Remembered) -> None:
        """L9: what is remembered is the claim of that very call, with an answer once it is settled."""
        call_id, claim = remembered.call_id, remembered.claim
        request = self.requests[call_id]
        assert (request.scopes.organisation_id, request.claim) == (organisation_id, claim), (
            "L9, L14"
        )
        assert call_id not in self._forgotten, "L9: remembered although it failed"
        assert remembered.answer == self._kept.get(call_id), "L9: another answer"

    async def _check_refusal(self, request: HoldRequest) -> None:
        """L2: a refusal is right only if some scope could not take even the smallest hold."""
        price: Price = await self._inner.price(request.price_version)
        least = hold_nanos(
            price, request.input_tokens, request.floor_tokens, choices=request.choices
        )
        for scope in request.scopes:
            balance: Balance = await self._inner.balances(scope)
            cap = balance.account.cap_nanos
            spent = balance.posted_nanos + balance.pending_nanos
            if cap is not None and spent + least > cap:
                return
        raise AssertionError(f"L2: {request.id} was refused although it fits")

    async def dispatch(self, hold_id: str, attempt: int) -> None:
        await self._inner.dispatch(hold_id, attempt)
        assert attempt >= self.attempts[hold_id], "L7"
        self.attempts[hold_id] = attempt

    async def adopt(self, hold_id: str, owner: str) -> int:
        attempt: int = await self._inner.adopt(hold_id, owner)
        assert attempt > self.attempts[hold_id], "L7"
        self.attempts[hold_id] = attempt
        return attempt

    async def settle(self, hold_id: str, attempt: int, bill: Bill) -> UsageRow:
        assert attempt <= self.attempts[hold_id], "an attempt nobody dispatched"
        row: UsageRow = await self._inner.settle(hold_id, attempt, bill)
        assert attempt == self.attempts[hold_id], "L7: an older attempt settled"
        assert row.usage.output_tokens <= bill.usage.output_tokens, "L8: more than was reported"
        if row.outcome is Outcome.COMPLETED:
            self._kept[hold_id] = bill.answer
        return self._resolved(row)

    async def release(self, hold_id: str, attempt: int, bill: Bill) -> UsageRow:
        row: UsageRow = await self._inner.release(hold_id, attempt, bill)
        assert attempt == self.attempts[hold_id], "L7: an older attempt released"
        assert row.amount_nanos == 0
        return self._resolved(row)

    async def beat(self, process: str, counter: int, progress: Mapping[str, int]) -> None:
        await self._inner.beat(process, counter, progress)
        self.watermarks.update(progress)

    async def sweep(self, monotonic: float) -> list[UsageRow]:
        rows: list[UsageRow] = await self._inner.sweep(monotonic)
        return [self._resolved(row) for row in rows]

    def _resolved(self, row: UsageRow) -> UsageRow:
        hold, request = self.holds[row.call_id], self.requests[row.call_id]
        assert row.call_id not in self.rows, "L4: a second resolution"
        assert 0 <= row.amount_nanos <= hold.amount_nanos, "L3"
        assert row.usage.output_tokens <= hold.ceiling_tokens * request.choices, "L8"
        if row.outcome in (Outcome.COMPLETED, Outcome.CANCELLED) and row.amount_nanos:
            assert row.amount_nanos == amount_nanos(hold.price, row.usage), "L11"
            assert row.usage.output_tokens >= self.watermarks.get(row.call_id, 0), "L8: watermark"
        self._changed = True
        self.rows[row.call_id] = row
        if row.call_id not in self._kept:
            self._forgotten.add(row.call_id)
        day = day_id(request.created_at)
        for scope in request.scopes:
            self._pending[scope][day] -= hold.amount_nanos
            self._posted[scope][day] += row.amount_nanos
            self._open[scope] -= 1
        return row

    @property
    def unresolved(self) -> list[str]:
        """Hold ids without a resolution."""
        return [id_ for id_ in self.holds if id_ not in self.rows]

    def check_if_changed(self) -> None:
        """`check` unless no verb has answered since the last time."""
        if self._changed:
            self._changed = False
            self.check()

    def check(self) -> None:
        """L1, L2 and L15 for every scope that ever held money."""
        for scope in self._pending:
            balance: Balance = peek(self._inner.balances(scope))
            period = balance.period_id
            assert balance.pending_nanos == _sum(self._pending[scope], period), "L1"
            assert balance.posted_nanos == _sum(self._posted[scope], period), "L1"
            assert balance.open_holds == self._open[scope], "L15"
            spent = balance.posted_nanos + balance.pending_nanos
            high = balance.high_water_nanos
            assert high is None or spent <= high, "L2"

    async def balances(self, scope: str) -> Balance:
        balance: Balance = await self._inner.balances(scope)
        return balance

    async def recall(self, organisation_id: str, key: str) -> Remembered | None:
        remembered: Remembered | None = await self._inner.recall(organisation_id, key)
        if remembered is not None:
            self._check_remembered(organisation_id, remembered)
        return remembered

    async def usage(self, query: UsageQuery) -> list[UsageRow]:
        rows: list[UsageRow] = await self._inner.usage(query)
        return rows

    async def close(self) -> None:
        await self._inner.close()

    async def open_account(self, account: Account) -> bool:
        created: bool = await self._inner.open_account(account)
        return created

    async def set_cap(
        self, scope: str, cap_nanos: int | None, period: Period | None = None
    ) -> None:
        self._changed = True
        await self._inner.set_cap(scope, cap_nanos, period)

    async def set_max_open_holds(self, scope: str, max_open_holds: int | None) -> None:
        await self._inner.set_max_open_holds(scope, max_open_holds)

    async def top_up(self, scope: str, amount_nanos: int, id: str) -> Account:
        account: Account = await self._inner.top_up(scope, amount_nanos, id)
        return account

    async def publish_price(self, terms: PriceTerms) -> Price:
        price: Price = await self._inner.publish_price(terms)
        return price

    async def price(self, version: int) -> Price:
        price: Price = await self._inner.price(version)
        return price
