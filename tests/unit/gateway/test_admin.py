"""The admin API over rooms in memory: who may ask, what is refused, and that nothing of another
organisation is ever seen. The official client drives all of it in tests/e2e/test_admin_sdk.py."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from forebay.gateway.admin_operations import ADMIN_OPERATIONS
from forebay.gateway.admin_schema import Body
from forebay.pipeline.admin_keys import KeyRequest
from forebay.tenancy.memory import MemoryTenancy
from tests.unit.gateway.tenants import BODIES, Tenant, tenant

QUERIES = {"UsageListing": "?start_time=1799900000", "CostListing": "?start_time=1799900000"}


def named(operation) -> str:
    return f"{operation.method} {operation.path}"


def path_of(operation, ids: dict[str, str]) -> str:
    alert = ids[f"{'project_id' in operation.path} alert"]
    values = {**ids, "alert_id": alert}
    path = re.sub(r"{(\w+)(?::path)?}", lambda found: values[found[1]], operation.path)
    return path + QUERIES.get(operation.query.__name__, "")


def body_of(operation) -> Any:
    return BODIES[operation.body.__name__] if operation.method == "POST" else None


# -- every operation


@pytest.mark.parametrize("operation", ADMIN_OPERATIONS, ids=named)
async def test_every_operation_answers(ours, operation):
    answer = await ours.ask(operation.method, path_of(operation, ours.ids), body_of(operation))
    assert answer.status == 200, answer.body


@pytest.mark.parametrize("operation", ADMIN_OPERATIONS, ids=named)
async def test_every_operation_refuses_who_has_no_admin_key(gateway, ours, operation):
    """Also the holder of an API key: that is for the other listener."""
    key = await gateway.services.administration.keys.create(KeyRequest(organisation="ours"))
    for secret in (key["key"], ours.secret[:-1] + "_", "sk-123"):
        asked = Tenant(gateway, secret, ours.ids)
        answer = await asked.ask(operation.method, path_of(operation, ours.ids), body_of(operation))
        assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
        assert answer.error["type"] == "invalid_request_error"
        assert secret not in answer.error["message"]


BY_ID = [each for each in ADMIN_OPERATIONS if "{" in each.path]
FOREIGN = [
    (operation, name)
    for operation in BY_ID
    for name in re.findall(r"{(\w+)", operation.path)
    if name != "rate_limit_id"  # a model's, which is everybody's
]


@pytest.mark.parametrize(
    ("operation", "name"), FOREIGN, ids=[f"{named(each)} {name}" for each, name in FOREIGN]
)
async def test_l14_an_id_of_another_organisation_is_answered_as_one_that_is_none(
    ours, theirs, operation, name
):
    """L14: byte for byte but the request's id, and nothing of theirs is changed."""

    async def refusal(id_of_other: str) -> bytes:
        ids = {**ours.ids, name: id_of_other}
        if name == "alert_id":
            ids[f"{'project_id' in operation.path} alert"] = id_of_other
        answer = await ours.ask(operation.method, path_of(operation, ids), body_of(operation))
        assert answer.status == 404, answer.body
        headers = {k: v for k, v in answer.headers.items() if k != "x-request-id"}
        assert headers.pop("content-length")
        return re.sub(rb"req_[0-9a-f]+", b"", answer.body) + repr(headers).encode()

    foreign = theirs.ids.get(name) or theirs.ids[f"{'project_id' in operation.path} alert"]
    before = await everything(theirs)
    missing = re.sub("[0-9a-f]", "f", foreign)
    assert await refusal(foreign) == await refusal(missing)
    assert await everything(theirs) == before


async def everything(tenant: Tenant) -> list[Any]:
    found = []
    for operation in ADMIN_OPERATIONS:
        if operation.method == "GET":
            found.append(await tenant.get(path_of(operation, tenant.ids)))
    return found


async def test_l14_nothing_that_is_listed_is_another_organisations(ours, theirs):
    """L14: no id of theirs is in any of our answers."""
    text = json.dumps(await everything(ours))
    for id_ in theirs.ids.values():
        assert id_ == "rl-smollm2" or id_ not in text
    assert "theirs" not in text


TAKING = [each for each in ADMIN_OPERATIONS if each.method == "POST"]


