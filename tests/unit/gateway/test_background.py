"""Responses in the background over a fake pipeline: how they are begun and read."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from openai.types.responses import Response

from forebay.core.delta import FinishReason
from forebay.core.dialogue import Item, Said, TurnState
from forebay.core.errors import CallCancelled, EngineFailed, LaneFull
from forebay.core.event import Delta, Failed, Finished, Started
from forebay.core.usage import Usage

USAGE = Usage(5, 2, finish_reasons=(FinishReason.STOP,))
EVENTS = [
    Started(1, 1, 3),
    Delta(2, 1, 0, (7,), ""),
    Delta(3, 1, 0, (8,), "Hel"),
    Started(4, 2, 3),
    Delta(5, 2, 0, (9,), "lo"),
]
WHOLE = [*EVENTS, Finished(6, 2, USAGE, 17, USAGE.finish_reasons)]


async def begin(gateway, headers=None, **fields):
    body = {"model": "tiny", "input": "Hello", "background": True, **fields}
    return await gateway.request(
        "POST", "/v1/responses", body=json.dumps(body).encode(), headers=headers
    )


def events_of(answer):
    *blocks, done, end = answer.body.decode().split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    return [json.loads(block.split("\n")[1][6:]) for block in blocks]


def turn_of(gateway):
    (turn,) = gateway.turns.kept.values()
    return turn


async def test_a_begun_one_is_answered_at_once(gateway):
    answer = await begin(gateway, metadata={"a": "b"}, colour="red")
    assert answer.status == 200
    response = Response.model_validate(answer.json(), strict=True)
    assert (response.status, response.background, response.output) == ("queued", True, [])
    assert answer.headers["x-forebay-ignored"] == "colour"
    assert answer.headers["x-forebay-model"] == "tiny-1"
    (call,) = gateway.background.calls
    assert (call.background, call.streamed) == (True, False)
    assert not gateway.pipeline.calls
    gateway.background.begun.add(response.id)
    found = await gateway.request("GET", f"/v1/responses/{response.id}")
    assert found.json() == {**answer.json(), "status": "in_progress"}


async def test_what_refuses_it_is_told_like_any_refusal(gateway):
    gateway.background.refusal = LaneFull()
    for stream in (False, True):
        answer = await begin(gateway, stream=stream)
        assert (answer.status, answer.error["code"]) == (503, "queue_full")
    answer = await begin(gateway, store=False)
    assert (answer.status, answer.error["param"]) == (400, "background")
    answer = await begin(gateway, background="yes")
    assert (answer.status, answer.error["param"]) == (400, "background")


async def test_its_idempotency_key_finds_the_first_one(gateway):
    gateway.background.script = WHOLE
    first = (await begin(gateway)).json()
    gateway.background.before = turn_of(gateway).call_id
    for stream in (False, True):
        again = await begin(gateway, headers={"idempotency-key": "k"}, stream=stream)
        assert again.headers["idempotency-hit"] == "true"
        shown = events_of(again)[0]["response"] if stream else again.json()
        assert shown["id"] == first["id"]
    assert len(gateway.background.calls) == 1


async def test_a_stream_of_one_byte_for_byte(gateway, golden):
    gateway.background.script = WHOLE
    answer = await begin(gateway, stream=True)
    golden("response_background.sse", answer.body)
    events = events_of(answer)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    (call,) = gateway.background.calls
    assert not call.streamed, "it is nobody's stream"


@pytest.mark.parametrize(
    "ending",
    [
        [WHOLE[-1]],
        [Failed(6, 2, EngineFailed())],
        [Failed(6, 2, CallCancelled())],
    ],
)
@pytest.mark.parametrize("started", [True, False])
async def test_whoever_reads_again_is_told_what_comes_after_a_number(gateway, ending, started):
    """Whether a worker has begun is told or not: the log of a dead process has no `Started`."""
    gateway.background.script = [*EVENTS, *ending]
    whole = events_of(await begin(gateway, stream=True))
    if not started:
        gateway.background.script = [e for e in [*EVENTS, *ending] if not isinstance(e, Started)]
    id = whole[0]["response"]["id"]
    for after in range(-1, len(whole) + 1):
        query = "" if after < 0 else f"&starting_after={after}"
        answer = await gateway.request("GET", f"/v1/responses/{id}?stream=true{query}")
        rest = events_of(answer)
        assert rest == whole[after + 1 :]


async def test_a_failure_is_an_event_of_the_response(gateway):
    gateway.background.script = [Failed(1, 1, EngineFailed())]
    *_, last = events_of(await begin(gateway, stream=True))
    response = Response.model_validate(last["response"], strict=True)
    assert (last["type"], response.status) == ("response.failed", "failed")
    assert response.error.code == "server_error"
    assert "engine" in response.error.message


@pytest.mark.parametrize(
    ("change", "status", "error"),
    [
        ({"state": TurnState.FAILED, "reason": "engine_fault"}, "failed", "server_error"),
        ({"state": TurnState.FAILED, "reason": "queue_deadline"}, "failed", "server_error"),
        ({"state": TurnState.CANCELLED, "reason": "client_gone"}, "cancelled", None),
        ({"state": TurnState.KEPT, "said": True}, "queued", None),
        ({"state": TurnState.SHOWN, "said": True}, "completed", None),
    ],
)
async def test_how_it_ended_is_told(gateway, change, status, error):
    id = (await begin(gateway)).json()["id"]
    if change.get("said"):
        change["said"] = Said(Item("msg_1", "assistant", ("Hi",)), USAGE, 1_800_000_009.5)
    gateway.turns.kept[id] = replace(turn_of(gateway), **change)
    found = (await gateway.request("GET", f"/v1/responses/{id}")).json()
    Response.model_validate(found, strict=True)
    assert found["status"] == status
    assert (found["error"] or {}).get("code") == error
    assert found["completed_at"] == (1_800_000_009 if status == "completed" else None)


async def test_it_is_cancelled_and_deleted(gateway):
    id = (await begin(gateway)).json()["id"]
    answer = await gateway.request("POST", f"/v1/responses/{id}/cancel")
    assert answer.json()["status"] == "cancelled"
    again = (await begin(gateway)).json()["id"]
    seen = []
    cancel = gateway.background.cancel

    async def watched(turn):
        seen.append(turn.id)
        return await cancel(turn)

    gateway.background.cancel = watched
    deleted = await gateway.request("DELETE", f"/v1/responses/{again}")
    assert (deleted.json()["deleted"], seen) == (True, [again])


async def test_only_what_was_logged_can_be_read(gateway):
    id = (await begin(gateway)).json()["id"]
    answer = await gateway.request("GET", f"/v1/responses/{id}?stream=true")
    assert (answer.status, answer.error["param"]) == (400, "stream")
    answer = await gateway.request("GET", f"/v1/responses/{id}?stream=true&starting_after=-1")
    assert (answer.status, answer.error["param"]) == (400, "starting_after")


async def test_a_stream_whose_end_is_not_known_breaks_off_without_one(gateway):
    """The server stops, and the response goes on later: nobody is told that it failed."""
    gateway.background.script = EVENTS
    answer = await begin(gateway, stream=True)
    assert answer.complete
    *blocks, end = answer.body.decode().split("\n\n")
    assert end == ""
    kinds = [block.split("\n")[0] for block in blocks]
    assert kinds[-1] == "event: response.output_text.delta"
    assert "data: [DONE]" not in kinds
