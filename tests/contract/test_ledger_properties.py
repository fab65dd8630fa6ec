"""The money invariants over random histories, against books that are kept anew and much more simply.

A history: calls of two organisations are held, dispatched again, settled and released; what is asked
is delivered twice, late, or in another order; caps fall below what is spoken for (fault 86), change
their period and are topped up; the wall clock crosses midnights and months (fault 85) and jumps by a
day, to and fro; owners die; rows are archived. After each step every balance must be the sum of what
happened.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay.core.errors import (
    AlreadyResolved,
    InsufficientQuota,
    KeyClaimed,
    StaleAttempt,
    TooManyOpenCalls,
    UnknownHold,
)
from forebay.core.hold import Account, Balance, Bill, Claim, Hold, HoldRequest, Period, UsageQuery
from forebay.core.job import Lane
from forebay.core.money import PriceTerms
from forebay.core.principal import Scopes
from forebay.core.usage import Outcome, Usage, UsageRow
from forebay.ledger import REMEMBERED_SECONDS, amount_nanos
from forebay.ledger.memory import MemoryLedger
from forebay.ledger.pricing import hold_nanos
from forebay.ledger.rules import day_id
from forebay.ledger.sqlite import SqliteLedger
from forebay.testing.clock import FakeClock
from forebay.testing.contracts.ledger import at

DAY = 86_400.0
CALLERS = [
    Scopes("org_1", "prj_1", "key_1"),
    Scopes("org_1", "prj_1", "key_2"),
    Scopes("org_1", "prj_2", "key_3"),
    Scopes("org_2", "prj_3", "key_4"),
]
SCOPES = sorted({scope for scopes in CALLERS for scope in scopes})
KEYS = ("a", "b")
Message = tuple[str, str, int, Bill | None]


class History:
    """One ledger, and what has happened to it in plain lists."""

    def __init__(self, ledger: Any, clock: FakeClock, seed: int) -> None:
        self.ledger, self.clock, self.random = ledger, clock, random.Random(seed)
        self.accounts: dict[str, Account] = {}
        self.asked: dict[str, HoldRequest] = {}
        self.holds: dict[str, Hold] = {}
        self.attempts: dict[str, int] = {}
        self.rows: dict[str, UsageRow] = {}
        self.claimed: dict[tuple[str, str], str] = {}
        self.claimed_at: dict[str, float] = {}
        self.answers: dict[str, bytes] = {}
        self.archived: set[str] = set()
        self.messages: list[Message] = []
        self.alive = {"gateway-1": 1, "gateway-2": 1}
        self.progress: dict[str, int] = {}
        self.credits = 0

    async def begin(self) -> None:
        choose = self.random.choice
        self.prices = [
            await self.ledger.publish_price(PriceTerms("small", Lane.BATCH, 2, 1, output))
            for output in (10, 7)
        ]
        for scope in SCOPES:
            cap, most = choose([None, 3_000, 20_000]), choose([None, None, 6])
            self.accounts[scope] = Account(scope, cap, choose(list(Period)), most)
            await self.ledger.open_account(self.accounts[scope])

    async def play(self, steps: int) -> None:
        moves: list[tuple[int, Callable[[], Any]]] = [
            (30, self.hold),
            (30, self.deliver),
            (10, self.ask_for_an_end),
            (6, self.beat_and_sweep),
            (5, self.limit),
            (4, self.pass_time),
            (2, self.top_up),
            (3, self.archive),
        ]
        weights = [weight for weight, _ in moves]
        for _ in range(steps):
            (move,) = self.random.choices([move for _, move in moves], weights)
            await move()
            await self.check()
        while self.messages:
            await self.deliver()
        await self.check()
        await self.audit()

    # -- what happens

    async def hold(self) -> None:
        chance, choose = self.random.random, self.random.choice
        ceiling = self.random.randint(1, 90)
        request = HoldRequest(
            id=f"req_{len(self.holds) + 1}",
            scopes=choose(CALLERS),
            model="small",
            lane=Lane.BATCH,
            price_version=choose(self.prices).version,
            input_tokens=self.random.randint(0, 100),
            ceiling_tokens=ceiling,
            floor_tokens=self.random.randint(1, ceiling) if chance() < 0.5 else ceiling,
            choices=self.random.randint(1, 2),
            streamed=chance() < 0.7,
            owner=choose(list(self.alive)),
            created_at=self.clock.now(),
            claim=Claim(choose(KEYS), self.random.randbytes(32)) if chance() < 0.4 else None,
        )
        if self.asked and chance() < 0.15:  # the same call again
            request = self.asked[choose(list(self.asked))]
        try:
            hold = await self.ledger.hold(request)
        except AlreadyResolved as error:
            row = error.row
            assert row == self.rows[request.id], "L4"
        except KeyClaimed as error:
            assert request.claim is not None
            place = request.scopes.organisation_id, request.claim.key
            claimed_by = error.remembered.call_id
            assert claimed_by == self.remembered(*place, request.created_at), "L9"
        except InsufficientQuota:
            assert not self.fits(request), "L2: refused although it fits"
        except TooManyOpenCalls:
            assert any(self.is_full(scope) for scope in request.scopes), "L15: refused for nothing"
        else:
            await self.granted(request, hold)

    async def granted(self, request: HoldRequest, hold: Hold) -> None:
        if request.id in self.holds:
            assert hold.amount_nanos == self.holds[request.id].amount_nanos, "L4"
            return
        if request.claim is not None:
            place = request.scopes.organisation_id, request.claim.key
            assert self.remembered(*place, request.created_at) is None, "L9: held twice"
            self.claimed[place], self.claimed_at[request.id] = request.id, request.created_at
        assert not any(self.is_full(scope) for scope in request.scopes), "L15"
        self.asked[request.id], self.holds[request.id] = request, hold
        self.attempts[request.id] = 1
        for scope in request.scopes:
            cap = self.accounts[scope].cap_nanos
            assert cap is None or sum(self.spoken_for(scope, request.created_at)) <= cap, "L2"

    async def ask_for_an_end(self) -> None:
        """Messages about one call, of which some get lost, doubled or overtaken by others."""
        if not (open_calls := self.open_calls()):
            return
        hold_id = self.random.choice(open_calls)
        attempt = self.attempts[hold_id] + self.random.choice([0, 0, 0, 1])
        verb = self.random.choice(["settle", "settle", "release"])
        outcome = self.random.choice([Outcome.COMPLETED, Outcome.COMPLETED, *Outcome])
        if verb == "release" and outcome is Outcome.COMPLETED:
            outcome = Outcome.FAILED  # what was completed is charged
        output = max(self.progress.get(hold_id, 0), self.random.randint(-1, 200))
        usage = Usage(self.random.randint(0, 99), output, self.random.randint(0, 50))
        bill = Bill(usage, outcome, answer=self.random.randbytes(4))
        about: list[Message] = [("dispatch", hold_id, attempt, None)]
        about.append((verb, hold_id, attempt, bill))
        for message in about:
            self.messages += [message] * self.random.choice([1, 1, 1, 2, 3])

    async def deliver(self) -> None:
        if not self.messages:
            return
        verb, hold_id, attempt, bill = self.messages.pop(
            self.random.randrange(min(6, len(self.messages)))
        )
        current, known = self.attempts[hold_id], self.rows.get(hold_id)
        try:
            if bill is None:
                await self.ledger.dispatch(hold_id, attempt)
                assert known is None, "L4: dispatched after its end"
                assert attempt >= current, "L7"
                self.attempts[hold_id] = attempt
                return
            row = await getattr(self.ledger, verb)(hold_id, attempt, bill)
        except AlreadyResolved as error:
            row = error.row
            assert row == known, "L4"
        except StaleAttempt:
            assert known is None
            assert attempt != current, "L7"
        except UnknownHold:
            assert hold_id in self.archived
        else:
            assert attempt == current, "L7"
            self.ended(row, bill.usage.output_tokens if verb == "settle" else None)
            if verb == "settle" and row.outcome is Outcome.COMPLETED:
                self.answers[hold_id] = bill.answer
            else:
                self.forget(hold_id)

    def ended(self, row: UsageRow, reported: int | None) -> None:
        """`reported`: the output that a settlement was asked for; None for a release."""
        assert row.call_id not in self.rows, "L4: resolved twice"
        hold, request = self.holds[row.call_id], self.asked[row.call_id]
        assert 0 <= row.amount_nanos <= hold.amount_nanos, "L3"
        if reported is None:
            assert row.amount_nanos == 0, "L8: our fault is free"
        else:
            most = request.choices * hold.ceiling_tokens
            assert row.usage.output_tokens == max(0, min(reported, most)), "L8"
            assert row.usage.input_tokens == request.input_tokens, "L8"
            assert row.amount_nanos == amount_nanos(hold.price, row.usage), "L11"
        self.rows[row.call_id] = row

    async def beat_and_sweep(self) -> None:
        for hold_id in self.open_calls():
            hold, request = self.holds[hold_id], self.asked[hold_id]
            most = request.choices * hold.ceiling_tokens
            made = self.progress.get(hold_id, 0) + self.random.randint(0, 20)
            self.progress[hold_id] = min(made, most)
        silent = self.random.choice([None, None, "gateway-2"])
        for owner in self.alive:
            mine = [each for each in self.open_calls() if self.asked[each].owner == owner]
            self.alive[owner] += 1
            progress = {hold_id: self.progress[hold_id] for hold_id in mine}
            await self.ledger.beat(owner, self.alive[owner], progress)
        assert await self.ledger.sweep(self.clock.monotonic()) == [], "L10: it has just beaten"
        self.forget_expired()
        if silent is None:
            return
        self.clock.advance(10.0)
        self.alive["gateway-1"] += 1
        await self.ledger.beat("gateway-1", self.alive["gateway-1"], {})
        expected = {each for each in self.open_calls() if self.asked[each].owner == silent}
        rows = await self.ledger.sweep(self.clock.monotonic())
        self.forget_expired()
        assert {row.call_id for row in rows} == expected, "L10"
        for row in rows:
            watermark = self.progress[row.call_id] if self.asked[row.call_id].streamed else 0
            self.ended(row, watermark or None)
            self.forget(row.call_id)

    async def limit(self) -> None:
        scope, account = self.random.choice(list(self.accounts.items()))
        if self.random.random() < 0.3:
            most = self.random.choice([None, 1, 6])
            await self.ledger.set_max_open_holds(scope, most)
            self.accounts[scope] = Account(scope, account.cap_nanos, account.period, most)
            return
        cap = self.random.choice([None, 0, 2_000, 20_000])
        period = self.random.choice([None, None, *Period])
        await self.ledger.set_cap(scope, cap, period)
        self.accounts[scope] = Account(scope, cap, period or account.period, account.max_open_holds)

    async def top_up(self) -> None:
        scope, account = self.random.choice(list(self.accounts.items()))
        amount, id = self.random.randint(1, 5_000), f"credit_{self.credits}"
        if account.period is not Period.TOTAL:
            with pytest.raises(ValueError, match="period total"):
                await self.ledger.top_up(scope, amount, id)
            return
        start = account.cap_nanos
        if start is None:
            start = sum(self.spoken_for(scope, self.clock.now()))
        raised = Account(scope, start + amount, account.period, account.max_open_holds)
        for _ in range(self.random.choice([1, 2])):
            assert await self.ledger.top_up(scope, amount, id) == raised, "booked twice"
        self.accounts[scope] = raised
        self.credits += 1

    async def pass_time(self) -> None:
        self.clock.advance(self.random.choice([0.5, 3_600.0, 20_000.0, 20_000.0, 2.5 * DAY]))
        self.clock.jump_wall(self.random.choice([0.0, 0.0, DAY, -DAY, 1.0, -1.0]))

    async def archive(self) -> None:
        """Drop what may go, which must be what is older than two days."""
        limit = at(day_id(self.clock.now() - 2 * DAY))
        left = [row for call_id, row in self.rows.items() if call_id not in self.archived]
        going: list[UsageRow] = []
        for row in sorted(left, key=lambda row: row.sequence):
            if max(row.created_at, row.resolved_at) >= limit:
                with pytest.raises(ValueError, match="or later"):
                    await self.ledger.records.drop(row.sequence, row.hash)
                break
            going.append(row)
        if going:
            dropped = await self.ledger.records.drop(going[-1].sequence, going[-1].hash)
            assert dropped == len(going)
            self.archived |= {row.call_id for row in going}
            for row in going:  # nobody can ask for it again
                self.asked.pop(row.call_id)

    # -- what must be so

    def open_calls(self) -> list[str]:
        return [hold_id for hold_id in self.holds if hold_id not in self.rows]

    def is_full(self, scope: str) -> bool:
        limit = self.accounts[scope].max_open_holds
        return limit is not None and self.count(scope) >= limit

    def count(self, scope: str) -> int:
        return sum(scope in self.asked[hold_id].scopes for hold_id in self.open_calls())

    def spoken_for(self, scope: str, moment: float) -> tuple[int, int]:
        """Posted and pending in the scope's period at this moment."""
        period = {Period.TOTAL: 0, Period.MONTH: 7, Period.DAY: 10}[self.accounts[scope].period]
        now = day_id(moment)[:period]
        posted = sum(
            row.amount_nanos
            for row in self.rows.values()
            if scope in (row.organisation_id, row.project_id, row.key_id)
            and day_id(row.created_at)[:period] == now
        )
        pending = sum(
            self.holds[hold_id].amount_nanos
            for hold_id in self.open_calls()
            if scope in (asked := self.asked[hold_id]).scopes
            and day_id(asked.created_at)[:period] == now
        )
        return posted, pending

    def fits(self, request: HoldRequest) -> bool:
        price = self.prices[request.price_version - 1]
        least = hold_nanos(price, request.input_tokens, request.floor_tokens, request.choices)
        caps = {scope: self.accounts[scope].cap_nanos for scope in request.scopes}
        return all(
            cap is None or sum(self.spoken_for(scope, request.created_at)) + least <= cap
            for scope, cap in caps.items()
        )

    def remembered(self, organisation: str, key: str, moment: float) -> str | None:
        """The call that has the key, by the plain words of L9."""
        hold_id = self.claimed.get((organisation, key))
        if hold_id is None or hold_id not in self.rows:
            return hold_id
        return hold_id if moment - self.claimed_at[hold_id] < REMEMBERED_SECONDS else None

    def forget_expired(self) -> None:
        """A sweep removes them: a clock that is set back does not bring them back."""
        for place, hold_id in list(self.claimed.items()):
            if self.remembered(*place, self.clock.now()) is None:
                self.forget(hold_id)

    def forget(self, hold_id: str) -> None:
        self.claimed = {place: each for place, each in self.claimed.items() if each != hold_id}

    async def check(self) -> None:
        now = self.clock.now()
        for scope in SCOPES:
            balance: Balance = await self.ledger.balances(scope)
            assert balance.account == self.accounts[scope]
            spoken_for = balance.posted_nanos, balance.pending_nanos
            assert spoken_for == self.spoken_for(scope, now), "L1"
            cap, high = balance.account.cap_nanos, balance.high_water_nanos
            assert high == (None if cap is None else max(cap, sum(spoken_for))), "L2"
            assert balance.open_holds == self.count(scope), "L15"
        for organisation in ("org_1", "org_2"):
            for key in KEYS:
                found = await self.ledger.recall(organisation, key)
                call_id = self.remembered(organisation, key, now)
                assert (found and found.call_id) == call_id, "L9, L14"
                assert found is None or found.answer == self.answers.get(found.call_id), "L9"

    async def audit(self) -> None:
        left = [row for call_id, row in self.rows.items() if call_id not in self.archived]
        left.sort(key=lambda row: row.sequence)
        assert await self.ledger.records.outbox(0, 10**6) == left, "L5"
        verified = await self.ledger.records.verify()
        assert (verified.first_break, verified.rows) == (None, len(left)), "L12"
        assert verified.head_sequence == len(self.rows), "L5: no sequence is left out"
        assert (await self.ledger.records.reconcile()).differences == (), "L1, L3, L11, L15"
        for organisation in ("org_1", "org_2"):
            mine = [row for row in reversed(left) if row.organisation_id == organisation]
            query = UsageQuery(organisation_id=organisation, limit=10**6)
            assert await self.ledger.usage(query) == mine, "L14"


def new_clock(seed: int) -> FakeClock:
    """Shortly before a day or a month ends."""
    return FakeClock(now=at(("2026-11-30T23:50:00", "2026-12-14T23:50:00")[seed % 2]))


@pytest.mark.parametrize("number", range(300))
async def test_l1_to_l5_l8_l9_l11_l12_l14_l15_hold_over_any_history(number: int) -> None:
    clock = new_clock(number)
    history = History(MemoryLedger(clock), clock, number)
    await history.begin()
    await history.play(150)


@pytest.mark.parametrize("number", range(1_000, 1_012))
async def test_l1_to_l5_l8_l9_l11_l12_l14_l15_hold_over_any_history_on_disk(
    number: int, tmp_path: Path
) -> None:
    clock = new_clock(number)
    ledger = await SqliteLedger.open(tmp_path / "ledger.db", clock)
    history = History(ledger, clock, number)
    await history.begin()
    await history.play(120)
    await ledger.close()