@pytest.mark.parametrize("operation", TAKING, ids=named)
async def test_a_field_that_is_not_known_is_refused_by_name(ours, operation):
    body = {**body_of(operation), "treshold": 1}
    answer = await ours.ask("POST", path_of(operation, ours.ids), body)
    assert answer.status == 400
    assert (answer.error["code"], answer.error["param"]) == ("unknown_parameter", "treshold")


@pytest.mark.parametrize("operation", ADMIN_OPERATIONS, ids=named)
async def test_a_query_parameter_that_is_not_known_is_refused_by_name(ours, operation):
    path = path_of(operation, ours.ids)
    path += ("&" if "?" in path else "?") + "colour=red"
    answer = await ours.ask(operation.method, path, body_of(operation))
    assert (answer.status, answer.error["code"]) == (400, "unknown_parameter")
    assert answer.error["param"] == "colour"


@pytest.mark.parametrize("operation", [e for e in TAKING if e.body is not Body], ids=named)
@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b'{"name": 5}', b"[" * 50, b'"\\ud800"'])
async def test_a_body_that_is_none_is_a_400(gateway, ours, operation, raw):
    answer = await gateway.request(
        "POST",
        path_of(operation, ours.ids),
        body=raw,
        headers={"authorization": f"Bearer {ours.secret}"},
        admin=True,
    )
    assert answer.status == 400


# -- what is wrong is said (test_admin_read.py has every way)


@pytest.mark.parametrize(
    ("path", "body", "code", "param", "words"),
    [
        ("projects", {"name": " x "}, "invalid_value", "name", "without spaces at the ends"),
        ("projects", {"name": "default"}, "invalid_value", "name", "has a project 'default'"),
        ("admin_api_keys", {"name": "x", "expires_in_seconds": 0},
         "integer_below_min_value", "expires_in_seconds", "is 0, but must be between 1 and"),
    ],
)  # fmt: skip
async def test_a_wrong_body_is_explained(ours, path, body, code, param, words):
    answer = await ours.ask("POST", f"/v1/organization/{path}", body)
    assert answer.status == 400
    assert (answer.error["code"], answer.error["param"]) == (code, param)
    assert words in answer.error["message"]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("projects?limit=101", "limit"),
        ("projects?after=nothing", "after"),
        ("projects?before=nothing", "before"),
        ("audit_logs?after=nothing", "after"),
        ("usage/completions?start_time=0&bucket_width=1d&limit=32", "limit"),
        ("usage/completions?start_time=0&page=page_x", "page"),
    ],
)
async def test_a_wrong_query_is_explained(ours, query, param):
    answer = await ours.ask("GET", f"/v1/organization/{query}")
    assert (answer.status, answer.error["param"]) == (400, param)


async def test_methods_that_a_path_does_not_take_are_said(ours):
    answer = await ours.ask("PUT", "/v1/organization/projects")
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD, POST, OPTIONS")
    home = f"/organization/projects/{ours.ids['project_id']}/spend_limit"
    answer = await ours.ask("PATCH", home)
    assert answer.headers["allow"] == "GET, HEAD, POST, DELETE, OPTIONS"


# -- what they do


async def test_lists_are_paged_in_both_directions(ours):
    for number in range(5):
        await ours.ask("POST", "/v1/organization/projects", {"name": f"p{number}"})
    first = await ours.get("/v1/organization/projects?limit=4")
    assert [each["name"] for each in first["data"]] == ["default", "p0", "p1", "p2"]
    assert (first["has_more"], first["object"]) == (True, "list")
    assert first["last_id"] == first["data"][-1]["id"]
    rest = await ours.get(f"/v1/organization/projects?limit=4&after={first['last_id']}")
    assert [each["name"] for each in rest["data"]] == ["p3", "p4"]
    assert rest["has_more"] is False
    back = await ours.get(f"/v1/organization/projects?limit=2&before={first['last_id']}")
    assert [each["name"] for each in back["data"]] == ["p0", "p1"]
    last = await ours.get(f"/v1/organization/projects?after={rest['last_id']}")
    assert (last["data"], last["first_id"], last["has_more"]) == ([], None, False)


async def test_keys_are_listed_in_one_pass(ours, monkeypatch):
    home = f"/v1/organization/projects/{ours.ids['project_id']}"
    for _ in range(5):
        await ours.ask("POST", home + "/service_accounts", {"name": "robot"})
    asked, read = [], MemoryTenancy.projects

    async def counted(self):
        asked.append(self)
        return await read(self)

    monkeypatch.setattr(MemoryTenancy, "projects", counted)
    assert len((await ours.get(f"{home}/api_keys"))["data"]) == 7
    assert len(asked) == 3


