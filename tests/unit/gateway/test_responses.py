"""Responses over a fake pipeline; what they share with chat is in test_answer.py."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from openai.types.responses import Response

from forebay.core.delta import FinishReason, TokenLogprob
from forebay.core.dialogue import Item, Window
from forebay.core.errors import EngineFailed, InvalidRequest, QueueDeadline
from forebay.core.event import Delta, Failed, Finished
from forebay.core.usage import Usage
from forebay.gateway import KeepAlive
from tests.unit.gateway.conftest import script

EVERY_FIELD = {
    "instructions": "Be brief.",
    "max_output_tokens": 9,
    "temperature": 0.5,
    "top_p": 0.9,
    "presence_penalty": 0.25,
    "frequency_penalty": -0.5,
    "service_tier": "flex",
    "metadata": {"a": "b"},
    "user": "u",
    "safety_identifier": "s",
    "prompt_cache_key": "k",
    "parallel_tool_calls": False,
    "tool_choice": "none",
    "truncation": "auto",
    "store": False,
}
CODEX = {
    "client_metadata": {"x-codex-installation-id": "1"},
    "include": ["reasoning.encrypted_content"],
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "D"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
    ],
    "instructions": "You are a coding agent.",
    "parallel_tool_calls": True,
    "prompt_cache_key": "019a",
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "tool_choice": "auto",
    "tools": [],
}


async def respond(gateway, path="/v1/responses", /, headers=None, **fields):
    body = json.dumps({"model": "tiny", "input": "Hello", **fields}).encode()
    return await gateway.request("POST", path, body=body, headers=headers)


def parsed(answer):
    """What OpenAI's own types make of it; a wrong or missing field fails."""
    return Response.model_validate(answer, strict=True)


def events_of(answer):
    """Name and data of each event but [DONE], which must be last."""
    *blocks, done, end = answer.body.decode().split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    found = []
    for block in blocks:
        name, data = block.split("\n")
        assert name.startswith("event: ")
        assert data.startswith("data: ")
        found.append((name[7:], json.loads(data[6:])))
    return found


async def test_a_whole_response_byte_for_byte(gateway, golden):
    gateway.script("Hel", "lo", cached=2)
    answer = await respond(gateway)
    assert answer.status == 200
    golden("response.json", answer.body + b"\n")


async def test_a_streamed_response_byte_for_byte(gateway, golden):
    gateway.script("Hel", "lo", "", " — 世界", reason=FinishReason.LENGTH)
    answer = await respond(gateway, stream=True)
    assert answer.status == 200
    golden("response_stream.sse", answer.body)


async def test_an_error_in_mid_stream_of_a_response_byte_for_byte(gateway, events, golden):
    gateway.script(events.admitted(), events.delta(2, "Hel"), 0.0, Failed(3, 1, EngineFailed()))
    golden("response_error_midstream.sse", (await respond(gateway, stream=True)).body)


async def test_rule_60_the_events_come_in_openais_order_and_are_numbered(gateway):
    gateway.script("Hel", "lo")
    found = events_of(await respond(gateway, stream=True))
    assert [name for name, _ in found] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [data["sequence_number"] for _, data in found] == list(range(10))
    assert all(name == data["type"] for name, data in found)
    (item_id,) = {data["item_id"] for _, data in found if "item_id" in data}
    assert found[2][1]["item"]["id"] == found[-1][1]["response"]["output"][0]["id"] == item_id
    assert {data["output_index"] for _, data in found[2:-1]} == {0}
    assert "".join(data["delta"] for _, data in found[4:6]) == found[6][1]["text"] == "Hello"
    assert [data["logprobs"] for _, data in found[4:7]] == [[], [], []]


