"""/v1/batches: a batch as it stands, what is refused, and what OpenAI's own client makes of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import openai
import pytest
from openai.types import Batch as OpenAIBatch

from forebay.core.batch import BatchState, LineCounts, LineError, Spent
from forebay.core.job import Lane
from tests.unit.gateway.conftest import OTHER_SECRET, PRINCIPAL, SECRET

HOME = "/v1/batches"
BODY = {
    "input_file_id": "file-1",
    "endpoint": "/v1/chat/completions",
    "completion_window": "24h",
}


async def ask(gateway, method, path, body: Any = None, secret=SECRET, **headers: str) -> Any:
    raw = b"" if body is None else json.dumps(body).encode()
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    sent["authorization"] = f"Bearer {secret}"
    return await gateway.request(method, path, body=raw, headers=sent)


async def begin(gateway, **fields: Any) -> Any:
    answer = await ask(gateway, "POST", HOME, {**BODY, **fields})
    assert answer.status == 200, answer.body
    return answer.json()


async def shown(gateway, id_: str) -> Any:
    answer = await ask(gateway, "GET", f"{HOME}/{id_}")
    OpenAIBatch.model_validate_json(answer.body, strict=True)
    return answer.json()


async def test_a_batch_begins_as_openai_writes_it(gateway):
    gateway.clock.advance(0.7)
    made = await begin(gateway)
    now = int(gateway.clock.now())
    assert made == {
        "id": made["id"],
        "object": "batch",
        "endpoint": "/v1/chat/completions",
        "model": None,
        "errors": None,
        "input_file_id": "file-1",
        "completion_window": "24h",
        "status": "validating",
        "output_file_id": None,
        "error_file_id": None,
        "created_at": now,
        "in_progress_at": None,
        "expires_at": now + 24 * 3600,
        "finalizing_at": None,
        "completed_at": None,
        "failed_at": None,
        "expired_at": None,
        "cancelling_at": None,
        "cancelled_at": None,
        "request_counts": {"total": 0, "completed": 0, "failed": 0},
        "usage": {
            "input_tokens": 0,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 0,
        },
        "metadata": None,
    }
    assert made["id"].startswith("batch_")
    assert await shown(gateway, made["id"]) == made
    assert [each.id for each in gateway.desks.lane.begun] == [made["id"]]


async def test_a_batch_tells_what_was_done_and_what_it_cost(gateway):
    made = await begin(gateway, metadata={"a": "b"})
    gateway.desks.change(
        made["id"],
        state=BatchState.COMPLETED,
        entered={
            BatchState.IN_PROGRESS: 10.9,
            BatchState.FINALIZING: 20.0,
            BatchState.COMPLETED: 21.5,
        },
        model="tiny-1",
        counts=LineCounts(3, 2, 1),
        spent=Spent(100, 40, 20, 17_100),
        output_file_id="file-out",
        error_file_id="file-err",
    )
    found = await shown(gateway, made["id"])
    assert (found["status"], found["model"], found["metadata"]) == (
        "completed", "tiny-1", {"a": "b"}
    )  # fmt: skip
    times = (found["in_progress_at"], found["finalizing_at"], found["completed_at"])
    assert times == (10, 20, 21)
    assert found["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
    assert found["usage"]["input_tokens_details"] == {"cached_tokens": 40}
    assert (found["usage"]["output_tokens"], found["usage"]["total_tokens"]) == (20, 120)
    assert (found["output_file_id"], found["error_file_id"]) == ("file-out", "file-err")
    assert found["cost"] == {"amount_usd": "0.0000171"}


@pytest.mark.parametrize("state", BatchState)
async def test_when_it_came_into_each_of_its_states_is_told(gateway, state):
    made = await begin(gateway)
    gateway.desks.change(made["id"], state=state, entered={state: 7.0})
    found = await shown(gateway, made["id"])
    assert found["status"] == state.value
    told = {name for name in found if name.endswith("_at") and found[name] == 7}
    assert told == ({f"{state.value}_at"} if state is not BatchState.VALIDATING else set())


async def test_b10_what_is_wrong_with_its_file_is_told_line_by_line(gateway):
    made = await begin(gateway)
    errors = (LineError("invalid_json_line", "Not.", 2), LineError("empty_file", "No.", param="x"))
    gateway.desks.change(made["id"], state=BatchState.FAILED, errors=errors)
    assert (await shown(gateway, made["id"]))["errors"] == {
        "object": "list",
        "data": [
            {"code": "invalid_json_line", "line": 2, "message": "Not.", "param": None},
            {"code": "empty_file", "line": None, "message": "No.", "param": "x"},
        ],
    }


async def test_how_long_its_output_is_kept_may_be_said(gateway):
    expiry = {"anchor": "created_at", "seconds": 3600}
    await begin(gateway, output_expires_after=expiry)
    [batch] = gateway.desks.lane.begun
    assert batch.order.output_ttl_seconds == 3600


async def test_the_windows_are_those_of_the_settings(gateway):
    gateway.settle(completion_windows=("1h", "7d"))
    answer = await ask(gateway, "POST", HOME, BODY)
    assert (answer.status, answer.error["param"]) == (400, "completion_window")
    assert "1h or 7d" in answer.error["message"]
    made = await begin(gateway, completion_window="1h")
    assert made["expires_at"] == made["created_at"] + 3600


@pytest.mark.parametrize(
    ("body", "param"),
    [({**BODY, "endpoint": "/v1/x"}, "endpoint"), ({}, "completion_window"), ([], None)],
)
async def test_a_body_that_is_wrong_begins_nothing(gateway, body, param):
    answer = await ask(gateway, "POST", HOME, body)
    assert (answer.status, answer.error["param"]) == (400, param)
    assert gateway.desks.lane.begun == []


async def test_a_client_that_leaves_before_its_body_is_there_begins_nothing(gateway):
    answer = await gateway.request("POST", HOME, body=[b'{"input', None])
    assert (answer.status, gateway.desks.lane.begun) == (0, [])


async def test_names_that_mean_nothing_are_told_counted_and_refused_to_the_strict(gateway):
    answer = await ask(gateway, "POST", HOME, {**BODY, "priority": 1})
    assert answer.headers["x-forebay-ignored"] == "priority"
    assert gateway.metrics.unknown_fields._value.get() == 1
    body = {**BODY, "priority": 1}
    strict = await ask(gateway, "POST", HOME, body, x_forebay_strict="true")
    assert (strict.status, strict.error["code"]) == (400, "unknown_parameter")


# -- keys -------------------------------------------------------------------------------------------


async def test_b5_asked_again_with_its_key_it_is_the_same_batch(gateway):
    metadata = {"a": "1", "b": "2"}
    first = await ask(gateway, "POST", HOME, {**BODY, "metadata": metadata}, idempotency_key="k")
    gateway.clock.advance(5)
    turned = {"metadata": dict(reversed(metadata.items())), **BODY}
    again = await ask(gateway, "POST", HOME, turned, idempotency_key="k")
    assert again.json() == first.json()
    field = await begin(gateway, metadata=metadata, idempotency_key="k")
    assert field == first.json()
    assert len(gateway.desks.lane.begun) == 1
    other = await ask(gateway, "POST", HOME, {**BODY, "metadata": metadata}, secret=OTHER_SECRET)
    assert other.json()["id"] != first.json()["id"]


async def test_a_reused_key_of_the_header_is_refused_as_everywhere(gateway):
    await ask(gateway, "POST", HOME, BODY, idempotency_key="k")
    body = {**BODY, "input_file_id": "file-2"}
    answer = await ask(gateway, "POST", HOME, body, idempotency_key="k")
    assert (answer.status, answer.error["code"]) == (422, "idempotency_key_reused")
    assert answer.error["param"] == "Idempotency-Key"


async def test_a_reused_key_of_the_body_is_a_conflict(gateway):
    made = await begin(gateway, idempotency_key="k")
    body = {**BODY, "idempotency_key": "k", "input_file_id": "file-2"}
    answer = await ask(gateway, "POST", HOME, body)
    assert (answer.status, answer.error["code"]) == (409, "batch_conflict")
    assert answer.error["param"] == "idempotency_key"
    assert "conflict" in answer.error["message"].lower()
    assert answer.headers["x-should-retry"] == "false"
    assert await shown(gateway, made["id"]) == made


# -- the rest ---------------------------------------------------------------------------------------


async def test_a_list_is_read_a_page_at_a_time_newest_first(gateway):
    empty = await ask(gateway, "GET", HOME)
    assert empty.json() == {
        "object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False
    }  # fmt: skip
    ids = [(await begin(gateway))["id"] for _ in range(5)]
    after, read, pages = "", [], 0
    while True:
        found = (await ask(gateway, "GET", f"{HOME}?limit=2&after={after}")).json()
        read += [each["id"] for each in found["data"]]
        after, pages = found["last_id"], pages + 1
        assert found["first_id"] == found["data"][0]["id"]
        if not found["has_more"]:
            break
    assert (read, pages) == (ids[::-1], 3)


@pytest.mark.parametrize(
    ("query", "status", "param"),
    [("limit=0", 400, "limit"), ("limit=101", 400, "limit"), ("after=batch_9", 404, "batch_id")],
)
async def test_other_queries_are_refused_by_their_name(gateway, query, status, param):
    answer = await ask(gateway, "GET", f"{HOME}?{query}")
    assert (answer.status, answer.error["param"]) == (status, param)


async def test_b14_a_cancelled_one_is_answered_as_it_is_then(gateway):
    made = await begin(gateway)
    answer = await ask(gateway, "POST", f"{HOME}/{made['id']}/cancel")
    assert answer.json()["status"] == "cancelling"
    assert answer.json()["cancelling_at"] == int(gateway.clock.now())
    OpenAIBatch.model_validate_json(answer.body, strict=True)


@pytest.mark.parametrize("state", [BatchState.COMPLETED, BatchState.FAILED, BatchState.EXPIRED])
async def test_b2_one_that_has_ended_cannot_be_cancelled(gateway, state):
    made = await begin(gateway)
    gateway.desks.change(made["id"], state=state)
    answer = await ask(gateway, "POST", f"{HOME}/{made['id']}/cancel")
    assert (answer.status, answer.error["code"]) == (409, "batch_conflict")
    assert f"Cannot cancel a batch with status '{state.value}'." in answer.error["message"]


async def test_there_are_so_many_unfinished_ones_at_most(gateway):
    gateway.settle(max_unfinished=1)
    await begin(gateway)
    answer = await ask(gateway, "POST", HOME, BODY)
    assert (answer.status, answer.error["code"]) == (429, "rate_limit_exceeded")
    assert "the limit is 1" in answer.error["message"]


async def test_a_key_that_may_not_use_the_batch_lane_begins_none(gateway, monkeypatch):
    poor = replace(PRINCIPAL, lanes=frozenset({Lane.INTERACTIVE}))

    async def authenticate(_: str) -> Any:
        return poor

    monkeypatch.setattr(gateway.tenancy, "authenticate", authenticate)
    answer = await ask(gateway, "POST", HOME, BODY)
    assert (answer.status, answer.error["code"]) == (403, "lane_not_allowed")


ENDPOINTS = [
    ("GET", HOME), ("POST", HOME), ("GET", HOME + "/{id}"), ("POST", HOME + "/{id}/cancel")
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), ENDPOINTS)
async def test_every_endpoint_wants_a_key_before_anything_else(gateway, method, path):
    id_ = (await begin(gateway))["id"]
    before = gateway.pipeline.knocks
    for secret in ("", "fbk_live_wrong"):
        headers = {"authorization": f"Bearer {secret}" if secret else ""}
        body = [60.0, b"never read"]
        answer = await gateway.request(method, path.format(id=id_), body=body, headers=headers)
        assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
    assert gateway.pipeline.knocks == before


@pytest.mark.parametrize(("method", "path"), ENDPOINTS[2:])
async def test_b1_another_organisation_gets_what_an_unknown_id_gets(gateway, method, path):
    id_ = (await begin(gateway))["id"]
    listed = await ask(gateway, "GET", HOME, secret=OTHER_SECRET)
    assert listed.json()["data"] == []
    seen = []
    for asked in (id_, "batch_unknown"):
        answer = await ask(gateway, method, path.format(id=asked), secret=OTHER_SECRET)
        request_id = answer.headers.pop("x-request-id")
        body = answer.body.replace(request_id.encode(), b"").replace(asked.encode(), b"")
        seen.append((answer.status, body))
    assert seen[0] == seen[1]
    assert seen[0][0] == 404
    assert b"No batch found" in seen[0][1]


async def test_openais_own_client_does_all_of_it(gateway, listener):
    url = (await listener()).base_url + "/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key=SECRET, max_retries=2) as client:
        made = await client.batches.create(**BODY, metadata={"a": "b"})  # type: ignore[arg-type]
        assert await client.batches.retrieve(made.id) == made
        more = [await client.batches.create(**BODY) for _ in range(3)]  # type: ignore[arg-type]
        listed = [each.id async for each in client.batches.list(limit=2)]
        assert listed == [each.id for each in (*more[::-1], made)]
        assert (await client.batches.cancel(made.id)).status == "cancelling"
        gateway.desks.change(made.id, state=BatchState.COMPLETED)
        before = gateway.pipeline.knocks
        with pytest.raises(openai.ConflictError, match="Cannot cancel"):
            await client.batches.cancel(made.id)
        assert gateway.pipeline.knocks == before + 1, "it was not tried again"
        with pytest.raises(openai.NotFoundError, match="No batch found"):
            await client.batches.retrieve("batch_unknown")
        with pytest.raises(openai.BadRequestError, match=r"metadata\.tags"):
            await client.batches.create(**BODY, metadata={"tags": ["a"]})  # type: ignore