async def test_an_archived_project_is_listed_on_request_and_its_keys_are_inactive(ours):
    home = f"/v1/organization/projects/{ours.ids['project_id']}"
    archived = (await ours.ask("POST", f"{home}/archive")).json()
    assert (archived["status"], archived["archived_at"]) == ("archived", 1_800_000_000)
    assert (await ours.get("/v1/organization/projects"))["data"] == []
    assert len((await ours.get("/v1/organization/projects?include_archived=true"))["data"]) == 1
    keys = await ours.get(f"{home}/api_keys?owner_project_access=inactive")
    assert {key["owner_project_access"] for key in keys["data"]} == {"inactive"}
    assert (await ours.get(f"{home}/api_keys?owner_project_access=active"))["data"] == []
    refused = await ours.ask("POST", home, {"name": "new"})
    assert (refused.status, refused.error["param"]) == (400, "project")


async def test_a_rate_limit_is_set_and_bounded_by_nothing_until_then(ours):
    rates = f"/v1/organization/projects/{ours.ids['project_id']}/rate_limits"
    before = await ours.get(rates)
    assert [row["model"] for row in before["data"]] == ["smollm2", "scripted"]
    assert before["data"][0]["max_requests_per_1_minute"] == 2**31 - 1
    changed = await ours.ask("POST", f"{rates}/rl-smollm2", {"max_tokens_per_1_minute": 900})
    assert changed.json()["max_tokens_per_1_minute"] == 900
    await ours.ask("POST", f"{rates}/rl-smollm2", {"max_requests_per_1_minute": 7})
    row = (await ours.get(rates))["data"][0]
    assert (row["max_tokens_per_1_minute"], row["max_requests_per_1_minute"]) == (900, 7)
    lifted = await ours.ask("POST", f"{rates}/rl-smollm2", {"max_tokens_per_1_minute": 2**31 - 1})
    assert lifted.json()["max_tokens_per_1_minute"] == 2**31 - 1
    for wrong in ("rl-nothing", "smollm2"):
        assert (await ours.ask("POST", f"{rates}/{wrong}", {})).status == 404
    refused = await ours.ask("POST", f"{rates}/rl-smollm2", {"max_images_per_1_minute": 1})
    assert refused.error["param"] == "max_images_per_1_minute"


async def test_a_rate_limit_above_the_plan_is_refused_by_the_name_that_was_sent(gateway):
    ours = await tenant(gateway, "ours", plan="small")
    rate = f"/v1/organization/projects/{ours.ids['project_id']}/rate_limits/rl-smollm2"
    refused = await ours.ask("POST", rate, {"max_tokens_per_1_minute": 501})
    expected = ("integer_above_max_value", "max_tokens_per_1_minute")
    assert (refused.error["code"], refused.error["param"]) == expected
    assert refused.error["message"].startswith("max_tokens_per_1_minute is 501")
    for limit, shown in ((400, 400), (2**31 - 1, 500)):
        changed = await ours.ask("POST", rate, {"max_tokens_per_1_minute": limit})
        assert changed.json()["max_tokens_per_1_minute"] == shown


async def test_a_spend_alert_says_whether_it_is_enabled_and_rounds_up_to_cents(gateway, ours):
    alerts = "/v1/organization/spend_alerts"
    [shown] = (await ours.get(alerts))["data"]
    assert shown["enabled"] is True
    await gateway.services.administration.named_alerts.add("ours", "0.001", shown["webhook_url"])
    assert [row["threshold_amount"] for row in (await ours.get(alerts))["data"]] == [100, 1]


async def test_a_spend_limit_is_in_cents_a_month_and_can_be_lifted(gateway, ours):
    path = "/v1/organization/spend_limit"
    limit = await ours.get(path)
    assert limit == {
        "threshold_amount": 100,
        "enforcement": {"status": "inactive"},
        "interval": "month",
        "object": "organization.spend_limit",
        "currency": "USD",
    }
    zero = await ours.ask("POST", path, {**BODIES["SpendLimitBody"], "threshold_amount": 0})
    assert zero.json()["enforcement"] == {"status": "enforcing"}
    assert (await ours.ask("DELETE", path)).json()["deleted"] is True
    for method in ("GET", "DELETE"):
        assert (await ours.ask(method, path)).status == 404
    [row, *_] = await gateway.services.administration.budgets.list()
    assert row["budget_usd"] is None


