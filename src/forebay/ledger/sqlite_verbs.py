"""What changes money in SQLite: each verb runs inside the writer's transaction, beside others.

A verb reads what it needs, asks `rules`, and only then writes, so a refusal has written nothing;
whatever fails later is rolled back by the writer, which then calls `forget`.

Not here: transactions and threads (`sqlite_writer`), plain questions (`sqlite_reads`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple

import apsw

from forebay.core.errors import (
    AlreadyResolved,
    KeyClaimed,
    StaleAttempt,
    StoreUnavailable,
    UnknownHold,
)
from forebay.core.hold import Account, Bill, Hold, HoldRequest, Period
from forebay.core.money import Price, PriceTerms
from forebay.core.records import EngineWindow
from forebay.core.usage import Usage, UsageRow
from forebay.ledger import rules, sqlite_sql
from forebay.ledger.pricing import check_terms
from forebay.ledger.rules import Charge, Held, Place, Standing
from forebay.ledger.sqlite_rows import (
    PRICE_VERSION,
    Columns,
    Posted,
    account_of,
    decode_progress,
    held_columns,
    held_of,
    price_of,
    remembered_of,
    row_columns,
    row_of,
    standing_of,
)

ROWS_PER_DROP = 1_000  # how long a step of archiving keeps calls waiting: some milliseconds


class Verbs:
    """Owned by the writer's thread, as its connection is.

    Kept in memory because it is asked all the time and changes only here: the newest link of the
    chain, price versions (immutable), and the sweep's view of who beats (L10).
    """

    def __init__(self, connection: apsw.Connection, answers_bytes: int) -> None:
        self._connection = connection
        self._answers_bytes = answers_bytes
        self._prices: dict[int, Price] = {}
        self._view: rules.View = {}
        self._head: tuple[int, str] | None = None

    def forget(self) -> None:
        """Something was rolled back: what is kept in memory is read again when it is needed.

        The view of who beats starts afresh: a store that fails may have failed beats as well, and
        nobody may be judged by beats that could not be written (L10).
        """
        self._prices.clear()
        self._view = {}
        self._head = None

    def _newest_link(self) -> tuple[int, str]:
        if self._head is None:
            head = self._one(sqlite_sql.HEAD)
            if head is None:  # starting again would hide what was deleted
                raise StoreUnavailable("The ledger does not know its newest row; audit it.")
            self._head = (head[0], head[1].hex())
        return self._head

    def _all(self, statement: str, *bindings: object) -> list[Columns]:
        return self._connection.execute(statement, bindings).fetchall()

    def _one(self, statement: str, *bindings: object) -> Columns | None:
        found = self._connection.execute(statement, bindings).fetchall()
        return found[0] if found else None

    def _price(self, version: int) -> Price:
        price = self._prices.get(version)
        if price is None:
            columns = self._one(sqlite_sql.PRICE, version)
            if columns is None:
                raise KeyError(f"price version {version} was never published")
            price = self._prices[version] = price_of(columns)
        return price

    def hold(self, request: HoldRequest) -> Hold:
        rules.check_request(request)
        held_before, resolved = self._one(sqlite_sql.KNOWN, request.id) or (0, 0)
        if held_before or resolved:
            return self._live(request.id).answer()
        self._check_claim(request)
        price = self._price(request.price_version)
        standings = self._standings(request.scopes, rules.day_id(request.created_at))
        held = rules.grant(request, price, standings)
        self._all(sqlite_sql.ADD_HOLD, *held_columns(held))
        if (claim := request.claim) is not None:
            columns = (claim.key, request.id, claim.fingerprint, claim.head, request.created_at)
            self._all(sqlite_sql.ADD_CLAIM, request.scopes.organisation_id, *columns)
        return held.answer()

    def _check_claim(self, request: HoldRequest) -> None:
        if (claim := request.claim) is None:
            return
        found = self._one(sqlite_sql.CLAIM, request.scopes.organisation_id, claim.key)
        if found is not None:
            remembered = remembered_of(claim.key, found)
            if rules.is_remembered(remembered, request.created_at):
                raise KeyClaimed(remembered)

    def _standings(self, scopes: Sequence[str], day: str) -> list[Standing]:
        found = {columns[0]: columns for columns in self._all(sqlite_sql.STANDINGS, *scopes, day)}
        return [standing_of(found[scope]) if scope in found else Standing(None) for scope in scopes]

    def _live(self, hold_id: str) -> Held:
        columns = self._one(sqlite_sql.HOLD, hold_id)
        if columns is not None:
            return held_of(columns, self._price(columns[PRICE_VERSION]))
        row = self._one(sqlite_sql.ROW, hold_id)
        if row is not None:
            raise AlreadyResolved(row_of(row))
        raise UnknownHold(f"there is no hold {hold_id}")

    def dispatch(self, hold_id: str, attempt: int) -> None:
        held = self._live(hold_id)
        if attempt < held.attempt:
            raise StaleAttempt()
        if attempt > held.attempt:
            self._all(sqlite_sql.RAISE_ATTEMPT, hold_id, attempt)

    def adopt(self, hold_id: str, owner: str) -> int:
        attempt = self._live(hold_id).attempt + 1
        self._all(sqlite_sql.ADOPT, hold_id, attempt, owner)
        return attempt

    def settle(self, hold_id: str, attempt: int, bill: Bill, at: float) -> UsageRow:
        return self._end(hold_id, attempt, bill, rules.charge, at)

    def release(self, hold_id: str, attempt: int, bill: Bill, at: float) -> UsageRow:
        return self._end(hold_id, attempt, bill, rules.waive, at)

    def _end(
        self,
        hold_id: str,
        attempt: int,
        bill: Bill,
        price: Callable[[Held, Usage], Charge],
        at: float,
    ) -> UsageRow:
        held = self._live(hold_id)
        rules.check_attempt(held, attempt)
        return self._resolve(held, bill, price(held, bill.usage), at)

    def _resolve(self, held: Held, bill: Bill, charged: Charge, at: float) -> UsageRow:
        sequence, previous_hash = self._newest_link()
        row = rules.resolution(held, bill, charged, Place(sequence + 1, previous_hash, at))
        self._all(sqlite_sql.ADD_ROW, *row_columns(row), *held.periods, held.amount_nanos)
        if held.claim_key is not None:
            kept = bill.answer if rules.keeps_answer(bill, charged) else None
            self._end_claim(held.scopes.organisation_id, held.claim_key, row.sequence, kept)
        self._head = (row.sequence, row.hash)
        return row

    def _end_claim(self, organisation: str, key: str, sequence: int, answer: bytes | None) -> None:
        if answer is None:
            self._all(sqlite_sql.FORGET_CLAIM, organisation, key)
            return
        self._all(sqlite_sql.KEEP_ANSWER, organisation, key, sequence, answer)
        while self._all(sqlite_sql.KEPT_BYTES)[0][0] > self._answers_bytes:
            self._all(sqlite_sql.FORGET_OLDEST)
            if not self._connection.changes():  # no answer is left, so the count was wrong
                self._all(sqlite_sql.COUNT_KEPT)
                return

    def beat(self, process: str, counter: int, progress: bytes) -> None:
        self._all(sqlite_sql.BEAT, process, counter, progress)

    def sweep(self, monotonic: float, at: float) -> list[UsageRow]:
        self._all(sqlite_sql.COUNT_SWEEP)
        counters: dict[str, int | None] = dict(self._all(sqlite_sql.COUNTERS))
        dead, view = rules.judge(self._view, counters, monotonic)
        rows: list[UsageRow] = []
        for process in dead:
            found = self._one(sqlite_sql.PROGRESS, process)
            progress = decode_progress(found[0]) if found else {}
            for columns in self._all(sqlite_sql.HOLDS_OF, process):
                held = held_of(columns, self._price(columns[PRICE_VERSION]))
                bill, charged = rules.owner_died(held, progress.get(held.id, 0))
                rows.append(self._resolve(held, bill, charged, at))
            self._all(sqlite_sql.DROP_BEAT, process)
        expired = at - rules.REMEMBERED_SECONDS
        self._all(sqlite_sql.FORGET_EXPIRED, expired, rules.FORGOTTEN_PER_SWEEP)
        self._view = view
        return rows

    def open_account(self, account: Account) -> bool:
        rules.check_account(account)
        created = self._one(
            sqlite_sql.OPEN_ACCOUNT,
            account.scope,
            account.cap_nanos,
            account.period,
            account.max_open_holds,
        )
        return created is not None

    def set_cap(
        self, scope: str, cap_nanos: int | None, period: Period | None, posted: Posted | None
    ) -> bool:
        """False, and nothing was changed: the period changes, and its sums are needed for that."""
        rules.check_cap(cap_nanos)
        account = self._account(scope)
        if period is not None and period is not account.period:
            if posted is None or self._sealed_through() > posted.through_sequence:
                return False
            self._start_period(scope, period, posted)
        self._all(sqlite_sql.SET_CAP, scope, cap_nanos, period or account.period)
        self._all(sqlite_sql.FOLLOW_CAP, scope, cap_nanos)
        return True

    def _start_period(self, scope: str, period: Period, posted: Posted) -> None:
        """Make the scope's balances of this period; its holds move into them (L1)."""
        self._all(sqlite_sql.CLEAR_BALANCES, scope)
        for period_id, nanos in posted.amounts:
            self._all(sqlite_sql.ADD_POSTED, scope, period_id, nanos)
        names = {"scope": scope, "period": period}
        newer = {**names, "sequence": posted.through_sequence}
        self._connection.execute(sqlite_sql.ADD_NEWER, newer)
        self._connection.execute(sqlite_sql.ADD_PENDING, names)
        self._connection.execute(sqlite_sql.MOVE_HOLDS, names)

    def _account(self, scope: str) -> Account:
        columns = self._one(sqlite_sql.ACCOUNT, scope)
        if columns is None:
            raise KeyError(f"{scope} has no account")
        return account_of(columns)

    def set_max_open_holds(self, scope: str, max_open_holds: int | None) -> None:
        rules.check_max_open(max_open_holds)
        if self._one(sqlite_sql.SET_MAX_OPEN, scope, max_open_holds) is None:
            raise KeyError(f"{scope} has no account")

    def top_up(self, scope: str, amount_nanos: int, id: str, at: float) -> Account:
        rules.check_top_up(amount_nanos, id)
        account = self._account(scope)
        if (known := self._one(sqlite_sql.CREDIT, id)) is not None:
            rules.check_same_top_up(id, known, (scope, amount_nanos))
            return account
        total = self._one(sqlite_sql.TOTAL, scope)
        raised = rules.topped_up(account, amount_nanos, spoken_for=total[0] if total else 0)
        self._all(sqlite_sql.ADD_CREDIT, id, scope, amount_nanos, at)
        self._all(sqlite_sql.SET_CAP, scope, raised.cap_nanos, raised.period)
        self._all(sqlite_sql.FOLLOW_CAP, scope, raised.cap_nanos)
        return raised

    def _sealed_through(self) -> int:
        sequence: int = self._all(sqlite_sql.SEAL)[0][0]
        return sequence

    def seal(self, through_sequence: int) -> int:
        """Drop the oldest rows up to this one, as many as a step takes; how many went."""
        sealed = self._sealed_through()
        if sealed >= through_sequence:
            return 0
        step = min(sealed + ROWS_PER_DROP, through_sequence)
        self._all(sqlite_sql.ADD_SEALED, step)
        self._all(sqlite_sql.SET_SEAL, step)
        self._all(sqlite_sql.DROP_ROWS, step)
        return self._connection.changes()

    def record_window(self, window: EngineWindow) -> None:
        self._all(sqlite_sql.ADD_WINDOW, *astuple(window))

    def drop_windows(self, limit: float) -> None:
        self._all(sqlite_sql.DROP_WINDOWS, limit)

    def publish_price(self, terms: PriceTerms) -> Price:
        check_terms(terms)
        columns = self._one(sqlite_sql.NEWEST_PRICE, terms.model, terms.lane)
        if columns is not None and (price := price_of(columns)).terms == terms:
            return price
        added = self._one(
            sqlite_sql.ADD_PRICE,
            terms.model,
            terms.lane,
            terms.input_nanos,
            terms.cached_input_nanos,
            terms.output_nanos,
        )
        assert added is not None
        return Price(added[0], terms)
