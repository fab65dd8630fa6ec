"""The ledger in memory: the executable specification of both contracts.

No verb awaits, so each runs to completion on the event loop: that is the atomicity which the
durable backends get from a transaction. Every verb decides (`rules`), then changes the numbers;
nothing is changed by a verb that raises. Asserts cite the invariant that they guard.

Invariants: those of `contract.py`, save that nothing outlives the process (L6 and L13 hold as long
as it does). Usage rows are kept until then: it is for tests, simulation and trying things out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from forebay.core.clock import Clock
from forebay.core.errors import (
    AlreadyResolved,
    KeyClaimed,
    StaleAttempt,
    StoreUnavailable,
    UnknownHold,
)
from forebay.core.hold import Account, Balance, Bill, Hold, HoldRequest, Remembered, UsageQuery
from forebay.core.money import Price, PriceTerms
from forebay.core.usage import Usage, UsageRow, UsageTotal
from forebay.ledger import reports, rules
from forebay.ledger.audit import GENESIS
from forebay.ledger.contract import Books, Ledger
from forebay.ledger.pricing import check_terms
from forebay.ledger.rules import Charge, Held, Place, Standing


@dataclass(slots=True)
class _Sums:
    """One scope's money in one period. high_water = max(cap, posted + pending), or None."""

    posted: int = 0
    pending: int = 0
    high_water: int | None = None

    def follow(self, cap: int | None) -> None:
        """Raise or lower the high-water mark to the cap, or to what is still spoken for (L2)."""
        self.high_water = None if cap is None else max(cap, self.posted + self.pending)

    def check(self) -> None:
        assert self.posted >= 0, "L1"
        assert self.pending >= 0, "L1"
        assert self.high_water is None or self.posted + self.pending <= self.high_water, "L2"