@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_prepaid_credit_is_not_for_admin_keys(gateway, ours, method):
    budgets = gateway.services.administration.budgets
    await budgets.set(None, "ours")
    await budgets.top_up("ours", "10", "pay-1")
    body = {**BODIES["SpendLimitBody"], "threshold_amount": 10**8} if method == "POST" else None
    answer = await ours.ask(method, "/v1/organization/spend_limit", body)
    assert (answer.status, answer.error["code"]) == (403, "not_allowed")
    assert "forebay budgets" in answer.error["message"]
    assert (await ours.get("/v1/organization/spend_limit"))["threshold_amount"] == 1000


async def test_a_key_of_a_service_account_is_shown_once_and_goes_with_it(gateway, ours):
    home = f"/v1/organization/projects/{ours.ids['project_id']}"
    made = (await ours.ask("POST", f"{home}/service_accounts", {"name": "bot"})).json()
    secret = made["api_key"]["value"]
    tenancy = gateway.services.administration._desk.tenancy
    await tenancy.authenticate(secret)
    listed = await ours.get(f"{home}/api_keys/{made['api_key']['id']}")
    assert listed["owner"]["service_account"]["id"] == made["id"]
    assert secret not in json.dumps(listed)
    alone = {"name": "quiet", "create_service_account_only": True}
    assert (await ours.ask("POST", f"{home}/service_accounts", alone)).json()["api_key"] is None
    await ours.ask("DELETE", f"{home}/service_accounts/{made['id']}")
    assert (await ours.ask("GET", f"{home}/api_keys/{made['api_key']['id']}")).status == 404
    assert (await ours.ask("GET", f"{home}/service_accounts/{made['id']}")).status == 404


async def test_who_did_what_is_in_the_audit_log(ours):
    home = f"/v1/organization/projects/{ours.ids['project_id']}"
    await ours.ask("POST", home, {"name": "renamed"})
    newest = (await ours.get("/v1/organization/audit_logs?limit=1"))["data"][0]
    assert newest["type"] == "project.updated"
    assert newest["project.updated"] == {
        "id": ours.ids["project_id"],
        "changes_requested": {"name": "renamed"},
    }
    assert newest["actor"]["api_key"]["id"] == ours.actor
    assert newest["project"] == {"id": ours.ids["project_id"], "name": "renamed"}
    path = "/v1/organization/audit_logs?event_types[]=api_key.created&event_types[]=project.created"
    found = (await ours.get(path))["data"]
    assert {each["type"] for each in found} == {"api_key.created", "project.created"}
    assert found[-1]["actor"] == {
        "type": "session",
        "api_key": None,
        "session": {"user": {"id": "operator"}},
    }
    at = newest["effective_at"]
    logs = "/v1/organization/audit_logs"
    assert (await ours.get(f"{logs}?effective_at[gt]={at}"))["data"] == []
    assert len((await ours.get(f"{logs}?effective_at[gte]={at}&limit=1"))["data"]) == 1
    page = await ours.get(f"{logs}?limit=2")
    after = await ours.get(f"{logs}?limit=100&after={page['last_id']}")
    everything = (await ours.get(f"{logs}?limit=100"))["data"]
    assert [*page["data"], *after["data"]] == everything
    assert (page["has_more"], after["has_more"]) == (True, False)


async def test_an_admin_key_that_is_revoked_may_do_nothing_more(gateway, ours):
    path = "/v1/organization/admin_api_keys"
    made = (await ours.ask("POST", path, {"name": "second", "expires_in_seconds": 60})).json()
    assert made["value"].startswith("fba_live_")
    assert made["expires_at"] == made["created_at"] + 60
    assert "value" not in await ours.get(f"{path}/{made['id']}")
    listed = await ours.get(f"{path}?order=desc")
    assert [key["name"] for key in listed["data"]] == ["second", "deputy", "boss"]
    itself = await ours.ask("DELETE", f"{path}/{ours.actor}")
    assert (itself.status, itself.error["param"]) == (400, "key_id")
    second = Tenant(gateway, made["value"], ours.ids)
    assert (await second.ask("DELETE", f"{path}/{ours.actor}")).status == 200
    assert (await ours.ask("GET", path)).status == 401