async def test_rule_60_a_call_that_waits_says_so_with_its_status_line(gateway, events):
    gateway.settings = replace(gateway.settings, first_byte_seconds=0.02)
    gateway.script(events.admitted(), 0.1, *events.script("a")[1:])
    answer = await respond(gateway, stream=True)
    assert answer.sends[0].count(b"event: ") == 2
    names = [name for name, _ in events_of(answer)]
    assert names.count("response.created") == names.count("response.in_progress") == 1


async def test_rule_61_an_error_in_mid_stream_is_an_event_with_its_fields_beside_its_type(
    gateway, events
):
    gateway.script(events.admitted(), events.delta(2, "Hel"), 0.0, EngineFailed())
    name, error = events_of(await respond(gateway, stream=True))[-1]
    assert name == "error"
    assert set(error) == {"type", "code", "message", "param", "sequence_number"}
    assert (error["type"], error["code"], error["sequence_number"]) == ("error", "engine_error", 5)


async def test_rule_61_before_the_first_event_an_error_is_a_plain_http_error(gateway, events):
    gateway.script(events.admitted(), Failed(2, 1, QueueDeadline()))
    answer = await respond(gateway, stream=True)
    assert (answer.status, answer.error["code"]) == (503, "queue_deadline")


@pytest.mark.parametrize("fields", [{}, EVERY_FIELD], ids=["none", "every"])
async def test_rule_62_a_response_is_one_of_openais_types_with_nothing_left_out(gateway, fields):
    gateway.script("Hel", "lo", cached=2)
    answer = (await respond(gateway, **fields)).json()
    response = parsed(answer)
    assert response.output_text == "Hello"
    assert response.id.startswith("resp_")
    assert response.output[0].id == "msg_" + response.id.removeprefix("resp_")
    assert response.output[0].status == response.status == "completed"
    assert response.usage.input_tokens_details.cached_tokens == 2
    assert response.usage.total_tokens == 7
    for name in (
        "presence_penalty", "frequency_penalty", "top_logprobs", "temperature", "top_p", "tools",
        "tool_choice", "truncation", "background", "service_tier", "parallel_tool_calls", "text",
        "store", "metadata", "reasoning", "usage", "completed_at",
    ):  # fmt: skip
        assert answer[name] is not None, name
    for name in ("error", "incomplete_details", "previous_response_id", "max_tool_calls"):
        assert answer[name] is None, name


async def test_a_response_repeats_what_was_asked(gateway):
    gateway.script("x")
    answer = (await respond(gateway, **EVERY_FIELD)).json()
    for name, value in EVERY_FIELD.items():
        assert answer[name] == value, name
    assert answer["model"] == "tiny"


async def test_where_nothing_was_asked_a_response_says_what_holds(gateway):
    gateway.script("x")
    answer = (await respond(gateway)).json()
    said = {name: answer[name] for name in ("temperature", "top_p", "truncation", "service_tier")}
    assert said == {
        "temperature": 0.2, "top_p": 1.0, "truncation": "auto", "service_tier": "default",
    }  # fmt: skip
    assert answer["text"] == {"format": {"type": "text"}, "verbosity": "medium"}
    assert (answer["conversation"], answer["metadata"]) == (None, {})


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_response_that_is_cut_off_is_incomplete(gateway, streamed):
    gateway.script("a", reason=FinishReason.LENGTH)
    answer = await respond(gateway, stream=streamed)
    found = events_of(answer)[-1][1]["response"] if streamed else answer.json()
    response = parsed(found)
    assert response.status == response.output[0].status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.completed_at is None
    if streamed:
        assert events_of(answer)[-1][0] == "response.incomplete"


async def test_rule_63_what_codex_sends_is_served(gateway):
    gateway.script("a")
    answer = await respond(gateway, **CODEX)
    assert answer.status == 200
    assert "x-forebay-ignored" not in answer.headers
    remembered = gateway.call.remembrance
    assert [(item.role, item.text) for item in remembered.input] == [
        ("developer", "D"), ("user", "Hi"),
    ]  # fmt: skip
    assert (remembered.turn_id, remembered.instructions) == (None, "You are a coding agent.")


