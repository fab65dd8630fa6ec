"""Usage and costs of the admin API: sums by time and group, and one's own only."""

from __future__ import annotations

from forebay.core.hold import Bill, HoldRequest
from forebay.core.job import Lane
from forebay.core.money import PriceTerms
from forebay.core.usage import Usage
from tests.unit.gateway.tenants import Tenant


async def spend(gateway, tenant: Tenant, number: int, lane: Lane = Lane.INTERACTIVE) -> None:
    """A call of 10 + 2 tokens for 10 nano-USD each."""
    desk = gateway.services.administration._desk
    price = await desk.books.publish_price(PriceTerms("smollm2", lane, 10, 10, 10))
    keys = {info.id: info for info in await desk.tenancy.keys()}
    hold = await desk.ledger.hold(
        HoldRequest(
            id=f"req_{tenant.ids['key_id'][-4:]}{number}",
            scopes=keys[tenant.ids["api_key_id"]].scopes,
            model="smollm2",
            lane=lane,
            price_version=price.version,
            input_tokens=10,
            ceiling_tokens=2,
            floor_tokens=2,
            choices=1,
            streamed=False,
            owner="gw",
            created_at=gateway.clock.now(),
        )
    )
    await desk.ledger.settle(hold.id, 1, Bill(Usage(10, 2)))


async def test_usage_and_costs_are_summed_in_buckets_and_groups(gateway, ours, theirs):
    start = int(gateway.clock.now())
    await spend(gateway, ours, 1)
    await spend(gateway, theirs, 1)
    gateway.clock.advance(60)
    await spend(gateway, ours, 2)
    await spend(gateway, ours, 3, Lane.BATCH)
    path = f"/v1/organization/usage/completions?start_time={start}"
    [day] = (await ours.get(path))["data"]
    assert day["end_time"] - day["start_time"] == 86_400
    [total] = day["results"]
    assert (total["input_tokens"], total["output_tokens"]) == (30, 6)
    assert (total["num_model_requests"], total["model"], total["batch"]) == (3, None, None)
    minutes = await ours.get(f"{path}&bucket_width=1m&group_by[]=batch&group_by[]=model")
    assert [
        [(r["batch"], r["model"], r["num_model_requests"]) for r in bucket["results"]]
        for bucket in minutes["data"]
    ] == [[(False, "smollm2", 1)], [(False, "smollm2", 1), (True, "smollm2", 1)]]
    one = await ours.get(f"{path}&bucket_width=1m&limit=1")
    assert (one["has_more"], len(one["data"])) == (True, 1)
    two = await ours.get(f"{path}&bucket_width=1m&limit=1&page={one['next_page']}")
    assert (two["has_more"], two["next_page"]) == (False, None)
    assert [*one["data"], *two["data"]] == (await ours.get(f"{path}&bucket_width=1m"))["data"]
    for filters, calls in (
        (f"project_ids[]={ours.ids['project_id']}", 3),
        (f"project_ids[]={theirs.ids['project_id']}", 0),
        (f"api_key_ids[]={theirs.ids['api_key_id']}", 0),
        (f"api_key_ids[]={ours.ids['api_key_id']}", 3),
        (f"api_key_ids[]={ours.ids['api_key_id']}&project_ids[]={theirs.ids['project_id']}", 0),
        (f"project_ids[]={ours.ids['project_id']}&project_ids[]=prj_other", 3),
        ("models[]=smollm2&batch=true", 1),
        ("models=scripted", 0),
    ):
        [day] = (await ours.get(f"{path}&{filters}"))["data"]
        assert sum(r["num_model_requests"] for r in day["results"]) == calls, filters
    [day] = (await ours.get(f"/v1/organization/costs?start_time={start}"))["data"]
    [cost] = day["results"]
    assert cost["amount"] == {"value": 3.6e-7, "usd": "0.00000036", "currency": "usd"}
    lines = await ours.get(
        f"/v1/organization/costs?start_time={start}&group_by[]=line_item&group_by[]=api_key_id"
    )
    assert [(r["line_item"], r["api_key_id"]) for r in lines["data"][0]["results"]] == [
        ("smollm2, default", ours.ids["api_key_id"]),
        ("smollm2, flex", ours.ids["api_key_id"]),
    ]
    nothing = await ours.get(f"{path}&end_time={start}")
    assert (nothing["data"], nothing["has_more"]) == ([], False)


async def test_usage_of_one_project_or_key_is_asked_of_the_ledger_by_its_id(
    gateway, ours, monkeypatch
):
    """The sums of a whole organisation are not taken for it."""
    books = gateway.services.administration._desk.books
    slices, asked = books.slices, []

    async def watched(query, *, width_seconds):
        asked.append((query.project_id, query.key_id))
        return await slices(query, width_seconds=width_seconds)

    monkeypatch.setattr(books, "slices", watched)
    start = int(gateway.clock.now())
    for path in ("usage/completions", "costs"):
        for filters in (
            "project_ids[]=prj_a",
            "api_key_ids[]=key_a&project_ids[]=prj_a",
            "api_key_ids[]=key_a&api_key_ids[]=key_b",
        ):
            await ours.get(f"/v1/organization/{path}?start_time={start}&{filters}")
    assert asked == [("prj_a", None), ("prj_a", "key_a"), (None, None)] * 2
