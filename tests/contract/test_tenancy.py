"""The tenancy contract on memory and on SQLite, and what only a store on disk can get wrong."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay.core.errors import InvalidRequest, NotAllowed, StoreUnavailable
from forebay.core.job import Lane
from forebay.core.principal import RateLimits
from forebay.migrations import Database, open_database
from forebay.tenancy import AdminKeys, Journal, PlanSettings, Tenancy, plans_by_name
from forebay.tenancy import sql as tenancy_sql
from forebay.tenancy.memory import MemoryAdminKeys, MemoryTenancy
from forebay.tenancy.memory_records import MemoryJournal
from forebay.tenancy.sql import SqlTenancy
from forebay.tenancy.sql_admin_keys import SqlAdminKeys
from forebay.tenancy.sql_records import SqlJournal
from forebay.testing.clock import CountingIds, FakeClock
from forebay.testing.contracts.admin_keys import *  # noqa: F403
from forebay.testing.contracts.tenancy import *  # noqa: F403
from forebay.testing.contracts.tenancy import NOW, PLANS, made, refusal_of, secret, spec
from forebay.testing.contracts.tenancy_directory import *  # noqa: F403
from forebay.testing.contracts.tenancy_records import *  # noqa: F403
from forebay.testing.contracts.tenancy_records import change

PEPPER = bytes(range(32))


class CountedRunner:
    """The database, counting how often it is asked."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.runs = 0

    async def run(self, work: Callable[[sa.Connection], Any]) -> Any:
        self.runs += 1
        return await self._database.run(work)


def sql_tenancy(
    runner: Any, clock: FakeClock, *, plans: Any = PLANS, pepper: bytes = PEPPER
) -> Any:
    return SqlTenancy(runner, clock=clock, ids=CountingIds(), plans=plans, pepper=pepper)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = open_database(tmp_path / "forebay.db")
    yield database
    database.close()


@pytest.fixture(params=["memory", "sql"])
async def tenancy(
    request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path
) -> AsyncIterator[Tenancy]:
    if request.param == "memory":
        yield MemoryTenancy(clock=clock, ids=CountingIds(), plans=PLANS, pepper=PEPPER)
        return
    database = open_database(tmp_path / "tenancy.db")
    yield sql_tenancy(database, clock)
    database.close()


@pytest.fixture(params=["memory", "sql"])
async def admin_keys(
    request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path
) -> AsyncIterator[AdminKeys]:
    if request.param == "memory":
        yield MemoryAdminKeys(clock=clock, pepper=PEPPER)
        return
    with peopled(tmp_path) as database:
        yield SqlAdminKeys(database, clock=clock, pepper=PEPPER)