async def test_a_request_becomes_a_call_that_remembers(gateway):
    gateway.script("a")
    answer = (await respond(gateway, instructions="I", max_output_tokens=7, seed=3)).json()
    call = gateway.call
    assert (call.messages, call.prompt, call.max_output_tokens) == ((), "", 7)
    assert call.sampling.seed == 3
    remembered = call.remembrance
    assert remembered.turn_id == answer["id"] == "resp_" + call.id.removeprefix("req_")
    (item,) = remembered.input
    assert item.id.startswith("msg_")
    assert (item.role, item.parts, remembered.instructions) == ("user", ("Hello",), "I")
    assert (remembered.conversation_id, remembered.previous_id) == (None, None)
    assert (remembered.fresh, remembered.cut) == (False, True)
    assert call.asks_with == "input"


async def test_what_a_call_was_given_of_the_past_is_in_headers(gateway, events):
    window = Window(kept=3, dropped=2, conversation_id="conv_2", renewed=True)
    admitted = replace(events.admitted(), window=window)
    for streamed in (True, False):
        gateway.script(admitted, *events.script("a")[1:])
        answer = await respond(gateway, conversation="conv_1", stream=streamed)
        assert answer.headers["x-forebay-window"] == "kept=3,summarised=0,dropped=2"
        assert answer.headers["x-forebay-conversation"] == "conv_2"
        assert answer.headers["x-forebay-conversation-renewed"] == "true"
        found = events_of(answer)[-1][1]["response"] if streamed else answer.json()
        assert found["conversation"] == {"id": "conv_2"}


async def test_without_a_conversation_the_window_is_all_that_headers_say(gateway, events):
    gateway.script(replace(events.admitted(), window=Window(1, 0)), *events.script("a")[1:])
    answer = await respond(gateway, previous_response_id="resp_1")
    assert answer.headers["x-forebay-window"] == "kept=1,summarised=0,dropped=0"
    assert not {name for name in answer.headers if name.startswith("x-forebay-conversation")}
    assert answer.json()["previous_response_id"] == "resp_1"
    assert answer.json()["truncation"] == "auto"


async def test_a_previous_response_that_is_gone_is_named(gateway):
    gone = InvalidRequest("x", param="previous_response_id", code="previous_response_not_found")
    gateway.script(gone)
    answer = await respond(gateway, previous_response_id="resp_1", stream=True)
    assert (answer.status, answer.error["code"]) == (400, "previous_response_not_found")


async def test_rule_42_logprobs_of_a_response_are_in_its_events_and_in_its_text(gateway, events):
    delta = Delta(2, 1, 0, (1, 2), "ab", (TokenLogprob(b"a", -0.1), TokenLogprob(b"b", -0.2)))
    usage = Usage(5, 2, finish_reasons=(FinishReason.STOP,))
    script = (events.admitted(), delta, Finished(3, 1, usage, 17, (FinishReason.STOP,)))
    include = ["message.output_text.logprobs"]
    gateway.script(*script)
    found = dict(events_of(await respond(gateway, include=include, stream=True)))
    tokens = found["response.output_text.delta"]["logprobs"]
    assert [(each["token"], each["logprob"]) for each in tokens] == [("a", -0.1), ("b", -0.2)]
    assert found["response.output_text.done"]["logprobs"] == tokens
    gateway.script(*script)
    response = parsed((await respond(gateway, include=include)).json())
    assert [each.token for each in response.output[0].content[0].logprobs] == ["a", "b"]
    assert all(call.sampling.logprobs for call in gateway.pipeline.calls)


