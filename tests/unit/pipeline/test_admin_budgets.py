"""Prepaid credit is the operator's, and a payment is booked whole or not at all."""

from __future__ import annotations

import pytest

from forebay.core.errors import InvalidRequest, NotAllowed
from forebay.core.hold import Account, Period
from forebay.pipeline.admin_keys import KeyRequest
from forebay.pipeline.administration import Administration
from forebay.pipeline.desk import Actor, Desk
from forebay.tenancy import ChangeQuery, ProjectInfo
from forebay.testing.clock import FakeClock
from forebay.testing.desk import memory_desk


@pytest.fixture
def desk() -> Desk:
    return memory_desk(FakeClock())


@pytest.fixture
async def operator(desk: Desk) -> Administration:
    operator = Administration(desk)
    await operator.keys.create(KeyRequest(organisation="acme", project="web"))
    return operator


@pytest.fixture
async def home(desk: Desk, operator: Administration) -> ProjectInfo:
    return (await desk.tenancy.projects())[0]


@pytest.fixture
def deputy(desk: Desk, home: ProjectInfo) -> Administration:
    """The holder of an admin key."""
    return Administration(desk, Actor("admin_key_1", home.scopes.organisation_id))


async def account_of(desk: Desk, scope: str) -> Account:
    return (await desk.ledger.balances(scope)).account


@pytest.mark.parametrize("cap", [None, 0, 10**15])
async def test_an_admin_key_changes_no_prepaid_credit(desk, operator, deputy, home, cap):
    await operator.budgets.top_up("acme", "10", "pay-1")
    await operator.budgets.set("5", "acme", "web", period="total")
    for project, scope in (
        (None, home.scopes.organisation_id),
        (home.scopes.project_id, home.scopes.project_id),
    ):
        before = await account_of(desk, scope)
        with pytest.raises(NotAllowed, match=r"prepaid credit.*The operator may.*forebay budgets"):
            await deputy.budgets.set_limit(project, cap)
        assert await account_of(desk, scope) == before
    more = await operator.budgets.top_up("acme", "1", "pay-2")
    assert more["budget_usd"] == "11.00"


async def test_an_admin_key_sets_and_lifts_limits_of_its_own(desk, operator, deputy, home):
    await operator.budgets.set("5", "acme", period="day")
    await deputy.budgets.set_limit(None, 7)
    scope = home.scopes.organisation_id
    assert await account_of(desk, scope) == Account(scope, 7, Period.MONTH)
    await deputy.budgets.set_limit(None, None)
    assert await account_of(desk, scope) == Account(scope, None, Period.MONTH)


async def test_a_payment_that_is_refused_changes_nothing(desk, operator, home):
    before = await account_of(desk, home.scopes.organisation_id)
    for amount in ("0", "-1"):
        with pytest.raises(InvalidRequest):
            await operator.budgets.top_up("acme", amount, "pay-1")
    assert await account_of(desk, home.scopes.organisation_id) == before


async def test_a_payment_that_was_booked_before_changes_nothing(desk, operator, home):
    scope = home.scopes.organisation_id
    await operator.budgets.top_up("acme", "10", "pay-1")
    await operator.budgets.set(None, "acme", period="month")
    before = await account_of(desk, scope)
    recorded = await desk.journal.changes(ChangeQuery(scope))
    again = await operator.budgets.top_up("acme", "10", "pay-1")
    assert (again["budget_usd"], again["period"]) == (None, "month")
    assert await account_of(desk, scope) == before
    assert await desk.journal.changes(ChangeQuery(scope)) == recorded


async def test_a_payment_opens_an_account_that_is_missing(desk):
    """As a start leaves it that was broken off between the organisation and its account."""
    await desk.tenancy.ensure("acme", "web", plan="standard")
    row = await Administration(desk).budgets.top_up("acme", "10", "pay-1")
    assert (row["budget_usd"], row["period"]) == ("10.00", "total")
