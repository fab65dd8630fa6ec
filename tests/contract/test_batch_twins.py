"""Files and batches in memory are the oracle: random verbs on them and on the tables, side by side.

Every answer must be the same, or the same error with the same message. After every step the counts and
sums of each batch must be those of the outcomes that were told (B3).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from forebay.batch import Batches, BatchSettings, FileInUse, Files, Learnt, Listing, WrongWay
from forebay.batch.memory import MemoryBatches, MemoryFiles, MemoryState
from forebay.batch.sql import SqlBatches
from forebay.batch.sql_files import SqlFiles
from forebay.batch.sql_tables import METADATA
from forebay.core.batch import (
    Answered,
    Batch,
    BatchOrder,
    BatchState,
    LineCounts,
    LineError,
    Place,
    Refused,
    Spent,
    StoredFile,
)
from forebay.core.errors import ForebayError
from forebay.core.principal import Scopes
from forebay.core.usage import Usage
from forebay.testing.clock import FakeClock
from tests.contract.direct import Direct

BOUNDS = BatchSettings(organisation_bytes=300)
ORGANISATIONS = ("org_a", "org_b")
STATES = list(BatchState)

# Mostly of the organisation that has it.
owners = st.sampled_from(["org_a", "org_a", "org_a", "org_b"])
# One of those that were made last; 0 is none of them.
backs = st.sampled_from([1, 1, 1, 2, 2, 3, 0])
lines = st.integers(1, 4)
# All times are multiples of 20 s, so that much is looked at in the moment that it expires.
lives = st.sampled_from([20.0, 40.0, 60.0, None])
sizes = st.sampled_from([0, 50, 100, 101])
purposes = st.sampled_from(["batch", "batch", "batch_output"])
listings = st.builds(
    Listing,
    limit=st.integers(0, 3),
    newest_first=st.booleans(),
    purpose=st.sampled_from([None, None, "batch"]),
)


class Store(NamedTuple):
    """Both contracts on one store."""

    files: Files
    batches: Batches


class Twins(RuleBasedStateMachine):
    """Two stores, one clock, one sequence of verbs."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = FakeClock()
        self.numbers = count(1)
        self.file_ids: list[str] = []
        self.batch_ids: list[str] = []
        self.told: list[tuple[str, Answered | Refused]] = []
        self.database = Direct(METADATA)
        state = MemoryState(BOUNDS, self.clock)
        self.memory = Store(MemoryFiles(state), MemoryBatches(state))
        self.sql = Store(
            SqlFiles(self.database, BOUNDS, self.clock), SqlBatches(self.database, self.clock)
        )

    def teardown(self) -> None:
        try:
            self.look()
        finally:
            self.runner.close()
            self.database.engine.dispose()

    def both(self, verb: Callable[[Store], Awaitable[Any]]) -> Any:
        """Do it to both; the answers must be equal."""
        expected, found = (self.runner.run(answer_of(verb, it)) for it in (self.memory, self.sql))
        assert found == expected
        return expected

    def file_id(self, back: int) -> str:
        return self.file_ids[-back] if 0 < back <= len(self.file_ids) else "file-unknown"

    def batch_id(self, back: int) -> str:
        return self.batch_ids[-back] if 0 < back <= len(self.batch_ids) else "batch_unknown"

    def file(self, organisation: str, size: int, lives: float | None, purpose: str) -> StoredFile:
        """A new one, but for one in six that has an earlier one's id."""
        number, now = next(self.numbers), self.clock.now()
        id = f"file-{number}" if number % 6 else self.file_id(1)
        # Clocks jump: one in four seems to be older than those before it.
        created_at = now if number % 4 else now - 30
        expires_at = None if lives is None else now + lives
        return StoredFile(
            id, organisation, purpose, f"{number}.jsonl", size, "0" * 64, created_at, expires_at
        )

    @rule(organisation=owners, size=sizes, lives=lives, purpose=purposes)
    def add(self, organisation: str, size: int, lives: float | None, purpose: str) -> None:
        file = self.file(organisation, size, lives, purpose)
        if self.both(lambda it: it.files.add(file)) is None:
            self.file_ids.append(file.id)

    @rule(organisation=owners, back=backs)
    def remove(self, organisation: str, back: int) -> None:
        self.both(lambda it: it.files.remove(organisation, self.file_id(back)))

    @rule(limit=st.integers(0, 2))
    def sweep(self, limit: int) -> None:
        self.both(lambda it: it.files.sweep(limit))

    @rule(organisation=owners, listing=listings, back=backs | st.none())
    def list_files(self, organisation: str, listing: Listing, back: int | None) -> None:
        asked = replace(listing, after=None if back is None else self.file_id(back))
        self.both(lambda it: it.files.page(organisation, asked))

    @rule(organisation=owners, listing=listings, back=backs | st.none())
    def list_batches(self, organisation: str, listing: Listing, back: int | None) -> None:
        asked = replace(listing, after=None if back is None else self.batch_id(back))
        self.both(lambda it: it.batches.page(organisation, asked))

    @rule(organisation=owners, back=backs, key=st.sampled_from(["", "", "", "once", "ünce"]))
    def order(self, organisation: str, back: int, key: str) -> None:
        number, now = next(self.numbers), self.clock.now()
        id = f"batch_{number:03}" if number % 6 else self.batch_id(1)
        created_at = now if number % 4 else now - 30
        order = BatchOrder(
            self.file_id(back), "/v1/chat/completions", "1m", 60, {"number": str(number)}, key=key
        )
        scopes = Scopes(organisation, "proj_1", "key_1")
        made = Batch(id, scopes, order, BatchState.VALIDATING, created_at, created_at + 60, {})
        stored = self.both(lambda it: it.batches.create(made))
        if isinstance(stored, Batch) and stored.id == id and id not in self.batch_ids:
            self.batch_ids.append(id)

    @rule(
        back=backs,
        to=st.sampled_from([*STATES, BatchState.IN_PROGRESS, BatchState.FINALIZING]),
        total=st.sampled_from([None, None, 4]),
        size=sizes | st.none(),
        lives=lives,
    )
    def advance(
        self, back: int, to: BatchState, total: int | None, size: int | None, lives: float | None
    ) -> None:
        id, files = self.batch_id(back), (None, None)
        if size is not None and to.is_ended:
            made = (self.file("org_a", size, lives, "batch_output") for _ in range(2))
            files = tuple(made)
        errors = (LineError("code", "message", line=total),) if total else ()
        learnt = Learnt("small" if total else "", total, errors, files)
        batch = self.both(lambda it: it.batches.advance(id, to, self.clock.now(), learnt))
        if isinstance(batch, Batch):
            known = (file.id for file in files if file is not None)
            self.file_ids += [each for each in known if each not in self.file_ids]

    @rule(back=backs, chosen=st.lists(lines, max_size=3), other=st.sampled_from([None, None, 2, 0]))
    def open(self, back: int, chosen: list[int], other: int | None) -> None:
        places = [Place(self.batch_id(back), line) for line in chosen]
        if other is not None:
            places.append(Place(self.batch_id(other), 1))
        self.both(lambda it: it.batches.open(places))

    @rule(back=backs, line=lines, attempt=st.integers(1, 3))
    def keep(self, back: int, line: int, attempt: int) -> None:
        place, answer = Place(self.batch_id(back), line), b"\x00%d" % next(self.numbers)
        self.both(lambda it: it.batches.keep(place, attempt, answer))

    @rule(back=backs, line=lines, fails=st.sampled_from([False, False, True]))
    def tell(self, back: int, line: int, fails: bool) -> None:
        place, number = Place(self.batch_id(back), line), next(self.numbers)
        outcome: Answered | Refused = Answered(Usage(number, 2 * number, 3), 7 * number, b"head")
        if fails:
            outcome = Refused(b"why %d" % number)
        if self.both(lambda it: it.batches.tell(place, outcome)) is True:
            self.told.append((place.batch_id, outcome))

    @rule(back=backs, line=lines)
    def run_line(self, back: int, line: int) -> None:
        """All of it, as it usually is."""
        self.open(back, [line], None)
        self.keep(back, line, 1)
        self.tell(back, line, False)

    @rule(limit=st.integers(0, 3))
    def forget_items(self, limit: int) -> None:
        self.both(lambda it: it.batches.forget_items(limit))

    @rule(passed=st.sampled_from([20.0, 20.0, 60.0]))
    def wait(self, passed: float) -> None:
        self.clock.advance(passed)
        self.look()

    @rule()
    def look(self) -> None:
        """At everything, as both organisations see it (B1)."""
        everything = Listing(100)
        for organisation in ORGANISATIONS:
            self.both(lambda it, org=organisation: it.files.page(org, everything))
            self.both(lambda it, org=organisation: it.files.used_bytes(org))
            self.both(lambda it, org=organisation: it.batches.page(org, everything))
            for id in self.file_ids:
                self.both(lambda it, at=(organisation, id): it.files.find(*at))
            for id in self.batch_ids:
                self.both(lambda it, at=(organisation, id): it.batches.find(*at))
        for id in self.batch_ids:
            self.both(lambda it, id=id: it.batches.items(id, 0, 100))
        self.both(lambda it: it.files.ids())
        self.both(lambda it: it.batches.unfinished())
        self.both(lambda it: it.batches.pending())

    @invariant()
    def counts_are_those_of_the_outcomes(self) -> None:
        listed = (
            self.both(lambda it, org=organisation: it.batches.page(org, Listing(100)))
            for organisation in ORGANISATIONS
        )
        for batch in (batch for page in listed for batch in page):
            mine = [outcome for id, outcome in self.told if id == batch.id]
            answers = [each for each in mine if isinstance(each, Answered)]
            counts = LineCounts(batch.counts.total, len(answers), len(mine) - len(answers))
            assert batch.counts == counts, "B3"
            sums: Counter[str] = Counter()
            for each in answers:
                sums["in"] += each.usage.input_tokens
                sums["cached"] += each.usage.cached_input_tokens
                sums["out"] += each.usage.output_tokens
                sums["nanos"] += each.amount_nanos
            assert batch.spent == Spent(sums["in"], sums["cached"], sums["out"], sums["nanos"]), (
                "B3"
            )


async def answer_of(verb: Callable[[Store], Awaitable[Any]], store: Store) -> Any:
    """The answer, or the error in a form that can be compared."""
    try:
        return await verb(store)
    except (ForebayError, KeyError, ValueError, FileInUse) as error:
        return type(error), str(error)
    except WrongWay as wrong:
        return type(wrong), wrong.batch


Twins.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestTwins = Twins.TestCase