@pytest.mark.parametrize("keep_alive", ["chunk", "comment"])
async def test_rule_20_a_silent_stream_of_a_response_is_kept_alive(gateway, events, keep_alive):
    gateway.settings = replace(
        gateway.settings, keep_alive=KeepAlive(keep_alive), keep_alive_seconds=0.05
    )
    gateway.script(events.admitted(), events.delta(2, "a"), 0.2, events.finished(3, 1))
    answer = await respond(gateway, stream=True)
    deltas = answer.body.count(b"event: response.output_text.delta\n")
    assert (b": ka\n" in answer.body) == (keep_alive == "comment")
    assert (deltas > 1) == (keep_alive == "chunk")
    assert b'"text":"a"' in answer.body


async def test_openai_python_reads_responses_whole_and_streamed(gateway, events, listener):
    import openai

    gateway.settings = replace(gateway.settings, first_byte_seconds=0.01, keep_alive_seconds=0.03)
    url = (await listener()).base_url + "/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="fbk_live_test", max_retries=0) as client:
        ask = {"model": "tiny", "input": "x"}
        gateway.script("a", "b")
        assert (await client.responses.create(**ask)).output_text == "ab"
        gateway.script(events.admitted(), 0.1, *events.script("a", "b")[2:])
        stream = await client.responses.create(**ask, stream=True)
        deltas = [each.delta async for each in stream if each.type == "response.output_text.delta"]
        assert deltas == ["a", "b"]
        gateway.script("a", "b")
        async with client.responses.stream(**ask) as helper:
            final = await helper.get_final_response()
        assert (final.output_text, final.status) == ("ab", "completed")
        gateway.script(events.admitted(), events.delta(2, "a"), 0.0, EngineFailed())
        failed = [each async for each in await client.responses.create(**ask, stream=True)]
        assert (failed[-1].type, failed[-1].code) == ("error", "engine_error")


async def test_chat_goes_on_with_a_conversation(gateway, events):
    window = Window(kept=1, conversation_id="conv_1")
    gateway.script(replace(events.admitted(), window=window), *events.script("a")[1:])
    messages = [
        {"role": "system", "content": "A"},
        {"role": "developer", "content": "B"},
        {"role": "user", "content": [{"type": "text", "text": "C"}]},
    ]
    reference = {"id": "conv_1", "on_expired": "new"}
    answer = await gateway.chat({"messages": messages, "conversation": reference})
    assert answer.status == 200
    assert answer.headers["x-forebay-conversation"] == "conv_1"
    assert "x-forebay-conversation-renewed" not in answer.headers
    call = gateway.call
    remembered = call.remembrance
    assert call.messages == ()
    assert [replace(item, id="") for item in remembered.input] == [
        Item("", "system", ("A",)), Item("", "system", ("B",)), Item("", "user", ("C",)),
    ]  # fmt: skip
    assert remembered.turn_id == "turn_" + call.id.removeprefix("req_")
    assert (remembered.conversation_id, remembered.fresh) == ("conv_1", True)
    assert call.asks_with == "messages"


async def test_chat_without_a_conversation_remembers_nothing(gateway):
    gateway.script("a")
    answer = await gateway.chat({"conversation": None, "store": True})
    assert gateway.call.remembrance is None
    assert "x-forebay-window" not in answer.headers


async def test_a_conversation_goes_on_with_one_answer(gateway):
    answer = await gateway.chat({"conversation": "conv_1", "n": 2, "temperature": 1})
    assert (answer.status, answer.error["param"]) == (400, "n")


async def test_what_was_not_shown_of_the_past_is_told_in_the_metadata(gateway):
    for window, metadata in (
        (Window(2), {"a": "b"}),
        (
            Window(2, 1, summarised=3),
            {"a": "b", "x-forebay-window": "kept=2,summarised=3,dropped=1"},
        ),
    ):
        for stream in (False, True):
            events = script("Hi")
            gateway.script(replace(events[0], window=window), *events[1:])
            answer = await respond(gateway, metadata={"a": "b"}, stream=stream)
            assert answer.headers["x-forebay-window"] == str(window)
            told = events_of(answer)[0][1]["response"] if stream else answer.json()
            assert told["metadata"] == metadata
