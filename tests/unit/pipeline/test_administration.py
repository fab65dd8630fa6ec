"""What an operator may do, on the rooms in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from forebay.core.errors import InsufficientQuota, InvalidRequest
from forebay.core.hold import Bill, HoldRequest, Period
from forebay.core.job import Lane
from forebay.core.money import PriceTerms
from forebay.core.principal import Scopes
from forebay.core.usage import Usage
from forebay.ledger.memory import MemoryLedger
from forebay.pipeline.administration import Administration, Desk, KeyRequest
from forebay.tenancy import plans_by_name
from forebay.tenancy.memory import MemoryTenancy
from forebay.testing.clock import CountingIds, FakeClock

DAY_SECONDS = 86_400.0
MODELS = [
    {"id": "smollm2", "aliases": ["small", "default"]},
    {"id": "scripted", "aliases": []},
]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def desk(clock: FakeClock) -> Desk:
    ids = CountingIds()
    ledger = MemoryLedger(clock)
    tenancy = MemoryTenancy(clock=clock, ids=ids, plans=plans_by_name([]), pepper=bytes(32))

    async def status() -> dict[str, Any]:
        return {}

    async def activity() -> dict[str, Any]:
        projects = [info.scopes.project_id for info in await tenancy.projects()]
        return {"calls": [{"project_id": each} for each in projects], "nanos_per_hour": 1_500_000}

    return Desk(
        tenancy=tenancy,
        ledger=ledger,
        books=ledger,
        records=ledger.records,
        engines=(),
        models=lambda: MODELS,
        status=status,
        activity=activity,
        clock=clock,
        ids=ids,
    )


@pytest.fixture
def administration(desk: Desk) -> Administration:
    return Administration(desk)


async def scopes_of(desk: Desk, key_id: str) -> Scopes:
    return next(info.scopes for info in await desk.tenancy.keys() if info.id == key_id)


async def ask(desk: Desk, key_id: str, call_id: str, ceiling_tokens: int = 10) -> HoldRequest:
    """A call of 1 USD a token of output."""
    price = await desk.books.publish_price(PriceTerms("small", Lane.INTERACTIVE, 0, 0, 10**9))
    return HoldRequest(
        id=call_id,
        scopes=await scopes_of(desk, key_id),
        model="small",
        lane=Lane.INTERACTIVE,
        price_version=price.version,
        input_tokens=1,
        ceiling_tokens=ceiling_tokens,
        floor_tokens=ceiling_tokens,
        choices=1,
        streamed=False,
        owner="gw",
        created_at=desk.clock.now(),
    )


# -- keys


async def test_a_key_for_models_gets_their_ids_whatever_they_were_called(administration):
    made = await administration.create_key(KeyRequest(models=("small", "scripted", "default")))
    assert made["models"] == ["scripted", "smollm2"]


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (KeyRequest(models=("nope",)), "'nope' here; there are: smollm2, small, default, scripted"),
        (KeyRequest(max_open_calls=0), "max_open_calls must be at least 1"),
        (KeyRequest(max_open_calls=2**70), "max_open_calls must be at least 1"),
        (KeyRequest(calls_per_minute=0), "calls_per_minute must be at least 1"),
        (KeyRequest(expires_in_days=0), "must be above 0"),
        (KeyRequest(expires_in_days=float("nan")), "must be above 0"),
        (KeyRequest(expires_in_days=1e300), "at most 36500"),
        (KeyRequest(monthly_budget_usd="much"), "monthly budget"),
    ],
)
async def test_a_key_that_could_never_be_used_is_refused(administration, request_, words):
    with pytest.raises(InvalidRequest, match=words):
        await administration.create_key(request_)
    assert await administration.list_keys() == []


async def test_a_refused_key_makes_no_organisation(administration, desk):
    with pytest.raises(InvalidRequest):
        await administration.create_key(KeyRequest(organisation="acme", models=("nope",)))
    assert await desk.tenancy.organisations() == []


async def test_a_key_is_revoked_by_its_id_the_end_of_it_its_name_or_its_redacted_form(
    administration,
):
    made = [await administration.create_key(KeyRequest(name=f"team {n}")) for n in range(4)]
    ends = [
        made[0]["id"],
        made[1]["id"][-6:],
        "…" + made[1]["id"][-6:],
        "team 2",
        made[3]["redacted"],
    ]
    revoked = [(await administration.revoke_key(end))["id"] for end in ends]
    assert revoked == [made[n]["id"] for n in (0, 1, 1, 2, 3)]
    assert all(row["revoked_at"] is not None for row in await administration.list_keys())


async def test_what_means_several_keys_revokes_none_and_lists_them(administration):
    made = [await administration.create_key(KeyRequest(name="twin")) for _ in range(2)]
    with pytest.raises(InvalidRequest, match="means several keys") as refused:
        await administration.revoke_key("twin")
    assert all(key["id"] in refused.value.message for key in made)
    for text in ("nobody", "", made[0]["id"][-5:], "…"):
        with pytest.raises(InvalidRequest, match="There is no key"):
            await administration.revoke_key(text)
    assert [row["revoked_at"] for row in await administration.list_keys()] == [None, None]


# -- budgets


async def test_budgets_are_a_months_and_listed_with_what_was_spent(administration, desk):
    key = await administration.create_key(KeyRequest(organisation="acme", project="web"))
    await administration.create_key(KeyRequest(organisation="other"))
    await administration.create_key(KeyRequest(organisation="acme", project="mobile"))
    await administration.set_budget("acme", "50.00")
    row = await administration.set_budget("acme", "5", project="web")
    assert (row["organisation"], row["project"], row["monthly_budget_usd"]) == (
        "acme",
        "web",
        "5.00",
    )
    hold = await desk.ledger.hold(await ask(desk, key["id"], "req_1", 3))
    await desk.ledger.settle(hold.id, 1, Bill(Usage(1, 2)))
    rows = await administration.list_budgets()
    assert [
        (row["organisation"], row["project"], row["monthly_budget_usd"], row["spent_usd"])
        for row in rows
    ] == [
        ("acme", None, "50.00", "2.00"),
        ("acme", "web", "5.00", "2.00"),
        ("acme", "mobile", None, "0.00"),
        ("other", None, None, "0.00"),
        ("other", "default", None, "0.00"),
    ]
    scopes = await scopes_of(desk, key["id"])
    for scope in scopes:
        assert (await desk.ledger.balances(scope)).account.period is Period.MONTH


async def test_a_budget_ends_with_the_month_and_none_lifts_it(administration, desk, clock):
    key = await administration.create_key(KeyRequest())
    await administration.set_budget("default", "10.00")
    first = await desk.ledger.hold(await ask(desk, key["id"], "req_1"))
    await desk.ledger.settle(first.id, 1, Bill(Usage(1, 10)))
    with pytest.raises(InsufficientQuota, match="monthly budget of its organisation"):
        await desk.ledger.hold(await ask(desk, key["id"], "req_2"))
    clock.advance(32 * DAY_SECONDS)
    await desk.ledger.hold(await ask(desk, key["id"], "req_3"))
    with pytest.raises(InsufficientQuota):
        await desk.ledger.hold(await ask(desk, key["id"], "req_4"))
    lifted = await administration.set_budget("default", None)
    assert lifted["monthly_budget_usd"] is None
    await desk.ledger.hold(await ask(desk, key["id"], "req_4"))


async def test_l2_a_lowered_budget_refuses_new_calls_and_lets_running_ones_finish(
    administration, desk
):
    """L2: a cap lowered below what is held takes nothing from the call that holds it."""
    key = await administration.create_key(KeyRequest())
    running = await desk.ledger.hold(await ask(desk, key["id"], "req_1"))
    lowered = await administration.set_budget("default", "1.00", project="default")
    assert (lowered["pending_usd"], lowered["open_calls"]) == ("10.00", 1)
    with pytest.raises(InsufficientQuota, match="budget of its project"):
        await desk.ledger.hold(await ask(desk, key["id"], "req_2", 1))
    row = await desk.ledger.settle(running.id, 1, Bill(Usage(1, 10)))
    assert row.amount_nanos == 10 * 10**9


async def test_a_budget_for_nobody_is_refused_with_those_that_there_are(administration, desk):
    with pytest.raises(InvalidRequest, match="none yet"):
        await administration.set_budget("acme", "1")
    await administration.create_key(KeyRequest(organisation="acme", project="web"))
    with pytest.raises(InvalidRequest, match=r"no organisation 'acmee'; there are: acme\."):
        await administration.set_budget("acmee", "1")
    with pytest.raises(InvalidRequest, match=r"no project 'app' in 'acme'; there are: web\."):
        await administration.set_budget("acme", "1", project="app")
    with pytest.raises(InvalidRequest, match="monthly budget"):
        await administration.set_budget("acme", "-1")
    assert [row["monthly_budget_usd"] for row in await administration.list_budgets()] == [None] * 2


async def test_many_names_are_not_all_listed(administration, desk):
    for number in range(30):
        await desk.tenancy.ensure(f"org{number}", "default", plan="standard")
    with pytest.raises(InvalidRequest, match=r"org0, .*org19 and 10 more\."):
        await administration.set_budget("nobody", "1")


async def test_a_budget_opens_the_account_that_a_broken_off_start_left_out(administration, desk):
    scopes = await desk.tenancy.ensure("acme", "web", plan="standard")
    await administration.set_budget("acme", "1")
    account = (await desk.ledger.balances(scopes.organisation_id)).account
    assert (account.cap_nanos, account.period) == (10**9, Period.MONTH)


# -- usage


async def test_usage_names_keys_projects_and_organisations(administration, desk, clock):
    key = await administration.create_key(
        KeyRequest(name="team", organisation="acme", project="web")
    )
    for number in range(2):
        hold = await desk.ledger.hold(await ask(desk, key["id"], f"req_{number}"))
        await desk.ledger.settle(hold.id, 1, Bill(Usage(1, 1)))
        clock.advance(DAY_SECONDS)
    rows = await administration.usage()
    assert [(row["call_id"], row["key_name"]) for row in rows] == [
        ("req_1", "team"),
        ("req_0", "team"),
    ]
    assert rows[0]["key_redacted"] == key["redacted"]
    scopes = await scopes_of(desk, key["id"])
    for by, group, name in (
        ("key", key["id"], "team"),
        ("project", scopes.project_id, "acme/web"),
        ("organisation", scopes.organisation_id, "acme"),
    ):
        [total] = await administration.usage_totals(by)
        assert (total[by], total["name"], total["calls"]) == (group, name, 2)
    [total] = await administration.usage_totals("model")
    assert "name" not in total
    middle = clock.now() - 1.5 * DAY_SECONDS
    assert [row["call_id"] for row in await administration.usage(since=middle)] == ["req_1"]
    [before] = await administration.usage_totals("key", until=middle)
    assert before["calls"] == 1
    with pytest.raises(InvalidRequest, match="key, project, organisation, model, day"):
        await administration.usage_totals("colour")


async def test_usage_of_a_key_that_is_not_known_any_more_has_no_name(desk):
    """A ledger restored beside a younger forebay.db."""
    administration = Administration(desk)
    key = await administration.create_key(KeyRequest())
    hold = await desk.ledger.hold(await ask(desk, key["id"], "req_1"))
    await desk.ledger.settle(hold.id, 1, Bill(Usage(1, 1)))
    other = MemoryTenancy(clock=desk.clock, ids=desk.ids, plans=plans_by_name([]), pepper=bytes(32))
    restored = Administration(replace(desk, tenancy=other))
    [row] = await restored.usage()
    assert (row["key_name"], row["key_redacted"]) == ("", "")
    [total] = await restored.usage_totals("organisation")
    assert total["name"] == ""


# -- activity


async def test_activity_names_projects_and_says_what_today_cost(administration, desk, clock):
    key = await administration.create_key(KeyRequest(organisation="acme", project="web"))
    for number in range(2):
        hold = await desk.ledger.hold(await ask(desk, key["id"], f"req_{number}"))
        await desk.ledger.settle(hold.id, 1, Bill(Usage(1, 1 + number)))
        clock.advance(DAY_SECONDS * (1 - number))
    seen = await administration.activity()
    assert [call["project"] for call in seen["calls"]] == ["acme/web"]
    assert (seen["spent_today_usd"], seen["usd_per_hour"]) == ("2.00", "0.0015")
    assert key["key"] not in str(seen)