class MemoryLedger(Ledger, Books):
    """Owned by one event loop; safe from any number of its tasks."""

    def __init__(self, clock: Clock, *, answers_bytes: int = rules.KEPT_ANSWER_BYTES) -> None:
        self._clock = clock
        self._answers_bytes = answers_bytes
        self._claims: dict[tuple[str, str], Remembered] = {}
        self._kept_bytes = 0
        self._accounts: dict[str, Account] = {}
        self._open: dict[str, int] = {}
        self._sums: dict[tuple[str, str], _Sums] = {}
        self._prices: list[Price] = []
        self._held: dict[str, Held] = {}
        self._rows: list[UsageRow] = []
        self._resolved: dict[str, UsageRow] = {}
        self._beats: dict[str, tuple[int, dict[str, int]]] = {}
        self._view: rules.View = {}
        self._closed = False

    async def hold(self, request: HoldRequest) -> Hold:
        self._check_usable()
        rules.check_request(request)
        if (known := self._held.get(request.id)) is not None:
            return known.answer()
        if (row := self._resolved.get(request.id)) is not None:
            raise AlreadyResolved(row)
        self._check_claim(request)
        price = self._price(request.price_version)
        day = rules.day_id(request.created_at)
        held = rules.grant(request, price, [self._standing(s, day) for s in request.scopes])
        for scope, period in zip(held.scopes, held.periods, strict=True):
            sums = self._sums.get((scope, period))
            if sums is None:
                sums = _Sums(high_water=self._accounts[scope].cap_nanos)
                self._sums[scope, period] = sums
            sums.pending += held.amount_nanos
            sums.check()
            self._open[scope] += 1
        self._held[held.id] = held
        if (claim := request.claim) is not None:
            self._forget((request.scopes.organisation_id, claim.key))
            self._claims[request.scopes.organisation_id, claim.key] = Remembered(
                request.id, claim, request.created_at, None
            )
        return held.answer()

    def _check_claim(self, request: HoldRequest) -> None:
        if (claim := request.claim) is None:
            return
        remembered = self._claims.get((request.scopes.organisation_id, claim.key))
        if remembered is not None and rules.is_remembered(remembered, request.created_at):
            raise KeyClaimed(remembered)

    def _forget(self, place: tuple[str, str]) -> None:
        remembered = self._claims.pop(place, None)
        if remembered is not None and remembered.answer is not None:
            self._kept_bytes -= rules.kept_bytes(remembered.claim, remembered.answer)

    def _end_claim(self, place: tuple[str, str], answer: bytes | None) -> None:
        """Keep the answer as the newest, and forget the oldest until all fit; or forget the key."""
        claimed = self._claims.pop(place)
        if answer is None:
            return
        self._claims[place] = replace(claimed, answer=answer)
        self._kept_bytes += rules.kept_bytes(claimed.claim, answer)
        while self._kept_bytes > self._answers_bytes:
            self._forget(next(p for p, known in self._claims.items() if known.answer is not None))

    def _standing(self, scope: str, day: str) -> Standing:
        account = self._accounts.get(scope)
        if account is None:
            return Standing(None)
        sums = self._sums.get((scope, rules.period_id(account.period, day)), _Sums())
        return Standing(account, sums.posted, sums.pending, self._open[scope])

    def _live(self, hold_id: str) -> Held:
        if (row := self._resolved.get(hold_id)) is not None:
            raise AlreadyResolved(row)
        if (held := self._held.get(hold_id)) is None:
            raise UnknownHold(f"there is no hold {hold_id}")
        return held

    async def dispatch(self, hold_id: str, attempt: int) -> None:
        self._check_usable()
        held = self._live(hold_id)
        if attempt < held.attempt:
            raise StaleAttempt()
        self._held[hold_id] = replace(held, attempt=attempt)

    async def settle(self, hold_id: str, attempt: int, bill: Bill) -> UsageRow:
        return self._end(hold_id, attempt, bill, rules.charge)

    async def release(self, hold_id: str, attempt: int, bill: Bill) -> UsageRow:
        return self._end(hold_id, attempt, bill, rules.waive)

    def _end(
        self, hold_id: str, attempt: int, bill: Bill, price: Callable[[Held, Usage], Charge]
    ) -> UsageRow:
        self._check_usable()
        held = self._live(hold_id)
        rules.check_attempt(held, attempt)
        return self._resolve(held, bill, price(held, bill.usage))

    def _resolve(self, held: Held, bill: Bill, charged: Charge) -> UsageRow:
        previous = self._rows[-1].hash if self._rows else GENESIS
        place = Place(len(self._rows) + 1, previous, self._clock.now())
        row = rules.resolution(held, bill, charged, place)
        for scope, period in zip(held.scopes, held.periods, strict=True):
            sums = self._sums[scope, period]
            sums.pending -= held.amount_nanos
            sums.posted += charged.amount_nanos
            sums.follow(self._accounts[scope].cap_nanos)
            sums.check()
            self._open[scope] -= 1
            assert self._open[scope] >= 0, "L15"
        del self._held[held.id]
        self._rows.append(row)
        self._resolved[held.id] = row
        if held.claim_key is not None:
            kept = bill.answer if rules.keeps_answer(bill, charged) else None
            self._end_claim((held.scopes.organisation_id, held.claim_key), kept)
        return row

    async def beat(self, process: str, counter: int, progress: Mapping[str, int]) -> None:
        self._check_usable()
        rules.check_progress(progress)
        self._beats[process] = (counter, dict(progress))

    async def sweep(self, monotonic: float) -> list[UsageRow]:
        self._check_usable()
        counters: dict[str, int | None] = {held.owner: None for held in self._held.values()}
        counters.update({process: counter for process, (counter, _) in self._beats.items()})
        dead, self._view = rules.judge(self._view, counters, monotonic)
        rows: list[UsageRow] = []
        for process in dead:
            _, progress = self._beats.pop(process, (0, {}))
            for held in [h for h in self._held.values() if h.owner == process]:
                bill, charged = rules.owner_died(held, progress.get(held.id, 0))
                rows.append(self._resolve(held, bill, charged))
        self._forget_expired()
        return rows

    def _forget_expired(self) -> None:
        now = self._clock.now()
        expired = (p for p, known in self._claims.items() if not rules.is_remembered(known, now))
        oldest = sorted(expired, key=lambda place: self._claims[place].claimed_at)
        for place in oldest[: rules.FORGOTTEN_PER_SWEEP]:
            self._forget(place)

    async def balances(self, scope: str) -> Balance:
        self._check_usable()
        account = self._accounts.get(scope)
        if account is None:
            return reports.no_balance(scope)
        period = rules.period_id(account.period, rules.day_id(self._clock.now()))
        sums = self._sums.get((scope, period)) or _Sums(high_water=account.cap_nanos)
        return Balance(
            account, period, sums.posted, sums.pending, sums.high_water, self._open[scope]
        )

    async def recall(self, organisation_id: str, key: str) -> Remembered | None:
        self._check_usable()
        remembered = self._claims.get((organisation_id, key))
        if remembered is None or not rules.is_remembered(remembered, self._clock.now()):
            return None
        return remembered

    async def usage(self, query: UsageQuery) -> list[UsageRow]:
        self._check_usable()
        reports.check_query(query)
        return [row for row, _ in zip(self._matching(query), range(query.limit), strict=False)]

    def _matching(self, query: UsageQuery) -> Iterator[UsageRow]:
        for row in reversed(self._rows):
            if reports.matches(query, row):
                yield row

    async def totals(self, query: UsageQuery, *, by: str) -> list[UsageTotal]:
        self._check_usable()
        reports.check_query(query)
        reports.check_group(by)
        totals: dict[str, UsageTotal] = {}
        for row in self._matching(query):
            group = reports.group_of(row, by)
            totals[group] = reports.added(totals.get(group, UsageTotal(group, 0, 0, 0, 0, 0)), row)
        largest = sorted(totals.values(), key=lambda total: (-total.amount_nanos, total.group))
        return largest[: query.limit]

    async def open_account(self, account: Account) -> bool:
        self._check_usable()
        rules.check_account(account)
        if account.scope in self._accounts:
            return False
        self._accounts[account.scope] = account
        self._open[account.scope] = 0
        return True

    async def set_cap(self, scope: str, cap_nanos: int | None) -> None:
        self._check_usable()
        rules.check_cap(cap_nanos)
        if scope not in self._accounts:
            raise KeyError(f"{scope} has no account")
        self._accounts[scope] = replace(self._accounts[scope], cap_nanos=cap_nanos)
        for (owner, _), sums in self._sums.items():
            if owner == scope:
                sums.follow(cap_nanos)

    async def publish_price(self, terms: PriceTerms) -> Price:
        self._check_usable()
        check_terms(terms)
        for price in reversed(self._prices):
            if (price.terms.model, price.terms.lane) == (terms.model, terms.lane):
                if price.terms == terms:
                    return price
                break
        price = Price(len(self._prices) + 1, terms)
        self._prices.append(price)
        return price

    async def price(self, version: int) -> Price:
        self._check_usable()
        return self._price(version)

    def _price(self, version: int) -> Price:
        if not 1 <= version <= len(self._prices):
            raise KeyError(f"price version {version} was never published")
        return self._prices[version - 1]

    async def close(self) -> None:
        self._closed = True

    def _check_usable(self) -> None:
        if self._closed:
            raise StoreUnavailable("The ledger is closed; nothing was charged.")
