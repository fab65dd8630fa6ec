"""What an operator may do, on the rooms in memory."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from forebay.core.errors import InsufficientQuota, InvalidKey, InvalidRequest
from forebay.core.hold import Account, Bill, HoldRequest, Period
from forebay.core.job import Lane
from forebay.core.money import PriceTerms
from forebay.core.principal import OPERATOR, Scopes
from forebay.core.usage import Kind, Usage
from forebay.pipeline.admin_keys import KeyRequest
from forebay.pipeline.administration import Administration
from forebay.pipeline.desk import Desk
from forebay.tenancy import ChangeQuery, PlanSettings, plans_by_name
from forebay.tenancy.memory import MemoryTenancy
from forebay.testing.clock import FakeClock
from forebay.testing.desk import memory_desk

DAY_SECONDS = 86_400.0
SMALL = PlanSettings(name="small", concurrent_calls=3, key_budget_usd=Decimal("2.50"))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def desk(clock: FakeClock) -> Desk:
    return memory_desk(clock, [SMALL])


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
    made = await administration.keys.create(KeyRequest(models=("small", "scripted", "default")))
    assert made["models"] == ["scripted", "smollm2"]


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (KeyRequest(models=("nope",)), "'nope' here; there are: smollm2, small, default, scripted"),
        (KeyRequest(max_open_calls=0), "max_open_calls is 0, but must be between 1"),
        (KeyRequest(max_open_calls=2**70), "but must be between 1 and 2147483647"),
        (KeyRequest(requests_per_minute=0), "requests_per_minute is 0, but must be between 1 and"),
        (KeyRequest(expires_in_days=0), "must be above 0"),
        (KeyRequest(expires_in_days=float("nan")), "must be above 0"),
        (KeyRequest(expires_in_days=1e300), "at most 36500"),
        (KeyRequest(monthly_budget_usd="much"), "monthly_budget_usd: 'much' is not"),
    ],
)
async def test_a_key_that_could_never_be_used_is_refused(administration, request_, words):
    with pytest.raises(InvalidRequest, match=words):
        await administration.keys.create(request_)
    assert await administration.keys.list() == []


async def test_a_refused_key_makes_no_organisation(administration, desk):
    with pytest.raises(InvalidRequest):
        await administration.keys.create(KeyRequest(organisation="acme", models=("nope",)))
    assert await desk.tenancy.organisations() == []


async def test_a_key_is_revoked_by_its_id_the_end_of_it_its_name_or_its_redacted_form(
    administration,
):
    made = [await administration.keys.create(KeyRequest(name=f"team {n}")) for n in range(4)]
    ends = [
        made[0]["id"],
        made[1]["id"][-6:],
        "…" + made[1]["id"][-6:],
        "team 2",
        made[3]["redacted"],
    ]
    revoked = [(await administration.keys.revoke(end))["id"] for end in ends]
    assert revoked == [made[n]["id"] for n in (0, 1, 1, 2, 3)]
    assert all(row["revoked_at"] is not None for row in await administration.keys.list())


async def test_what_means_several_keys_revokes_none_and_lists_them(administration):
    made = [await administration.keys.create(KeyRequest(name="twin")) for _ in range(2)]
    with pytest.raises(InvalidRequest, match="means several keys") as refused:
        await administration.keys.revoke("twin")
    assert all(key["id"] in refused.value.message for key in made)
    for text in ("nobody", "", made[0]["id"][-5:], "…"):
        with pytest.raises(InvalidRequest, match="There is no key"):
            await administration.keys.revoke(text)
    assert [row["revoked_at"] for row in await administration.keys.list()] == [None, None]


async def test_a_rotated_key_has_another_secret_and_all_else_as_before(administration, desk):
    made = await administration.keys.create(KeyRequest(name="team", requests_per_minute=5))
    rotated = await administration.keys.rotate("team", overlap_seconds=60)
    assert rotated["key"] != made["key"]
    assert rotated["old_works_until"] == desk.clock.now() + 60
    assert (rotated["id"], rotated["requests_per_minute"]) == (made["id"], 5)
    for key in (made, rotated):
        assert (await desk.tenancy.authenticate(key["key"])).scopes.key_id == made["id"]


async def test_a_second_rotation_says_that_an_even_older_secret_stopped(administration, clock):
    made = await administration.keys.create(KeyRequest(name="team", expires_in_days=1))
    first = await administration.keys.rotate(made["id"], overlap_seconds=60)
    second = await administration.keys.rotate(made["id"], overlap_seconds=5 * DAY_SECONDS)
    assert [first["older_secret_stopped"], second["older_secret_stopped"]] == [False, True]
    assert second["old_works_until"] == made["expires_at"]
    clock.advance(DAY_SECONDS / 2)
    await administration.keys.rotate(made["id"], overlap_seconds=0)
    assert not (await administration.keys.rotate(made["id"]))["older_secret_stopped"]


async def test_what_is_of_an_archived_project_is_shown_so_and_stays_as_it_is(administration, clock):
    made = await administration.keys.create(KeyRequest(organisation="acme", project="web"))
    await administration.projects.archive_named("acme", "web")
    [row] = await administration.keys.list()
    assert row["project_archived_at"] == clock.now()
    with pytest.raises(InvalidRequest, match="is archived"):
        await administration.keys.rotate(made["id"])
    for place in ({"organisation": "acme", "project": "web"}, {"key": made["id"]}):
        with pytest.raises(InvalidRequest, match="is archived"):
            await administration.budgets.set("5", **place)
    await administration.budgets.set("5", organisation="acme")


async def test_another_plan_than_that_of_the_organisation_is_refused(administration):
    await administration.keys.create(KeyRequest(organisation="acme", plan="small"))
    with pytest.raises(InvalidRequest, match="'acme' has the plan 'small', not 'standard'"):
        await administration.keys.create(KeyRequest(organisation="acme", plan="standard"))
    for plan in (None, "small"):
        await administration.keys.create(KeyRequest(organisation="acme", plan=plan))
    assert [row["plan"] for row in await administration.projects.list_limits()] == ["small"]


async def test_an_organisation_gets_another_plan_with_its_open_calls(administration, desk):
    made = await administration.keys.create(KeyRequest(organisation="acme", plan="small"))
    scope = (await scopes_of(desk, made["id"])).organisation_id
    for plan, most in (("standard", None), ("small", 3)):
        await administration.projects.set_plan("acme", plan)
        assert (await desk.ledger.balances(scope)).account.max_open_holds == most
    [newest, _] = await desk.journal.changes(ChangeQuery(scope, types=("organization.updated",)))
    assert newest.details == {"changes_requested": {"plan": "small"}}
    with pytest.raises(InvalidRequest, match="no plan 'large'; there are: small, standard"):
        await administration.projects.set_plan("acme", "large")


async def test_a_plan_gives_new_keys_a_budget_and_bounds_their_open_calls(administration, desk):
    small = KeyRequest(organisation="acme", plan="small")
    key = await administration.keys.create(small)
    assert (key["budget_usd"], key["period"]) == ("2.50", "month")
    rich = await administration.keys.create(replace(small, monthly_budget_usd="9"))
    assert rich["budget_usd"] == "9.00"
    free = await administration.keys.create(replace(small, monthly_budget_usd="none"))
    assert free["budget_usd"] is None
    with pytest.raises(InvalidRequest, match="max_open_calls is 4, but the plan 'small' allows 3"):
        await administration.keys.create(replace(small, max_open_calls=4))
    scopes = await scopes_of(desk, key["id"])
    assert (await desk.ledger.balances(scopes.organisation_id)).account.max_open_holds == 3


async def test_a_plan_that_changed_holds_for_organisations_that_exist(administration, desk):
    key = await administration.keys.create(KeyRequest(organisation="acme"))
    organisation_id = (await scopes_of(desk, key["id"])).organisation_id
    for most in (2, None):
        plans = plans_by_name([PlanSettings(concurrent_calls=most)])
        desk.tenancy._plans = plans
        await administration.budgets.apply_plans()
        account = (await desk.ledger.balances(organisation_id)).account
        assert account.max_open_holds == most


async def test_an_admin_key_acts_for_its_organisation_alone(administration, desk):
    """L14: what it sees, and what it may revoke, is its own."""
    ours = await administration.keys.create(KeyRequest(organisation="acme"))
    theirs = await administration.keys.create(KeyRequest(organisation="other"))
    made = await administration.keys.create_admin("acme", "boss")
    await administration.keys.create_admin("other", "other boss")
    boss = await administration.by(made["key"])
    assert [row["id"] for row in await boss.keys.list()] == [ours["id"]]
    assert [row["name"] for row in await boss.keys.list_admin()] == ["boss"]
    with pytest.raises(InvalidRequest, match="There is no key"):
        await boss.keys.revoke(theirs["id"])
    with pytest.raises(InvalidRequest, match="no organisation 'other'"):
        await boss.budgets.set("1", "other")
    with pytest.raises(InvalidKey):
        await administration.by(ours["key"])
    await administration.keys.revoke_admin(made["id"])
    with pytest.raises(InvalidKey):
        await administration.by(made["key"])


async def test_who_changed_what_is_in_the_journal(administration, desk):
    key = await administration.keys.create(KeyRequest(organisation="acme", project="web"))
    admin = await administration.keys.create_admin("acme", "boss")
    boss = await administration.by(admin["key"])
    await boss.budgets.set("5", "acme", "web")
    await boss.keys.rotate(key["id"])
    await boss.keys.revoke(key["id"])
    await boss.keys.revoke(key["id"])
    scopes = await scopes_of(desk, key["id"])
    changes = await desk.journal.changes(ChangeQuery(scopes.organisation_id))
    assert [(c.type, c.actor_id, c.subject_id) for c in reversed(changes)] == [
        ("project.created", "", scopes.project_id),
        ("api_key.created", "", key["id"]),
        ("api_key.created", "", admin["id"]),
        ("project.updated", admin["id"], scopes.project_id),
        ("api_key.updated", admin["id"], key["id"]),
        ("api_key.deleted", admin["id"], key["id"]),
    ]
    assert changes[2].details == {"changes_requested": {"budget_usd": "5.00"}}
    assert key["key"] not in str(changes)
    assert admin["key"] not in str(changes)


# -- projects


async def test_a_project_is_limited_in_all_and_for_a_model(administration, desk):
    key = await administration.keys.create(KeyRequest(organisation="acme", project="web"))
    projects = administration.projects
    await projects.set_limits("acme", "web", {"requests_per_minute": 60, "tokens_per_minute": 900})
    row = await projects.set_limits("acme", "web", {"tokens_per_minute": None})
    assert (row["requests_per_minute"], row["tokens_per_minute"]) == (60, None)
    row = await projects.set_limits("acme", "web", {"requests_per_minute": 5}, model="small")
    assert row["model"] == "smollm2"
    principal = await desk.tenancy.authenticate(key["key"])
    assert principal.project_limits.requests_per_minute == 60
    assert principal.model_limits["smollm2"].requests_per_minute == 5
    assert [(r["model"], r["requests_per_minute"]) for r in await projects.list_limits()] == [
        (None, 60),
        ("smollm2", 5),
    ]
    with pytest.raises(InvalidRequest, match="There is no limit 'colour'"):
        await projects.set_limits("acme", "web", {"colour": 1})
    with pytest.raises(InvalidRequest, match="no model 'nope'"):
        await projects.set_limits("acme", "web", {}, model="nope")
    archived = await projects.archive_named("acme", "web")
    assert archived["archived_at"] == desk.clock.now()
    with pytest.raises(InvalidKey):
        await desk.tenancy.authenticate(key["key"])


# -- budgets


async def test_a_budget_is_a_days_a_months_or_for_good_and_also_a_key_s(administration, desk):
    key = await administration.keys.create(KeyRequest(name="team"))
    row = await administration.budgets.set("1", "default", period="day")
    assert (row["budget_usd"], row["period"]) == ("1.00", "day")
    row = await administration.budgets.set("2", "default", "default", period="total")
    assert (row["project"], row["period"]) == ("default", "total")
    row = await administration.budgets.set("3", key="team", period="day")
    assert (row["key"], row["id"], row["period"]) == ("team", key["id"], "day")
    assert (await desk.ledger.balances(key["id"])).account.cap_nanos == 3 * 10**9
    assert (await administration.budgets.set("4", key="team"))["period"] == "day"
    for wrong in ({"organisation": "other"}, {"organisation": "default", "project": "x"}):
        with pytest.raises(InvalidRequest, match="is of default/default"):
            await administration.budgets.set("3", key="team", **wrong)
    with pytest.raises(InvalidRequest, match="no period 'week': use total, month, day"):
        await administration.budgets.set("3", "default", period="week")
    with pytest.raises(InvalidRequest, match="Name an organisation"):
        await administration.budgets.set("3")


async def test_prepaid_credit_is_booked_once_for_each_payment(administration, desk):
    await administration.keys.create(KeyRequest(organisation="acme"))
    first = await administration.budgets.top_up("acme", "10", "payment-1")
    assert (first["budget_usd"], first["period"]) == ("10.00", "total")
    again = await administration.budgets.top_up("acme", "10", "payment-1")
    assert again["budget_usd"] == "10.00"
    more = await administration.budgets.top_up("acme", "2.5", "payment-2")
    assert more["budget_usd"] == "12.50"
    with pytest.raises(InvalidRequest, match="Nothing was booked"):
        await administration.budgets.top_up("acme", "7", "payment-2")
    with pytest.raises(InvalidRequest, match="id must name"):
        await administration.budgets.top_up("acme", "7", " ")
    await administration.budgets.set("5", "acme", period="month")
    with pytest.raises(InvalidRequest, match="Nothing was booked"):
        await administration.budgets.top_up("acme", "7", "payment-3")


async def test_a_payment_that_is_not_booked_is_refused_by_names_and_in_usd(administration):
    for name in ("acme", "other"):
        await administration.keys.create(KeyRequest(organisation=name))
    await administration.budgets.top_up("acme", "100", "p1")
    with pytest.raises(InvalidRequest, match=r"booked before, as 100.00 USD for 'acme'"):
        await administration.budgets.top_up("other", "100", "p1")
    with pytest.raises(InvalidRequest, match=r"a top-up of 0.00 USD is not above 0 and at most"):
        await administration.budgets.top_up("acme", "0", "p2")
    with pytest.raises(
        InvalidRequest, match=r"a cap of 9223372136\.\d+ USD is not between 0.00 and"
    ):
        await administration.budgets.top_up("acme", "9223372036", "p3")


async def test_budgets_are_a_months_and_listed_with_what_was_spent(administration, desk):
    key = await administration.keys.create(KeyRequest(organisation="acme", project="web"))
    await administration.keys.create(KeyRequest(organisation="other"))
    await administration.keys.create(KeyRequest(organisation="acme", project="mobile"))
    await administration.budgets.set("50.00", "acme")
    row = await administration.budgets.set("5", "acme", project="web")
    assert (row["organisation"], row["project"], row["budget_usd"]) == (
        "acme",
        "web",
        "5.00",
    )
    hold = await desk.ledger.hold(await ask(desk, key["id"], "req_1", 3))
    await desk.ledger.settle(hold.id, 1, Bill(Usage(1, 2)))
    rows = await administration.budgets.list()
    assert [
        (row["organisation"], row["project"], row["budget_usd"], row["spent_usd"]) for row in rows
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
    key = await administration.keys.create(KeyRequest())
    await administration.budgets.set("10.00", "default")
    first = await desk.ledger.hold(await ask(desk, key["id"], "req_1"))
    await desk.ledger.settle(first.id, 1, Bill(Usage(1, 10)))
    with pytest.raises(InsufficientQuota, match="monthly budget of its organisation"):
        await desk.ledger.hold(await ask(desk, key["id"], "req_2"))
    clock.advance(32 * DAY_SECONDS)
    await desk.ledger.hold(await ask(desk, key["id"], "req_3"))
    with pytest.raises(InsufficientQuota):
        await desk.ledger.hold(await ask(desk, key["id"], "req_4"))
    lifted = await administration.budgets.set(None, "default")
    assert lifted["budget_usd"] is None
    await desk.ledger.hold(await ask(desk, key["id"], "req_4"))


async def test_l2_a_lowered_budget_refuses_new_calls_and_lets_running_ones_finish(
    administration, desk
):
    """L2: a cap lowered below what is held takes nothing from the call that holds it."""
    key = await administration.keys.create(KeyRequest())
    running = await desk.ledger.hold(await ask(desk, key["id"], "req_1"))
    lowered = await administration.budgets.set("1.00", "default", project="default")
    assert (lowered["pending_usd"], lowered["open_calls"]) == ("10.00", 1)
    with pytest.raises(InsufficientQuota, match="budget of its project"):
        await desk.ledger.hold(await ask(desk, key["id"], "req_2", 1))
    row = await desk.ledger.settle(running.id, 1, Bill(Usage(1, 10)))
    assert row.amount_nanos == 10 * 10**9


async def test_a_budget_for_nobody_is_refused_with_those_that_there_are(administration, desk):
    with pytest.raises(InvalidRequest, match="none yet"):
        await administration.budgets.set("1", "acme")
    await administration.keys.create(KeyRequest(organisation="acme", project="web"))
    with pytest.raises(InvalidRequest, match=r"no organisation 'acmee'; there are: acme\."):
        await administration.budgets.set("1", "acmee")
    with pytest.raises(InvalidRequest, match=r"no project 'app' in 'acme'; there are: web\."):
        await administration.budgets.set("1", "acme", project="app")
    with pytest.raises(InvalidRequest, match="budget_usd: '-1' is not between"):
        await administration.budgets.set("-1", "acme")
    assert [row["budget_usd"] for row in await administration.budgets.list()] == [None] * 2


async def test_many_names_are_not_all_listed(administration, desk):
    for number in range(30):
        await desk.tenancy.ensure(f"org{number}", "default", plan="standard")
    with pytest.raises(InvalidRequest, match=r"org0, .*org19 and 10 more\."):
        await administration.budgets.set("1", "nobody")


async def test_a_budget_opens_the_account_that_a_broken_off_start_left_out(administration, desk):
    scopes = await desk.tenancy.ensure("acme", "web", plan="standard")
    await administration.budgets.set("1", "acme")
    account = (await desk.ledger.balances(scopes.organisation_id)).account
    assert (account.cap_nanos, account.period) == (10**9, Period.MONTH)


# -- usage


async def test_usage_names_keys_projects_and_organisations(administration, desk, clock):
    key = await administration.keys.create(
        KeyRequest(name="team", organisation="acme", project="web")
    )
    for number in range(2):
        hold = await desk.ledger.hold(await ask(desk, key["id"], f"req_{number}"))
        await desk.ledger.settle(hold.id, 1, Bill(Usage(1, 1)))
        clock.advance(DAY_SECONDS)
    rows = await administration.reports.usage()
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
        [total] = await administration.reports.usage_totals(by)
        assert (total[by], total["name"], total["calls"]) == (group, name, 2)
    [total] = await administration.reports.usage_totals("model")
    assert "name" not in total
    middle = clock.now() - 1.5 * DAY_SECONDS
    assert [row["call_id"] for row in await administration.reports.usage(since=middle)] == ["req_1"]
    [before] = await administration.reports.usage_totals("key", until=middle)
    assert before["calls"] == 1
    with pytest.raises(InvalidRequest, match="key, project, organisation, model, day"):
        await administration.reports.usage_totals("colour")


async def test_usage_of_a_key_that_is_not_known_any_more_has_no_name(desk):
    """A ledger restored beside a younger forebay.db."""
    administration = Administration(desk)
    key = await administration.keys.create(KeyRequest())
    hold = await desk.ledger.hold(await ask(desk, key["id"], "req_1"))
    await desk.ledger.settle(hold.id, 1, Bill(Usage(1, 1)))
    other = MemoryTenancy(clock=desk.clock, ids=desk.ids, plans=plans_by_name([]), pepper=bytes(32))
    restored = Administration(replace(desk, tenancy=other))
    [row] = await restored.reports.usage()
    assert (row["key_name"], row["key_redacted"]) == ("", "")
    [total] = await restored.reports.usage_totals("organisation")
    assert total["name"] == ""


# -- activity


async def test_activity_names_projects_and_says_what_today_cost(administration, desk, clock):
    key = await administration.keys.create(KeyRequest(organisation="acme", project="web"))
    for number in range(2):
        hold = await desk.ledger.hold(await ask(desk, key["id"], f"req_{number}"))
        await desk.ledger.settle(hold.id, 1, Bill(Usage(1, 1 + number)))
        clock.advance(DAY_SECONDS * (1 - number))
    seen = await administration.reports.activity()
    assert [call["project"] for call in seen["calls"]] == ["acme/web"]
    assert (seen["spent_today_usd"], seen["usd_per_hour"]) == ("2.00", "0.0015")
    assert key["key"] not in str(seen)


async def test_what_the_operator_pays_for_is_named_and_is_nobodys_spending(administration, desk):
    key = await administration.keys.create(KeyRequest(organisation="acme", project="web"))
    for scope in OPERATOR:
        await desk.books.open_account(Account(scope))
    asked = await ask(desk, key["id"], "req_1")
    hold = await desk.ledger.hold(replace(asked, scopes=OPERATOR, kind=Kind.SUMMARY))
    await desk.ledger.settle(hold.id, 1, Bill(Usage(1, 1)))
    [row] = await administration.reports.usage()
    assert (row["kind"], row["key_name"]) == ("summary", "(summaries)")
    for by, name in (
        ("key", "(summaries)"),
        ("project", "operator/summaries"),
        ("organisation", "operator"),
    ):
        [total] = await administration.reports.usage_totals(by)
        assert total["name"] == name
    assert (await administration.reports.activity())["spent_today_usd"] == "0.00"
