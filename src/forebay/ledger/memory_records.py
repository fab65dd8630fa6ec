"""The records in memory: the executable specification of the ledger's third contract.

Invariants: those of `contract.py`, as far as a process that checks itself can break them.

Not here: holds, settlements and accounts (`memory`), what is kept (`memory_state`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from forebay.core.records import EngineWindow, Reconciled, Verified
from forebay.core.usage import UsageRow
from forebay.ledger import audit, differences, reports, rules
from forebay.ledger.audit import Link
from forebay.ledger.contract import Records
from forebay.ledger.differences import Money
from forebay.ledger.memory_state import State, Sums


class MemoryRecords(Records):
    """On the state of a `MemoryLedger`."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def outbox(self, after: int, limit: int) -> list[UsageRow]:
        self._state.check_usable()
        reports.check_limit(limit)
        newer = (row for row in self._state.rows if row.sequence > after)
        return [row for row, _ in zip(newer, range(limit), strict=False)]

    async def verify(self) -> Verified:
        self._state.check_usable()
        rows, head = self._state.rows, self._state.head
        found = audit.first_break(rows, self._state.seal)
        last = Link(rows[-1].sequence, rows[-1].hash) if rows else self._state.seal
        return Verified(len(rows), head.sequence, head.hash, found or audit.end_problem(last, head))

    async def reconcile(self) -> Reconciled:
        state = self._state
        state.check_usable()
        windows = state.windows.values()
        return Reconciled(
            differences=differences.listed(self._differences()),
            rows=len(state.rows),
            holds=len(state.held),
            balances=len(self._summed()),
            windows=len(windows),
            flagged_windows=sum(not window.complete for window in windows),
        )

    def _differences(self) -> Iterator[str | None]:
        state = self._state
        for row in state.rows:
            held = state.resolved[row.call_id][1]
            amounts = row.amount_nanos, held.amount_nanos
            name = differences.row_name(row.sequence, row.call_id)
            price = state.price(row.price_version)
            yield differences.of_row(name, row.outcome, row.usage, *amounts, price)
        for held in state.held.values():
            yield differences.of_hold(held)
        summed = self._summed()
        for scope, period_id in sorted(summed.keys() | state.sums.keys()):
            kept = state.sums.get((scope, period_id), Sums())
            found = summed.get((scope, period_id), Money(0, 0))
            money = Money(kept.posted, kept.pending)
            yield from differences.of_balance(scope, period_id, money, found)
        for scope, count in sorted(state.open.items()):
            counted = sum(scope in held.scopes for held in state.held.values())
            yield differences.of_open(scope, count, counted)
        yield differences.of_kept(state.kept_bytes, self._kept_bytes())
        for _, window in sorted(state.windows.items()):
            yield differences.of_window(window)

    def _kept_bytes(self) -> int:
        return sum(
            rules.kept_bytes(known.claim, known.answer)
            for known in self._state.claims.values()
            if known.answer is not None
        )

    def _summed(self) -> dict[tuple[str, str], Money]:
        """Every scope and period anew, from what is sealed, settled and held."""
        posted, pending = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        for (scope, day), nanos in self._state.sealed.items():
            posted[self._place(scope, day)] += nanos
        for row in self._state.rows:
            for scope in (row.organisation_id, row.project_id, row.key_id):
                posted[self._place(scope, rules.day_id(row.created_at))] += row.amount_nanos
        for held in self._state.held.values():
            for scope in held.scopes:
                pending[self._place(scope, rules.day_id(held.created_at))] += held.amount_nanos
        places = posted.keys() | pending.keys()
        return {place: Money(posted[place], pending[place]) for place in places}

    def _place(self, scope: str, day: str) -> tuple[str, str]:
        return scope, rules.period_id(self._state.accounts[scope].period, day)

    async def drop(self, through_sequence: int, hash: str, *, before: str | None = None) -> int:
        state = self._state
        state.check_usable()
        limit = rules.drop_limit(before, state.clock.now())
        if (through_sequence, hash) == state.seal:
            return 0
        going = [row for row in state.rows if row.sequence <= through_sequence]
        last = going[-1] if going else None
        rules.check_drop_end(through_sequence, hash, (last.sequence, last.hash) if last else None)
        young = [r.sequence for r in going if max(r.created_at, r.resolved_at) >= limit]
        rules.check_drop_age(young[0] if young else None, limit)
        for row in going:
            del state.resolved[row.call_id]
            for scope in (row.organisation_id, row.project_id, row.key_id):
                place = scope, rules.day_id(row.created_at)
                state.sealed[place] = state.sealed.get(place, 0) + row.amount_nanos
        state.rows = state.rows[len(going) :]
        state.seal = Link(through_sequence, hash)
        self._forget_windows(limit)
        return len(going)

    def _forget_windows(self, limit: float) -> None:
        for place, window in list(self._state.windows.items()):
            if window.minute_at < limit and differences.of_window(window) is None:
                del self._state.windows[place]

    async def record_window(self, window: EngineWindow) -> None:
        self._state.check_usable()
        differences.check_window(window)
        self._state.windows[window.minute_at, window.engine, window.boot] = window

    async def windows(self, since: float) -> list[EngineWindow]:
        self._state.check_usable()
        return [each for place, each in sorted(self._state.windows.items()) if place[0] >= since]
