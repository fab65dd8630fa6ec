"""The ledger's second contract, `Books`, as tests: prices, accounts, reports, bad input, the end.

Fixtures as in `forebay.testing.contracts.ledger`, where the plain call and its prices are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from forebay.core.errors import StoreUnavailable
from forebay.core.hold import Account, Bill, Period, UsageQuery
from forebay.core.job import Lane
from forebay.core.money import MAX_NANOS, PriceTerms
from forebay.core.principal import Scopes
from forebay.core.usage import Usage
from forebay.ledger.pricing import amount_nanos
from forebay.testing.contracts.ledger import PLAIN, TERMS, ask, at, bill, check_books, furnish


async def test_l11_every_amount_can_be_recomputed_from_its_price_version(ledger: Any) -> None:
    await furnish(ledger)
    await ledger.hold(ask(1))
    dearer = await ledger.publish_price(replace(TERMS, output_nanos=11))
    await ledger.hold(ask(2, price_version=dearer.version))
    await ledger.settle("req_1", 1, Bill(Usage(100, 7, cached_input_tokens=60)))
    await ledger.settle("req_2", 1, Bill(Usage(100, 7, cached_input_tokens=60)))
    rows = await ledger.usage(UsageQuery())
    assert [row.amount_nanos for row in rows] == [80 + 60 + 77, 80 + 60 + 70]
    for row in rows:
        assert amount_nanos(await ledger.price(row.price_version), row.usage) == row.amount_nanos


async def test_a_price_is_a_new_version_only_when_its_terms_change(ledger: Any) -> None:
    batch = replace(TERMS, lane=Lane.BATCH, output_nanos=5)
    dearer = replace(TERMS, output_nanos=11)
    published = [
        await ledger.publish_price(t) for t in (TERMS, batch, TERMS, dearer, dearer, TERMS)
    ]
    assert [price.version for price in published] == [1, 2, 1, 3, 3, 4]
    assert [price.terms for price in published] == [TERMS, batch, TERMS, dearer, dearer, TERMS]
    assert await ledger.price(3) == published[3]
    for version in (0, 5, -1):
        with pytest.raises(KeyError, match="never published"):
            await ledger.price(version)


async def two_organisations(ledger: Any) -> None:
    """Calls 1 and 2 of A on two days, call 3 of B on a dearer model."""
    await furnish(ledger)
    await furnish(ledger, Scopes("org_b", "prj_b", "key_b"))
    big = await ledger.publish_price(PriceTerms("big", Lane.BATCH, 2, 1, 20))
    other = Scopes("org_b", "prj_b", "key_b")
    await ledger.hold(ask(1, created_at=at("2026-11-30T12:00:00")))
    await ledger.hold(ask(2, created_at=at("2026-12-01T00:00:00")))
    await ledger.hold(
        ask(3, scopes=other, model="big", lane=Lane.BATCH, price_version=big.version,
            created_at=at("2026-12-01T09:00:00"))
    )  # fmt: skip
    for number in (1, 2, 3):
        await ledger.settle(f"req_{number}", 1, bill(10 * number))


async def test_l13_who_was_told_of_a_settlement_finds_it_in_usage(ledger: Any) -> None:
    await furnish(ledger)
    for number in range(5):
        await ledger.hold(ask(number))
        row = await ledger.settle(f"req_{number}", 1, bill(number))
        assert await ledger.usage(UsageQuery(call_id=f"req_{number}")) == [row]


async def test_l14_nothing_read_for_one_organisation_belongs_to_another(ledger: Any) -> None:
    await two_organisations(ledger)
    for name in ("org_a", "org_b"):
        rows = await ledger.usage(UsageQuery(organisation_id=name))
        assert {row.organisation_id for row in rows} == {name}
        mixed = UsageQuery(organisation_id=name, key_id="key_b" if name == "org_a" else "key_a")
        assert await ledger.usage(mixed) == []
        assert await ledger.totals(mixed, by="key") == []


async def test_usage_is_filtered_newest_first_and_limited(ledger: Any) -> None:
    await two_organisations(ledger)

    async def ids(**query: Any) -> list[str]:
        return [row.call_id for row in await ledger.usage(UsageQuery(**query))]

    assert await ids() == ["req_3", "req_2", "req_1"]
    assert await ids(limit=2) == ["req_3", "req_2"]
    assert await ids(limit=0) == []
    assert await ids(project_id="prj_a") == ["req_2", "req_1"]
    assert await ids(key_id="key_b") == ["req_3"]
    december = at("2026-12-01T00:00:00")
    assert await ids(since=december) == ["req_3", "req_2"]
    assert await ids(until=december) == ["req_1"]
    with pytest.raises(ValueError, match="negative"):
        await ids(limit=-1)


async def test_totals_sum_by_scope_model_and_day_largest_first(ledger: Any) -> None:
    await two_organisations(ledger)

    async def sums(by: str, **query: Any) -> list[tuple[str, int, int, int]]:
        totals = await ledger.totals(UsageQuery(**query), by=by)
        return [(t.group, t.calls, t.output_tokens, t.amount_nanos) for t in totals]

    assert await sums("key") == [("key_b", 1, 30, 800), ("key_a", 2, 30, 700)]
    assert await sums("project") == [("prj_b", 1, 30, 800), ("prj_a", 2, 30, 700)]
    assert await sums("organisation") == [("org_b", 1, 30, 800), ("org_a", 2, 30, 700)]
    assert await sums("organisation", project_id="prj_a") == [("org_a", 2, 30, 700)]
    assert await sums("model") == [("big", 1, 30, 800), ("small", 2, 30, 700)]
    assert await sums("day") == [("2026-12-01", 2, 50, 1_200), ("2026-11-30", 1, 10, 300)]
    assert await sums("key", limit=1) == [("key_b", 1, 30, 800)]
    assert await sums("day", organisation_id="org_b") == [("2026-12-01", 1, 30, 800)]
    with pytest.raises(ValueError, match="'hour'"):
        await sums("hour")


async def test_an_account_is_opened_once_and_keeps_its_limits(ledger: Any) -> None:
    account = Account("key_a", 5, Period.DAY, 2)
    assert await ledger.open_account(account) is True
    assert await ledger.open_account(Account("key_a")) is False
    assert (await ledger.balances("key_a")).account == account
    with pytest.raises(KeyError, match="key_z"):
        await ledger.set_cap("key_z", 5)


async def test_what_makes_no_sense_is_refused_and_changes_nothing(ledger: Any) -> None:
    await furnish(ledger)
    for changes in (
        {"owner": ""},
        {"scopes": Scopes("a", "b", "a")},
        {"input_tokens": -1},
        {"choices": 0},
        {"floor_tokens": 0},
        {"floor_tokens": 81},
        {"created_at": 1e300},
        {"created_at": float("nan")},
    ):
        with pytest.raises(ValueError):
            await ledger.hold(replace(PLAIN, **changes))
    with pytest.raises(KeyError, match="price version 99"):
        await ledger.hold(ask(1, price_version=99))
    for terms in (replace(TERMS, cached_input_nanos=3), replace(TERMS, output_nanos=-1)):
        with pytest.raises(ValueError):
            await ledger.publish_price(terms)
    for account in (Account(""), Account("key_c", -1), Account("key_c", max_open_holds=-1)):
        with pytest.raises(ValueError):
            await ledger.open_account(account)
    with pytest.raises(ValueError):
        await ledger.set_cap("key_a", MAX_NANOS + 1)
    with pytest.raises(ValueError, match="watermark"):
        await ledger.beat("gateway-1", 1, {"req_1": -1})
    await check_books(ledger)


async def test_a_closed_ledger_refuses_every_verb(ledger: Any) -> None:
    await furnish(ledger)
    await ledger.close()
    await ledger.close()
    for refused in (
        ledger.hold(ask(1)),
        ledger.dispatch("req_1", 2),
        ledger.settle("req_1", 1, bill(1)),
        ledger.release("req_1", 1, bill(1)),
        ledger.beat("gateway-1", 1, {}),
        ledger.sweep(1.0),
        ledger.balances("key_a"),
        ledger.recall("org_a", "key-1"),
        ledger.usage(UsageQuery()),
        ledger.totals(UsageQuery(), by="key"),
        ledger.price(1),
        ledger.open_account(Account("key_b")),
        ledger.set_cap("key_a", 1),
        ledger.set_max_open_holds("key_a", 1),
        ledger.top_up("key_a", 1, "top-1"),
        ledger.publish_price(TERMS),
    ):
        with pytest.raises(StoreUnavailable, match="closed"):
            await refused
