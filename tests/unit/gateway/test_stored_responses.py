"""Responses that were stored, over a fake store."""

from __future__ import annotations

import json

import pytest
from openai.types.responses import Response
from openai.types.responses.input_token_count_response import InputTokenCountResponse
from openai.types.responses.response_item_list import ResponseItemList

from forebay.core.dialogue import Item, Said, Turn, TurnState
from forebay.core.usage import Usage

ASKED = {
    "model": "tiny",
    "input": [
        {"role": "system", "content": "A"},
        {"role": "user", "content": "B"},
        {"role": "assistant", "content": "C"},
        {"role": "user", "content": [{"type": "input_text", "text": "D"}]},
    ],
    "instructions": "Be brief.",
    "metadata": {"a": "b"},
    "temperature": 0.7,
    "conversation": "conv_1",
    "text": {"format": {"type": "json_object"}},
}


async def post(gateway, path, body):
    return await gateway.request("POST", path, body=json.dumps(body).encode())


async def kept(gateway):
    """A response as it was answered; its turn as the pipeline would have kept it."""
    gateway.script("Hel", "lo", cached=2)
    answer = (await post(gateway, "/v1/responses", ASKED)).json()
    call = gateway.call
    remembered = call.remembrance
    output = Item("msg_" + call.id.removeprefix("req_"), "assistant", ("Hello",))
    gateway.turns.kept[answer["id"]] = Turn(
        id=remembered.turn_id,
        organisation_id="org_1",
        call_id=call.id,
        created_at=gateway.clock.now() + 0.5,
        expires_at=gateway.clock.now() + 60,
        input=remembered.input,
        conversation_id=remembered.conversation_id,
        previous_id=remembered.previous_id,
        record=remembered.record,
        state=TurnState.SHOWN,
        said=Said(output, Usage(5, 2, 2)),
    )
    return answer


async def test_a_stored_response_is_the_one_that_was_answered(gateway):
    answer = await kept(gateway)
    again = await gateway.request("GET", f"/v1/responses/{answer['id']}")
    assert again.status == 200
    assert again.json() == {**answer, "completed_at": None}
    Response.model_validate(again.json(), strict=True)
    assert gateway.pipeline.knocks == 2


async def test_a_stored_response_that_was_cut_off_is_incomplete(gateway):
    answer = await kept(gateway)
    turn = gateway.turns.kept[answer["id"]]
    output = Item(turn.said.output.id, "assistant", ("Hel",), complete=False)
    gateway.turns.kept[answer["id"]] = Turn(
        turn.id, "org_1", turn.call_id, 0.0, 1.0, turn.input, record=turn.record, state=TurnState.SHOWN,
        said=Said(output, turn.said.usage),
    )  # fmt: skip
    found = (await gateway.request("GET", f"/v1/responses/{answer['id']}")).json()
    assert (found["status"], found["output"][0]["status"]) == ("incomplete", "incomplete")
    assert found["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_a_stored_response_is_not_streamed(gateway):
    answer = await kept(gateway)
    refused = await gateway.request("GET", f"/v1/responses/{answer['id']}?stream=true")
    assert (refused.status, refused.error["param"]) == (400, "stream")
    plain = await gateway.request(
        "GET", f"/v1/responses/{answer['id']}?stream=false&include[]=message.output_text.logprobs"
    )
    assert plain.status == 200


async def test_a_deleted_response_is_gone(gateway):
    answer = await kept(gateway)
    path = f"/v1/responses/{answer['id']}"
    deleted = await gateway.request("DELETE", path)
    assert deleted.json() == {"id": answer["id"], "object": "response.deleted", "deleted": True}
    for method in ("GET", "DELETE"):
        gone = await gateway.request(method, path)
        assert (gone.status, gone.error["code"]) == (404, "not_found")


async def test_the_input_of_a_response_is_listed_in_pages_the_newest_first(gateway):
    answer = await kept(gateway)
    path = f"/v1/responses/{answer['id']}/input_items"
    whole = (await gateway.request("GET", path)).json()
    texts = [item["content"][0]["text"] for item in whole["data"]]
    assert (texts, whole["has_more"]) == (["D", "C", "B", "A"], False)
    assert (whole["first_id"], whole["last_id"]) == (whole["data"][0]["id"], whole["data"][3]["id"])
    ResponseItemList.model_validate(whole, strict=True)
    first = (await gateway.request("GET", f"{path}?limit=3&order=asc")).json()
    assert first["has_more"]
    rest = (await gateway.request("GET", f"{path}?order=asc&after={first['last_id']}")).json()
    assert [item["content"][0]["text"] for item in rest["data"]] == ["D"]
    end = (await gateway.request("GET", f"{path}?order=asc&after={rest['last_id']}")).json()
    assert (end["data"], end["first_id"], end["last_id"]) == ([], "", "")


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "order=up"])
async def test_a_page_has_its_bounds(gateway, query):
    answer = await kept(gateway)
    refused = await gateway.request("GET", f"/v1/responses/{answer['id']}/input_items?{query}")
    assert refused.status == 400
    assert refused.error["param"] == query.partition("=")[0]


async def test_there_is_no_response_to_cancel(gateway):
    answer = await kept(gateway)
    refused = await post(gateway, f"/v1/responses/{answer['id']}/cancel", {})
    assert refused.status == 400
    assert refused.error["message"].startswith("Cannot cancel a synchronous response.")
    unknown = await post(gateway, "/v1/responses/resp_none/cancel", {})
    assert unknown.status == 404


async def test_input_tokens_are_counted_and_nothing_is_run(gateway):
    answer = await post(gateway, "/v1/responses/input_tokens", ASKED)
    assert answer.json() == {"object": "response.input_tokens", "input_tokens": 17}
    InputTokenCountResponse.model_validate(answer.json(), strict=True)
    assert [item.text for item in gateway.call.remembrance.input] == ["A", "B", "C", "D"]
    assert gateway.pipeline.ending is None
    refused = await post(gateway, "/v1/responses/input_tokens", {"model": "tiny"})
    assert (refused.status, refused.error["param"]) == (400, "input")


async def test_a_client_that_leaves_while_it_asks_for_a_count_gets_nothing(gateway):
    answer = await gateway.request("POST", "/v1/responses/input_tokens", body=[b"{", None])
    assert answer.status == 0


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""), ("DELETE", ""), ("GET", "/input_items"), ("POST", "/cancel"),
    ],
)  # fmt: skip
async def test_every_verb_needs_a_key(gateway, method, path):
    headers = {"authorization": "Bearer fbk_live_wrong"}
    answer = await gateway.request(method, f"/v1/responses/resp_1{path}", headers=headers)
    assert answer.status == 401
