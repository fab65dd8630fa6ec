from __future__ import annotations

import pytest

from forebay.core.hold import Account, Bill, HoldRequest, Period
from forebay.core.job import Lane
from forebay.core.money import PriceTerms
from forebay.core.usage import Usage
from tests.unit.gateway.conftest import PRINCIPAL

DAY_SECONDS = 86_400
SCOPES = PRINCIPAL.scopes


async def spend(gateway, number: int) -> None:
    """3 tokens of output for a dollar each."""
    desk = gateway.services.administration._desk
    price = await desk.books.publish_price(PriceTerms("m", Lane.INTERACTIVE, 0, 0, 10**9))
    hold = await desk.ledger.hold(
        HoldRequest(
            id=f"req_{number}",
            scopes=SCOPES,
            model="m",
            lane=Lane.INTERACTIVE,
            price_version=price.version,
            input_tokens=2,
            ceiling_tokens=3,
            floor_tokens=3,
            choices=1,
            streamed=False,
            owner="gw",
            created_at=gateway.clock.now(),
        )
    )
    await desk.ledger.settle(hold.id, 1, Bill(Usage(2, 3)))


@pytest.fixture
async def accounts(gateway) -> None:
    books = gateway.services.administration._desk.books
    await books.open_account(Account(SCOPES.organisation_id, None, Period.MONTH, 9))
    await books.open_account(Account(SCOPES.project_id, 50 * 10**9, Period.TOTAL))
    await books.open_account(Account(SCOPES.key_id, 20 * 10**9, Period.DAY, 2))


async def test_it_says_what_was_used_what_limits_and_what_is_left(gateway, accounts):
    await spend(gateway, 1)
    gateway.clock.advance(DAY_SECONDS)
    await spend(gateway, 2)
    await spend(gateway, 3)
    answer = await gateway.request("GET", "/v1/usage/me")
    assert answer.status == 200
    mine = answer.json()
    assert (mine["key_id"], mine["object"]) == (SCOPES.key_id, "usage")
    assert mine["current_period"] == {
        "calls": 2,
        "input_tokens": 4,
        "cached_input_tokens": 0,
        "output_tokens": 6,
        "cost_usd": "6.00",
    }
    assert [(day["date"], day["calls"]) for day in mine["days"]] == [
        ("2027-01-16", 2),
        ("2027-01-15", 1),
        *((f"2027-01-{day}", 0) for day in range(14, 9, -1)),
    ]
    assert mine["budget"]["key"] == {
        "period": "day",
        "left_usd": "14.00",
        "budget_usd": "20.00",
        "spent_usd": "6.00",
        "pending_usd": "0.00",
        "open_calls": 0,
    }
    assert mine["budget"]["project"] == {"period": "total", "left_usd": "41.00"}
    assert mine["budget"]["organization"] == {"period": "month", "left_usd": None}
    assert mine["limits"]["key"]["concurrent_calls"] == 2
    assert mine["limits"]["organization"]["concurrent_calls"] == 9


@pytest.mark.parametrize("period", Period)
async def test_a_period_begins_where_its_budget_does(gateway, period):
    books = gateway.services.administration._desk.books
    for scope in SCOPES:
        await books.open_account(Account(scope, None, period))
    calls = {}
    for number, days in enumerate((0, 20, 1)):  # 15 January, 4 and 5 February
        gateway.clock.advance(days * DAY_SECONDS)
        await spend(gateway, number)
        mine = (await gateway.request("GET", "/v1/usage/me")).json()
        calls[number] = mine["current_period"]["calls"]
    assert (
        calls
        == {
            Period.DAY: {0: 1, 1: 1, 2: 1},
            Period.MONTH: {0: 1, 1: 1, 2: 2},
            Period.TOTAL: {0: 1, 1: 2, 2: 3},
        }[period]
    )


async def test_a_key_of_which_nothing_is_known_yet_has_used_nothing(gateway):
    mine = (await gateway.request("GET", "/v1/usage/me")).json()
    assert mine["current_period"]["calls"] == 0
    assert [day["calls"] for day in mine["days"]] == [0] * 7


async def test_nothing_can_be_changed_with_it(gateway, accounts):
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        answer = await gateway.request(method, "/v1/usage/me", body=b'{"budget_usd": "99"}')
        assert answer.status == 405
    answer = await gateway.request("GET", "/v1/usage/me", headers={"authorization": "Bearer x"})
    assert answer.status == 401
