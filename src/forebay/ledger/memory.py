"""The ledger in memory: the executable specification of its contracts.

No verb awaits, so each runs to completion on the event loop: that is the atomicity which the
durable backends get from a transaction. Every verb decides (`rules`), then changes the numbers;
nothing is changed by a verb that raises. Asserts cite the invariant that they guard.

Invariants: those of `contract.py`, save that nothing outlives the process (L6 and L13 hold as long
as it does). Usage rows are kept until then: it is for tests, simulation and trying things out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from forebay.core.clock import Clock
from forebay.core.errors import (
    AlreadyResolved,
    KeyClaimed,
    StaleAttempt,
    UnknownHold,
)
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
from forebay.core.usage import Usage, UsageRow, UsageSlice, UsageTotal
from forebay.ledger import reports, rules
from forebay.ledger.audit import Link
from forebay.ledger.contract import Books, Ledger
from forebay.ledger.memory_records import MemoryRecords
from forebay.ledger.memory_state import State, Sums
from forebay.ledger.pricing import check_terms
from forebay.ledger.rules import Charge, Held, Place, Standing


class MemoryLedger(Ledger, Books):
    """Owned by one event loop; safe from any number of its tasks."""

    def __init__(self, clock: Clock, *, answers_bytes: int = rules.KEPT_ANSWER_BYTES) -> None:
        self._state = State(clock)
        self.records = MemoryRecords(self._state)
        self._answers_bytes = answers_bytes
        self._credits: dict[str, tuple[str, int]] = {}
        self._beats: dict[str, tuple[int, dict[str, int]]] = {}
        self._view: rules.View = {}

    async def hold(self, request: HoldRequest) -> Hold:
        self._state.check_usable()
        rules.check_request(request)
        if (known := self._state.held.get(request.id)) is not None:
            return known.answer()
        if (resolved := self._state.resolved.get(request.id)) is not None:
            raise AlreadyResolved(resolved[0])
        self._check_claim(request)
        price = self._state.price(request.price_version)
        day = rules.day_id(request.created_at)
        held = rules.grant(request, price, [self._standing(s, day) for s in request.scopes])
        for scope, period in zip(held.scopes, held.periods, strict=True):
            sums = self._state.sums.get((scope, period))
            if sums is None:
                sums = Sums(high_water=self._state.accounts[scope].cap_nanos)
                self._state.sums[scope, period] = sums
            sums.pending += held.amount_nanos
            sums.check()
            self._state.open[scope] += 1
        self._state.held[held.id] = held
        if (claim := request.claim) is not None:
            self._forget((request.scopes.organisation_id, claim.key))
            self._state.claims[request.scopes.organisation_id, claim.key] = Remembered(
                request.id, claim, request.created_at, None
            )
        return held.answer()

    def _check_claim(self, request: HoldRequest) -> None:
        if (claim := request.claim) is None:
            return
        remembered = self._state.claims.get((request.scopes.organisation_id, claim.key))
        if remembered is not None and rules.is_remembered(remembered, request.created_at):
            raise KeyClaimed(remembered)

    def _forget(self, place: tuple[str, str]) -> None:
        remembered = self._state.claims.pop(place, None)
        if remembered is not None and remembered.answer is not None:
            self._state.kept_bytes -= rules.kept_bytes(remembered.claim, remembered.answer)

    def _end_claim(self, place: tuple[str, str], answer: bytes | None) -> None:
        """Keep the answer as the newest, and forget the oldest until all fit; or forget the key."""
        claimed = self._state.claims.pop(place)
        if answer is None:
            return
        self._state.claims[place] = replace(claimed, answer=answer)
        self._state.kept_bytes += rules.kept_bytes(claimed.claim, answer)
        while self._state.kept_bytes > self._answers_bytes:
            self._forget(
                next(p for p, known in self._state.claims.items() if known.answer is not None)
            )

    def _standing(self, scope: str, day: str) -> Standing:
        account = self._state.accounts.get(scope)
        if account is None:
            return Standing(None)
        sums = self._state.sums.get((scope, rules.period_id(account.period, day)), Sums())
        return Standing(account, sums.posted, sums.pending, self._state.open[scope])

    def _live(self, hold_id: str) -> Held:
        if (resolved := self._state.resolved.get(hold_id)) is not None:
            raise AlreadyResolved(resolved[0])
        if (held := self._state.held.get(hold_id)) is None:
            raise UnknownHold(f"there is no hold {hold_id}")
        return held

    async def dispatch(self, hold_id: str, attempt: int) -> None:
        self._state.check_usable()
        held = self._live(hold_id)
        if attempt < held.attempt:
            raise StaleAttempt()
        self._state.held[hold_id] = replace(held, attempt=attempt)

    async def adopt(self, hold_id: str, owner: str) -> int:
        self._state.check_usable()
        held = self._live(hold_id)
        attempt = held.attempt + 1
        self._state.held[hold_id] = replace(held, attempt=attempt, owner=owner)
        return attempt

    async def settle(self, hold_id: str, attempt: int, bill: Bill) -> UsageRow:
        return self._end(hold_id, attempt, bill, rules.charge)

    async def release(self, hold_id: str, attempt: int, bill: Bill) -> UsageRow:
        return self._end(hold_id, attempt, bill, rules.waive)

    def _end(
        self, hold_id: str, attempt: int, bill: Bill, price: Callable[[Held, Usage], Charge]
    ) -> UsageRow:
        self._state.check_usable()
        held = self._live(hold_id)
        rules.check_attempt(held, attempt)
        return self._resolve(held, bill, price(held, bill.usage))

    def _resolve(self, held: Held, bill: Bill, charged: Charge) -> UsageRow:
        head = self._state.head
        place = Place(head.sequence + 1, head.hash, self._state.clock.now())
        row = rules.resolution(held, bill, charged, place)
        for scope, period in zip(held.scopes, held.periods, strict=True):
            sums = self._state.sums[scope, period]
            sums.pending -= held.amount_nanos
            sums.posted += charged.amount_nanos
            sums.follow(self._state.accounts[scope].cap_nanos)
            sums.check()
            self._state.open[scope] -= 1
            assert self._state.open[scope] >= 0, "L15"
        del self._state.held[held.id]
        self._state.rows.append(row)
        self._state.resolved[held.id] = (row, held)
        self._state.head = Link(row.sequence, row.hash)
        if held.claim_key is not None:
            kept = bill.answer if rules.keeps_answer(bill, charged) else None
            self._end_claim((held.scopes.organisation_id, held.claim_key), kept)
        return row

    async def beat(self, process: str, counter: int, progress: Mapping[str, int]) -> None:
        self._state.check_usable()
        rules.check_progress(progress)
        self._beats[process] = (counter, dict(progress))

    async def sweep(self, monotonic: float) -> list[UsageRow]:
        self._state.check_usable()
        counters: dict[str, int | None] = {held.owner: None for held in self._state.held.values()}
        counters.update({process: counter for process, (counter, _) in self._beats.items()})
        dead, self._view = rules.judge(self._view, counters, monotonic)
        rows: list[UsageRow] = []
        for process in dead:
            _, progress = self._beats.pop(process, (0, {}))
            for held in [h for h in self._state.held.values() if h.owner == process]:
                bill, charged = rules.owner_died(held, progress.get(held.id, 0))
                rows.append(self._resolve(held, bill, charged))
        self._forget_expired()
        return rows

    def _forget_expired(self) -> None:
        now = self._state.clock.now()
        expired = (
            p for p, known in self._state.claims.items() if not rules.is_remembered(known, now)
        )
        oldest = sorted(expired, key=lambda place: self._state.claims[place].claimed_at)
        for place in oldest[: rules.FORGOTTEN_PER_SWEEP]:
            self._forget(place)

    async def balances(self, scope: str) -> Balance:
        self._state.check_usable()
        account = self._state.accounts.get(scope)
        if account is None:
            return reports.no_balance(scope)
        period = rules.period_id(account.period, rules.day_id(self._state.clock.now()))
        sums = self._state.sums.get((scope, period)) or Sums(high_water=account.cap_nanos)
        return Balance(
            account, period, sums.posted, sums.pending, sums.high_water, self._state.open[scope]
        )

    async def recall(self, organisation_id: str, key: str) -> Remembered | None:
        self._state.check_usable()
        remembered = self._state.claims.get((organisation_id, key))
        if remembered is None or not rules.is_remembered(remembered, self._state.clock.now()):
            return None
        return remembered

    async def usage(self, query: UsageQuery) -> list[UsageRow]:
        self._state.check_usable()
        reports.check_query(query)
        return [row for row, _ in zip(self._matching(query), range(query.limit), strict=False)]

    def _matching(self, query: UsageQuery) -> Iterator[UsageRow]:
        for row in reversed(self._state.rows):
            if reports.matches(query, row):
                yield row

    async def totals(self, query: UsageQuery, *, by: str) -> list[UsageTotal]:
        self._state.check_usable()
        reports.check_query(query)
        reports.check_group(by)
        totals: dict[str, UsageTotal] = {}
        for row in self._matching(query):
            group = reports.group_of(row, by)
            totals[group] = reports.added(totals.get(group, UsageTotal(group, 0, 0, 0, 0, 0)), row)
        largest = sorted(totals.values(), key=lambda total: (-total.amount_nanos, total.group))
        return largest[: query.limit]

    async def slices(self, query: UsageQuery, *, width_seconds: int) -> list[UsageSlice]:
        self._state.check_usable()
        slices: dict[tuple[int, str, str, str], UsageSlice] = {}
        for row in self._matching(query):
            empty = reports.slice_of(row, width_seconds)
            key = (empty.start, empty.key_id, empty.model, empty.lane.value)
            slices[key] = reports.with_row(slices.get(key, empty), row)
        return [slices[key] for key in sorted(slices)]

    async def open_account(self, account: Account) -> bool:
        self._state.check_usable()
        rules.check_account(account)
        if account.scope in self._state.accounts:
            return False
        self._state.accounts[account.scope] = account
        self._state.open[account.scope] = 0
        return True

    async def set_cap(
        self, scope: str, cap_nanos: int | None, period: Period | None = None
    ) -> None:
        self._state.check_usable()
        rules.check_cap(cap_nanos)
        account = self._account(scope)
        if period is not None and period is not account.period:
            self._start_period(scope, period)
        self._limit(replace(account, cap_nanos=cap_nanos, period=period or account.period))

    def _account(self, scope: str) -> Account:
        if scope not in self._state.accounts:
            raise KeyError(f"{scope} has no account")
        return self._state.accounts[scope]

    def _limit(self, account: Account) -> None:
        self._state.accounts[account.scope] = account
        for (owner, _), sums in self._state.sums.items():
            if owner == account.scope:
                sums.follow(account.cap_nanos)

    def _start_period(self, scope: str, period: Period) -> None:
        """Make the scope's balances of this period; its holds move into them (L1)."""
        self._state.sums = {
            place: sums for place, sums in self._state.sums.items() if place[0] != scope
        }
        for (owner, day), nanos in self._state.sealed.items():
            if owner == scope:
                self._sums_of(scope, period, day).posted += nanos
        for row in self._state.rows:
            if scope in (row.organisation_id, row.project_id, row.key_id):
                self._sums_of(
                    scope, period, rules.day_id(row.created_at)
                ).posted += row.amount_nanos
        for held in list(self._state.held.values()):
            if scope in held.scopes:
                self._sums_of(
                    scope, period, rules.day_id(held.created_at)
                ).pending += held.amount_nanos
                self._state.held[held.id] = rules.moved(held, scope, period)

    def _sums_of(self, scope: str, period: Period, day: str) -> Sums:
        return self._state.sums.setdefault((scope, rules.period_id(period, day)), Sums())

    async def set_max_open_holds(self, scope: str, max_open_holds: int | None) -> None:
        self._state.check_usable()
        rules.check_max_open(max_open_holds)
        self._state.accounts[scope] = replace(self._account(scope), max_open_holds=max_open_holds)

    async def top_up(self, scope: str, amount_nanos: int, id: str) -> Account:
        self._state.check_usable()
        rules.check_top_up(amount_nanos, id)
        account = self._account(scope)
        if (known := self._credits.get(id)) is not None:
            rules.check_same_top_up(id, known, (scope, amount_nanos))
            return account
        total = self._state.sums.get((scope, ""), Sums())
        spoken_for = total.posted + total.pending
        raised = rules.topped_up(account, amount_nanos, spoken_for=spoken_for)
        self._credits[id] = (scope, amount_nanos)
        self._limit(raised)
        return raised

    async def publish_price(self, terms: PriceTerms) -> Price:
        self._state.check_usable()
        check_terms(terms)
        for price in reversed(self._state.prices):
            if (price.terms.model, price.terms.lane) == (terms.model, terms.lane):
                if price.terms == terms:
                    return price
                break
        price = Price(len(self._state.prices) + 1, terms)
        self._state.prices.append(price)
        return price

    async def price(self, version: int) -> Price:
        self._state.check_usable()
        return self._state.price(version)

    async def close(self) -> None:
        self._state.closed = True