@pytest.fixture(params=["memory", "sql"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Journal]:
    if request.param == "memory":
        yield MemoryJournal()
        return
    with peopled(tmp_path) as database:
        yield SqlJournal(database)


@contextmanager
def peopled(folder: Path) -> Iterator[Database]:
    """A database with two organisations and a project."""
    path = folder / "peopled.db"
    open_database(path).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(
            "INSERT INTO organisations (id, name, plan, created_at)"
            " VALUES ('org_1', 'one', '', 0), ('org_2', 'two', '', 0);"
            "INSERT INTO projects (id, organisation_id, name, created_at)"
            " VALUES ('proj_1', 'org_1', 'web', 0)"
        )
    database = open_database(path)
    yield database
    database.close()


async def test_the_journal_cannot_be_rewritten(tmp_path: Path) -> None:
    with peopled(tmp_path) as database:
        await SqlJournal(database).record(change(1))
    for statement in ("UPDATE changes SET actor_id = ''", "DELETE FROM changes"):
        with (
            closing(sqlite3.connect(tmp_path / "peopled.db")) as connection,
            pytest.raises(sqlite3.IntegrityError, match="never rewritten"),
        ):
            connection.execute(statement)


async def test_keys_and_revocations_outlive_the_process(tmp_path: Path, clock: FakeClock) -> None:
    database = open_database(tmp_path / "forebay.db")
    before = sql_tenancy(database, clock)
    infos = [await made(before, 1), await made(before, 2)]
    infos[1] = await before.revoke_key("key_2", at=NOW + 1)
    infos[0] = await before.rotate_key("key_1", secret(3), at=NOW, overlap_seconds=60)
    database.close()

    database = open_database(tmp_path / "forebay.db")
    after = sql_tenancy(database, clock)
    assert await after.keys() == infos
    assert (await after.authenticate(secret(1))).scopes == infos[0].scopes
    assert (await after.authenticate(secret(3))).scopes == infos[0].scopes
    await refusal_of(after, secret(2))
    clock.advance(60)
    await refusal_of(after, secret(1))
    database.close()


async def test_neither_the_secret_nor_a_plain_hash_of_it_is_in_the_file(
    tmp_path: Path, clock: FakeClock
) -> None:
    database = open_database(tmp_path / "forebay.db")
    await made(sql_tenancy(database, clock))
    database.close()
    content = (tmp_path / "forebay.db").read_bytes()
    assert b"key_1" in content
    assert secret(1).encode() not in content
    assert secret(1)[12:30].encode() not in content


async def test_a_key_means_nothing_under_another_pepper(
    database: Database, clock: FakeClock
) -> None:
    await made(sql_tenancy(database, clock))
    await refusal_of(sql_tenancy(database, clock, pepper=bytes(32)), secret(1))


async def test_malformed_keys_never_reach_the_store(database: Database, clock: FakeClock) -> None:
    runner = CountedRunner(database)
    tenancy = sql_tenancy(runner, clock)
    mistyped = secret(1)[:-1] + ("a" if secret(1)[-1] != "a" else "b")
    for garbage in ("", "sk-123", mistyped, secret(1) + "0", "' OR 1=1 --"):
        await refusal_of(tenancy, garbage)
    assert runner.runs == 0


async def test_a_warm_key_does_not_reach_the_store(database: Database, clock: FakeClock) -> None:
    runner = CountedRunner(database)
    tenancy = sql_tenancy(runner, clock)
    await made(tenancy)
    await tenancy.authenticate(secret(1))
    warm = runner.runs
    for _ in range(100):
        await tenancy.authenticate(secret(1))
    assert runner.runs == warm


async def test_a_warm_key_that_ordered_something_does_not_reach_the_store(
    database: Database, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as no more of them are remembered than may be."""
    monkeypatch.setattr(tenancy_sql, "REMEMBERED_KEYS", 2)
    runner = CountedRunner(database)
    tenancy = sql_tenancy(runner, clock)
    for number in (1, 2, 3):
        await made(tenancy, number)
        await tenancy.principal(f"key_{number}")
    warm = runner.runs
    for number in (2, 3) * 50:
        await tenancy.principal(f"key_{number}")
    assert runner.runs == warm
    await tenancy.principal("key_1")
    assert runner.runs == warm + 1


async def test_an_unknown_key_reaches_the_store_once(database: Database, clock: FakeClock) -> None:
    runner = CountedRunner(database)
    tenancy = sql_tenancy(runner, clock)
    for _ in range(100):
        await refusal_of(tenancy, secret(1))
    assert runner.runs == 1


async def test_a_flood_of_unknown_keys_shares_its_queries(
    database: Database, clock: FakeClock
) -> None:
    """1,200 callers at once: the first asks alone, then 500 at a time."""
    runner = CountedRunner(database)
    tenancy = sql_tenancy(runner, clock)
    keys = [secret(number) for number in range(600)] * 2
    answers = await asyncio.gather(
        *(tenancy.authenticate(key) for key in keys), return_exceptions=True
    )
    assert all(isinstance(answer, Exception) for answer in answers)
    assert runner.runs <= 4


async def test_what_is_remembered_is_bounded_and_a_flood_spares_live_keys(
    database: Database, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenancy_sql, "REMEMBERED_REFUSALS", 10)
    monkeypatch.setattr(tenancy_sql, "REMEMBERED_KEYS", 2)
    runner = CountedRunner(database)
    tenancy = sql_tenancy(runner, clock)
    for number in (1, 2, 3):
        await made(tenancy, number)
        await tenancy.authenticate(secret(number))
    for number in range(100, 130):
        await refusal_of(tenancy, secret(number))
    asked = runner.runs
    await tenancy.authenticate(secret(2))
    await tenancy.authenticate(secret(3))
    await refusal_of(tenancy, secret(129))
    assert runner.runs == asked
    await tenancy.authenticate(secret(1))
    await refusal_of(tenancy, secret(100))
    assert runner.runs == asked + 2


async def test_a_caller_that_leaves_does_not_take_the_others_along(
    database: Database, clock: FakeClock
) -> None:
    tenancy = sql_tenancy(database, clock)
    info = await made(tenancy)
    tries = [asyncio.create_task(tenancy.authenticate(secret(1))) for _ in range(5)]
    await asyncio.sleep(0)
    tries[0].cancel()
    answers = await asyncio.gather(*tries, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert [answer.scopes for answer in answers[1:]] == [info.scopes] * 4


async def test_a_revocation_whose_caller_left_holds_all_the_same(
    database: Database, clock: FakeClock
) -> None:
    tenancy = sql_tenancy(database, clock)
    await made(tenancy)
    await tenancy.authenticate(secret(1))
    revoking = asyncio.create_task(tenancy.revoke_key("key_1", at=NOW))
    await asyncio.sleep(0)
    revoking.cancel()
    await asyncio.gather(revoking, return_exceptions=True)
    stored = (await tenancy.keys())[0]
    if stored.revoked_at is not None:
        await refusal_of(tenancy, secret(1))
    else:
        await tenancy.authenticate(secret(1))


async def test_a_failing_store_is_our_error_and_warm_keys_go_on(
    database: Database, clock: FakeClock
) -> None:
    tenancy = sql_tenancy(database, clock)
    info = await made(tenancy)
    await tenancy.authenticate(secret(1))
    database.close()
    assert (await tenancy.authenticate(secret(1))).scopes == info.scopes
    with pytest.raises(StoreUnavailable):
        await tenancy.authenticate(secret(2))
    with pytest.raises(StoreUnavailable):
        await tenancy.keys()


async def test_a_plan_that_left_the_configuration_is_named_and_not_replaced(
    database: Database, clock: FakeClock
) -> None:
    before = sql_tenancy(database, clock)
    await before.ensure("acme", "default", plan="premium")
    await before.create_key(spec(organisation="acme"), secret(1))
    after = sql_tenancy(database, clock, plans=plans_by_name([]))
    with pytest.raises(NotAllowed, match="premium"):
        await after.authenticate(secret(1))


async def test_a_plan_that_shrinks_takes_lanes_from_existing_keys(
    database: Database, clock: FakeClock
) -> None:
    await made(sql_tenancy(database, clock), lanes=frozenset({Lane.INTERACTIVE, Lane.BATCH}))
    smaller = plans_by_name([PlanSettings(name="standard", weight=2, lanes=(Lane.BATCH,))])
    principal = await sql_tenancy(database, clock, plans=smaller).authenticate(secret(1))
    assert principal.lanes == {Lane.BATCH}
    assert principal.weight == 2


KEYS = st.integers(1, 4)
NAMES = st.sampled_from(["a", "b", ""])
LIMITS = st.sampled_from([RateLimits(), RateLimits(1, 2, 3), RateLimits(61)])
VERBS = st.one_of(
    st.tuples(st.just("ensure"), NAMES, NAMES, st.sampled_from(["standard", "trial", "gold"])),
    st.tuples(st.just("create"), KEYS, KEYS, NAMES, NAMES, st.sampled_from([None, 5.0])),
    st.tuples(st.just("revoke"), KEYS),
    st.tuples(st.just("rotate"), KEYS, st.integers(1, 8), st.sampled_from([0.0, 5.0, -1.0])),
    st.tuples(st.just("archive"), st.integers(0, 3)),
    st.tuples(st.just("rename"), st.integers(0, 3), NAMES),
    st.tuples(st.just("limit"), st.integers(0, 3), st.sampled_from([None, "m"]), LIMITS),
    st.tuples(st.just("authenticate"), st.integers(1, 8)),
    st.tuples(st.just("principal"), KEYS),
    st.tuples(st.just("advance"), st.sampled_from([1.0, 10.0])),
    st.tuples(st.just("list")),
)


async def play(tenancy: Tenancy, clock: FakeClock, verbs: list[tuple[Any, ...]]) -> list[Any]:
    """Each verb's answer, or the class and message of its error."""
    answers: list[Any] = []
    for verb in verbs:
        try:
            answers.append(await play_one(tenancy, clock, verb))
        except Exception as error:
            answers.append((type(error), str(error)))
    return answers


async def project(tenancy: Tenancy, number: int) -> str:
    """The id of the number-th project, or one that is none."""
    found = await tenancy.projects()
    return found[number].scopes.project_id if number < len(found) else "proj_none"


async def play_one(tenancy: Any, clock: FakeClock, verb: tuple[Any, ...]) -> Any:
    match verb:
        case ("ensure", organisation, project, plan):
            return await tenancy.ensure(organisation, project, plan=plan)
        case ("create", key, number, organisation, project, lifetime):
            expires_at = None if lifetime is None else clock.now() + lifetime
            wanted = spec(
                f"key_{key}",
                organisation=organisation,
                project=project,
                created_at=clock.now(),
                expires_at=expires_at,
            )
            return await tenancy.create_key(wanted, secret(number))
        case ("revoke", key):
            return await tenancy.revoke_key(f"key_{key}", at=clock.now())
        case ("rotate", key, number, overlap):
            return await tenancy.rotate_key(
                f"key_{key}", secret(number), at=clock.now(), overlap_seconds=overlap
            )
        case ("archive", number):
            return await tenancy.archive_project(await project(tenancy, number), at=clock.now())
        case ("rename", number, name):
            return await tenancy.rename_project(await project(tenancy, number), name)
        case ("limit", number, model, limits):
            project_id = await project(tenancy, number)
            return await tenancy.set_limits(project_id, limits, model=model)
        case ("authenticate", number):
            return await tenancy.authenticate(secret(number))
        case ("principal", key):
            return await tenancy.principal(f"key_{key}")
        case ("advance", seconds):
            return clock.advance(seconds)
        case _:
            return await tenancy.keys(), await tenancy.organisations(), await tenancy.projects()


@pytest.mark.parametrize("backend", ["memory", "sql"])
async def test_a_limit_that_a_lowered_plan_left_above_itself_keeps_no_other_from_a_change(
    database: Database, clock: FakeClock, backend: str
) -> None:
    plans = dict(PLANS)
    tenancy = sql_tenancy(database, clock, plans=plans)
    if backend == "memory":
        tenancy = MemoryTenancy(clock=clock, ids=CountingIds(), plans=plans, pepper=PEPPER)
    before = RateLimits(tokens_per_minute=500)
    project_id = (await made(tenancy)).scopes.project_id
    for model in (None, "m"):
        await tenancy.set_limits(project_id, before, model=model)
    low = RateLimits(tokens_per_minute=400)
    plans["standard"] = replace(plans["standard"], limits=low)
    wanted = replace(before, requests_per_minute=5)
    for model in (None, "m"):
        await tenancy.set_limits(project_id, wanted, model=model)
        with pytest.raises(InvalidRequest, match="is 450, but the plan 'standard' allows 400"):
            await tenancy.set_limits(
                project_id, replace(wanted, tokens_per_minute=450), model=model
            )
    principal = await tenancy.authenticate(secret(1))
    assert principal.project_limits == principal.model_limits["m"] == wanted
    assert principal.organisation_limits == low


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(verbs=st.lists(VERBS, min_size=4, max_size=30))
def test_sql_answers_as_memory_does_whatever_is_asked(
    verbs: list[tuple[Any, ...]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    async def both() -> None:
        clocks = FakeClock(), FakeClock()
        memory = MemoryTenancy(clock=clocks[0], ids=CountingIds(), plans=PLANS, pepper=PEPPER)
        database = open_database(tmp_path_factory.mktemp("pair") / "forebay.db")
        try:
            expected = await play(memory, clocks[0], verbs)
            assert await play(sql_tenancy(database, clocks[1]), clocks[1], verbs) == expected
        finally:
            database.close()

    asyncio.run(both())
