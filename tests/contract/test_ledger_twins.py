"""The memory ledger is the oracle: random verbs on it and on SQLite, side by side.

After every step both must have given the same answer or the same error with the same message, and
have the same balances, usage and totals, which must add up (L1-L5, L9, L15).
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from forebay.core.delta import FinishReason
from forebay.core.errors import AlreadyResolved, ForebayError, KeyClaimed
from forebay.core.hold import Account, Bill, Claim, Hold, HoldRequest, Period, UsageQuery
from forebay.core.job import Lane
from forebay.core.money import PriceTerms
from forebay.core.principal import Scopes
from forebay.core.records import EngineWindow
from forebay.core.usage import Outcome, Timings, Usage, UsageRow
from forebay.ledger.audit import START, Link, first_break
from forebay.ledger.memory import MemoryLedger
from forebay.ledger.rules import day_id
from forebay.ledger.sqlite import SqliteLedger
from forebay.testing.clock import FakeClock

ORGANISATIONS, PROJECTS, KEYS = ("org_1", "org_2"), ("prj_1", "prj_2"), ("key_1", "key_2", "key_3")
SCOPES = (*ORGANISATIONS, *PROJECTS, *KEYS)
OWNERS = ("gateway-1", "gateway-2")

ids = st.integers(1, 12).map("req_{}".format)
attempts = st.integers(0, 4)
caps = st.none() | st.integers(0, 6_000)
terms = st.builds(
    PriceTerms,
    st.sampled_from(["small", "big"]),
    st.sampled_from(list(Lane)),
    st.integers(1, 3),
    st.integers(0, 2),
    st.integers(0, 12),
)
usages = st.builds(
    Usage,
    st.integers(0, 120),
    st.integers(-1, 200),
    st.integers(0, 150),
    st.lists(st.none() | st.sampled_from(list(FinishReason)), max_size=2).map(tuple),
    st.sampled_from(["ids", "text"]),
)
bills = st.builds(
    Bill,
    usages,
    st.sampled_from(list(Outcome)),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    st.builds(Timings, st.none() | st.integers(0, 9), st.none(), st.integers(0, 9)),
    st.binary(max_size=40),
)
keys = st.sampled_from(["a", "ä", "c"])
claims = st.none() | st.builds(
    Claim, keys, st.binary(min_size=32, max_size=32), st.binary(max_size=9)
)


class Twins(RuleBasedStateMachine):
    """Two ledgers, one clock, one sequence of verbs."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = FakeClock(now=1_796_083_100.0)  # 2026-11-30, 22:38 before the month ends
        self.memory = MemoryLedger(self.clock, answers_bytes=150)
        path = Path(self.folder.name) / "ledger.db"
        self.seal = START
        self.sealed: Counter[tuple[str, str]] = Counter()
        self.opened: dict[str, tuple[Scopes, int, str]] = {}
        self.sqlite: Any = self.runner.run(SqliteLedger.open(path, self.clock, answers_bytes=150))

    def teardown(self) -> None:
        self.runner.run(self.sqlite.close())
        self.runner.close()
        self.folder.cleanup()

    def both(self, verb: Callable[[Any], Awaitable[Any]]) -> Any:
        """Do it to both; the answers must be equal."""
        expected, found = (
            self.runner.run(answer_of(verb, ledger)) for ledger in (self.memory, self.sqlite)
        )
        assert found == expected
        return expected

    @initialize()
    def publish(self) -> None:
        self.both(lambda ledger: ledger.publish_price(PriceTerms("small", Lane.BATCH, 2, 1, 10)))

    @initialize(
        accounts=st.tuples(
            *(
                st.builds(
                    Account,
                    st.just(scope),
                    caps,
                    st.sampled_from(list(Period)),
                    st.none() | st.integers(0, 4),
                )
                for scope in SCOPES[:-1]
            )
        )
    )
    def open_accounts(self, accounts: tuple[Account, ...]) -> None:
        for account in accounts:
            self.both(lambda ledger, account=account: ledger.open_account(account))

    @rule(
        request=st.builds(
            HoldRequest,
            ids,
            st.builds(
                Scopes,
                st.sampled_from(ORGANISATIONS),
                st.sampled_from(PROJECTS),
                st.sampled_from(KEYS),
            ),
            st.just("small"),
            st.just(Lane.BATCH),
            st.integers(0, 3),
            st.integers(-1, 120),
            st.integers(1, 90),
            st.integers(0, 40),
            st.integers(1, 2),
            st.booleans(),
            st.sampled_from(OWNERS),
            st.just(0.0),
            claims,
        ),
        asked=st.booleans(),
    )
    def hold(self, request: HoldRequest, asked: bool) -> None:
        floor = request.ceiling_tokens if asked else request.floor_tokens
        request = replace(request, created_at=self.clock.now(), floor_tokens=floor)
        before = {scope: self.runner.run(self.memory.balances(scope)) for scope in request.scopes}
        answer = self.both(lambda ledger: ledger.hold(request))
        if isinstance(answer, Hold) and self.both(lambda ledger: ledger.hold(request)) == answer:
            for scope, balance in before.items():
                now = self.runner.run(self.memory.balances(scope))
                cap = balance.account.cap_nanos
                if cap is not None and now.pending_nanos > balance.pending_nanos:
                    assert now.posted_nanos + now.pending_nanos <= cap, "L2"
            opened = (request.scopes, answer.amount_nanos, day_id(request.created_at))
            self.opened.setdefault(request.id, opened)

    @rule(organisation=st.sampled_from(ORGANISATIONS), key=keys)
    def recall(self, organisation: str, key: str) -> None:
        remembered = self.both(lambda ledger: ledger.recall(organisation, key))
        if remembered is not None and remembered.answer is None:
            assert remembered.call_id in self.opened, "L9"

    def resolved(self, rows: Any) -> None:
        """Take what was resolved out of the open holds; it was there, and not dearer (L3, L4)."""
        for row in rows:
            assert 0 <= row.amount_nanos <= self.opened.pop(row.call_id)[1]

    @rule(hold_id=ids, attempt=attempts)
    def dispatch(self, hold_id: str, attempt: int) -> None:
        self.both(lambda ledger: ledger.dispatch(hold_id, attempt))

    @rule(hold_id=ids, process=st.sampled_from(OWNERS))
    def adopt(self, hold_id: str, process: str) -> None:
        self.both(lambda ledger: ledger.adopt(hold_id, process))

    @rule(hold_id=ids, attempt=attempts, bill=bills)
    def settle(self, hold_id: str, attempt: int, bill: Bill) -> None:
        row = self.both(lambda ledger: ledger.settle(hold_id, attempt, bill))
        self.resolved([row] if isinstance(row, UsageRow) else [])

    @rule(hold_id=ids, attempt=attempts, bill=bills)
    def release(self, hold_id: str, attempt: int, bill: Bill) -> None:
        row = self.both(lambda ledger: ledger.release(hold_id, attempt, bill))
        assert not isinstance(row, UsageRow) or row.amount_nanos == 0
        self.resolved([row] if isinstance(row, UsageRow) else [])

    @rule(
        process=st.sampled_from(OWNERS),
        counter=st.integers(0, 3),
        progress=st.dictionaries(ids, st.integers(0, 200), max_size=4),
    )
    def beat(self, process: str, counter: int, progress: dict[str, int]) -> None:
        self.both(lambda ledger: ledger.beat(process, counter, progress))

    @rule(seconds=st.sampled_from([0.0, 4.0, 7.0]))
    def sweep(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.resolved(self.both(lambda ledger: ledger.sweep(self.clock.monotonic())))

    @rule(scope=st.sampled_from(SCOPES), cap=caps, period=st.none() | st.sampled_from(list(Period)))
    def set_cap(self, scope: str, cap: int | None, period: Period | None) -> None:
        self.both(lambda ledger: ledger.set_cap(scope, cap, period))

    @rule(scope=st.sampled_from(SCOPES), most=st.none() | st.integers(-1, 4))
    def set_max_open_holds(self, scope: str, most: int | None) -> None:
        self.both(lambda ledger: ledger.set_max_open_holds(scope, most))

    @rule(scope=st.sampled_from(SCOPES), amount=st.integers(0, 3_000), number=st.integers(1, 4))
    def top_up(self, scope: str, amount: int, number: int) -> None:
        self.both(lambda ledger: ledger.top_up(scope, amount, f"top-{number}"))

    @rule(sequence=st.integers(0, 12), before=st.sampled_from([None, None, "2026-11-20", "soon"]))
    def drop(self, sequence: int, before: str | None) -> None:
        rows = self.runner.run(self.memory.records.outbox(0, 100))
        hash = next((row.hash for row in rows if row.sequence == sequence), "00")
        dropped = self.both(lambda ledger: ledger.records.drop(sequence, hash, before=before))
        if isinstance(dropped, int) and dropped:
            self.seal = Link(sequence, hash)
            for row in rows[:dropped]:
                for scope in (row.organisation_id, row.project_id, row.key_id):
                    self.sealed[scope, day_id(row.created_at)] += row.amount_nanos

    @rule(
        window=st.builds(
            EngineWindow,
            st.sampled_from(["small", "big"]),
            st.sampled_from(["1", "2"]),
            st.integers(-1, 3).map(lambda minute: 1_796_083_080.0 + 60 * minute),
            st.integers(-1, 3),
            st.integers(0, 3),
            st.integers(0, 1),
            st.booleans(),
        ),
        since=st.integers(0, 3),
    )
    def record_window(self, window: EngineWindow, since: int) -> None:
        self.both(lambda ledger: ledger.records.record_window(window))
        self.both(lambda ledger: ledger.records.windows(1_796_083_080.0 + 60 * since))

    @rule(after=st.integers(-1, 12), limit=st.integers(-1, 5))
    def audit(self, after: int, limit: int) -> None:
        self.both(lambda ledger: ledger.records.outbox(after, limit))
        assert self.both(lambda ledger: ledger.records.verify()).first_break is None, "L12"
        reconciled = self.both(lambda ledger: ledger.records.reconcile())
        asked_for = ("Engine", "was completed, but charged 0 of")  # wrong windows, strange releases
        assert all(any(w in each for w in asked_for) for each in reconciled.differences), "L1"

    @rule(published=terms, version=st.integers(0, 5))
    def publish_price(self, published: PriceTerms, version: int) -> None:
        self.both(lambda ledger: ledger.publish_price(published))
        self.both(lambda ledger: ledger.price(version))

    @rule(seconds=st.sampled_from([-3_000_000.0, -86_400.0, 5_000.0, 86_400.0, 300_000.0]))
    def jump(self, seconds: float) -> None:
        self.clock.jump_wall(seconds)

    @rule(
        query=st.builds(
            UsageQuery,
            st.none() | st.sampled_from(ORGANISATIONS),
            st.none() | st.sampled_from(PROJECTS),
            st.none() | st.sampled_from(KEYS),
            st.none() | ids,
            st.none() | st.just(1_796_083_200.0),
            st.none() | st.just(1_796_090_000.0),
            st.integers(-1, 20),
        ),
        by=st.sampled_from(["key", "project", "organisation", "model", "day", "week"]),
    )
    def report(self, query: UsageQuery, by: str) -> None:
        self.both(lambda ledger: ledger.usage(query))
        self.both(lambda ledger: ledger.totals(query, by=by))

    @invariant()
    def balances_agree_and_add_up(self) -> None:
        rows = self.runner.run(self.memory.usage(UsageQuery()))
        for scope in SCOPES:
            balance = self.both(lambda ledger, scope=scope: ledger.balances(scope))
            amounts = [amount for scopes, amount, _ in self.opened.values() if scope in scopes]
            assert balance.open_holds == len(amounts), "L15"
            spoken_for = balance.posted_nanos + balance.pending_nanos
            assert balance.high_water_nanos is None or spoken_for <= balance.high_water_nanos, "L2"
            period = balance.period_id
            mine = (
                row.amount_nanos
                for row in rows
                if scope in (row.organisation_id, row.project_id, row.key_id)
                and day_id(row.created_at).startswith(period)
            )
            open_then = (
                amount
                for scopes, amount, day in self.opened.values()
                if scope in scopes and day.startswith(period)
            )
            assert balance.pending_nanos == sum(open_then), "L1"
            sealed = (
                nanos
                for (owner, day), nanos in self.sealed.items()
                if owner == scope and day.startswith(period)
            )
            assert balance.posted_nanos == sum(mine) + sum(sealed), "L1"

    @invariant()
    def usage_agrees_and_is_chained(self) -> None:
        rows = self.both(lambda ledger: ledger.usage(UsageQuery()))
        assert first_break(reversed(rows), self.seal) is None, "L5"
        assert len({row.call_id for row in rows}) == len(rows), "L4"


async def answer_of(verb: Callable[[Any], Awaitable[Any]], ledger: Any) -> Any:
    """The answer, or the error in a form that can be compared."""
    try:
        return await verb(ledger)
    except AlreadyResolved as error:
        return AlreadyResolved, error.row
    except KeyClaimed as error:
        return KeyClaimed, error.remembered
    except (ForebayError, KeyError, ValueError) as error:
        return type(error), str(error)


Twins.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestTwins = Twins.TestCase
