"""Chat completions over a fake pipeline. `rule_NN` are the quirks of real clients that we keep to."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from forebay.core.delta import FinishReason, TokenLogprob
from forebay.core.errors import (
    ContextLengthExceeded,
    EngineFailed,
    InsufficientQuota,
    QueueDeadline,
    RateLimited,
)
from forebay.core.event import Delta, Failed, Finished
from forebay.core.job import Lane
from forebay.core.usage import Usage
from forebay.gateway import KeepAlive

USAGE = {"stream_options": {"include_usage": True}}


async def test_a_streamed_answer_byte_for_byte(gateway, golden):
    gateway.script("Hel", "lo", "", " — 世界")
    answer = await gateway.stream()
    assert answer.status == 200
    golden("chat_stream.sse", answer.body)


async def test_a_streamed_answer_with_usage_byte_for_byte(gateway, golden):
    gateway.script("Hel", "lo", cached=2, lane=Lane.BATCH)
    golden("chat_stream_usage.sse", (await gateway.stream(USAGE)).body)


async def test_a_whole_answer_byte_for_byte(gateway, golden):
    gateway.script("Hel", "lo", reason=FinishReason.LENGTH)
    answer = await gateway.chat()
    assert answer.status == 200
    golden("chat.json", answer.body + b"\n")


async def test_an_error_in_mid_stream_byte_for_byte(gateway, events, golden):
    gateway.script(events.admitted(), events.delta(2, "Hel"), 0.0, Failed(3, 1, EngineFailed()))
    golden("chat_error_midstream.sse", (await gateway.stream()).body)


async def test_the_request_becomes_a_call(gateway):
    gateway.script("x")
    await gateway.stream(
        {
            "model": "tiny",
            "messages": [{"role": "user", "content": "Hi"}],
            "temperature": 0,
            "top_p": 0.5,
            "top_k": 3,
            "seed": -1,
            "stop": ["a", "b"],
            "max_tokens": 7,
            "ignore_eos": True,
        }
    )
    call = gateway.call
    assert (call.model, call.streamed, call.choices, call.lane) == (
        "tiny", True, 1, Lane.INTERACTIVE,
    )  # fmt: skip
    assert [(m.role, m.content) for m in call.messages] == [("user", "Hi")]
    sampling = call.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0, 0.5, 3)
    assert (sampling.seed, sampling.stop, sampling.ignore_eos) == (-1, ("a", "b"), True)
    assert call.max_output_tokens == 7
    assert call.principal.scopes.key_id == "key_1"


async def test_rule_01_usage_is_a_separate_last_chunk(gateway):
    gateway.script("a", "b")
    chunks = (await gateway.stream(USAGE)).chunks()
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["prompt_tokens"] == 5
    assert chunks[-1]["usage"]["completion_tokens"] == 2
    assert chunks[-1]["usage"]["total_tokens"] == 7
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"


async def test_rule_02_every_chunk_has_choices(gateway):
    gateway.script("a")
    assert all("choices" in chunk for chunk in (await gateway.stream(USAGE)).chunks())


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
async def test_rule_03_usage_comes_only_if_asked_for(gateway, options):
    gateway.script("a")
    chunks = (await gateway.stream({"stream_options": options})).chunks()
    assert all(len(chunk["choices"]) == 1 for chunk in chunks)


async def test_rule_04_other_chunks_have_usage_null_if_asked_and_no_such_key_otherwise(gateway):
    gateway.script("a", "b")
    asked = (await gateway.stream(USAGE)).chunks()
    assert [chunk["usage"] for chunk in asked[:-1]] == [None] * 4
    assert all("usage" not in chunk for chunk in (await gateway.stream()).chunks())


async def test_rule_05_usage_is_never_merged_with_content(gateway):
    gateway.script("a")
    for chunk in (await gateway.stream(USAGE)).chunks():
        assert not (chunk["choices"] and chunk["usage"])


async def test_rule_06_unknown_stream_options_are_accepted_and_usage_can_run_along(gateway):
    gateway.script("a", "b")
    options = {"include_usage": True, "continuous_usage_stats": True, "x": 1}
    answer = await gateway.stream({"stream_options": options})
    assert answer.headers["x-forebay-ignored"] == "stream_options.x"
    running = [chunk["usage"]["completion_tokens"] for chunk in answer.chunks()]
    assert running == [1, 1, 2, 2, 2]


@pytest.mark.parametrize("streamed", [{}, {"stream": False}, {"stream": None}])
async def test_rule_07_stream_options_without_stream_is_ignored(gateway, streamed):
    gateway.script("a")
    answer = await gateway.chat({**streamed, "stream_options": {"include_usage": "what", "x": 1}})
    assert answer.status == 200
    assert answer.headers["x-forebay-ignored"] == "stream_options"


async def test_rule_08_the_first_chunk_has_the_role_and_empty_content(gateway):
    gateway.script("a")
    first = (await gateway.stream()).chunks()[0]["choices"][0]
    assert first["delta"]["role"] == "assistant"
    assert first["delta"]["content"] == ""
    assert first["finish_reason"] is None


async def test_rule_09_the_role_comes_once(gateway):
    gateway.script("a", "b", "c")
    chunks = (await gateway.stream()).chunks()
    assert [("role" in c["choices"][0]["delta"]) for c in chunks] == [True] + [False] * 4


@pytest.mark.parametrize("texts", [(), ("",), ("a", "b")])
async def test_rule_10_one_finish_reason_in_a_last_chunk_with_an_empty_delta(gateway, texts):
    gateway.script(*texts)
    chunks = (await gateway.stream()).chunks()
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]
    assert chunks[-1]["choices"][0]["delta"] == {}


async def test_rule_16_done_ends_every_stream_also_after_an_error(gateway, events):
    gateway.script("a")
    assert (await gateway.stream()).body.endswith(b"\n\ndata: [DONE]\n\n")
    gateway.script(events.admitted(), events.delta(2, "a"), 0.0, EngineFailed())
    assert (await gateway.stream()).body.endswith(b"\n\ndata: [DONE]\n\n")


@pytest.mark.parametrize(
    "failure", [Failed(3, 1, EngineFailed()), EngineFailed(), ValueError("secret text")]
)
async def test_rule_17_an_error_in_mid_stream_is_data_and_has_no_finish_reason(
    gateway, events, failure
):
    gateway.script(events.admitted(), events.delta(2, "Hel"), 0.0, failure)
    answer = await gateway.stream()
    assert answer.status == 200
    assert answer.complete
    *chunks, error = answer.chunks()
    assert set(error) == {"error"}
    assert error["error"]["type"] == "server_error"
    assert answer.headers["x-request-id"] in error["error"]["message"]
    assert "secret text" not in answer.body.decode()
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (ContextLengthExceeded("maximum context length is 100 tokens"), 400, "context_length_exceeded"),
        (InsufficientQuota(), 429, "insufficient_quota"),
        (RateLimited(retry_after_seconds=1.5), 429, "rate_limit_exceeded"),
        (Failed(1, 1, QueueDeadline()), 503, "queue_deadline"),
        (Failed(1, 1, EngineFailed()), 500, "engine_error"),
        (KeyError("x"), 500, "internal_error"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("streamed", [True, False])
async def test_rule_18_a_failure_before_the_first_token_is_a_plain_http_error(
    gateway, events, failure, status, code, streamed
):
    first = [events.admitted(), 0.0] if isinstance(failure, Failed) else []
    gateway.script(*first, failure)
    answer = await gateway.chat({"stream": streamed})
    assert answer.status == status
    assert answer.headers["content-type"] == "application/json"
    assert answer.error["code"] == code


async def test_a_failure_that_is_ready_with_the_first_token_is_a_plain_http_error(gateway, events):
    gateway.script(events.admitted(), events.delta(2, "a"), Failed(3, 1, EngineFailed()))
    assert (await gateway.stream()).status == 500


async def test_rule_18_a_call_that_waits_gets_its_status_line_after_a_while(gateway, events):
    gateway.settings = replace(gateway.settings, first_byte_seconds=0.02)
    gateway.script(events.admitted(), 0.1, Failed(2, 1, QueueDeadline()))
    answer = await gateway.stream()
    assert answer.status == 200
    assert answer.chunks()[0]["error"]["code"] == "queue_deadline"


async def test_rule_18_no_status_line_leaves_before_the_call_is_admitted(gateway):
    gateway.settings = replace(gateway.settings, first_byte_seconds=0.02)
    gateway.script(0.1, InsufficientQuota())
    assert (await gateway.stream()).status == 429


async def test_rule_18_a_call_admitted_late_gets_its_status_line_at_once(gateway, events):
    gateway.settings = replace(gateway.settings, first_byte_seconds=0.02)
    opened = asyncio.Event()
    gateway.script(0.1, events.admitted(), opened, *events.script("a")[1:])
    seen = lambda message: opened.set()  # noqa: E731
    answer = await gateway.stream(send_hook=seen)
    assert answer.text() == "a"


async def test_rule_19_a_silent_stream_sends_a_comment_that_no_client_dispatches(gateway, events):
    gateway.settings = replace(gateway.settings, keep_alive_seconds=0.02)
    gateway.script(*events.script("a")[:3], 0.1, events.finished(3, 1))
    answer = await gateway.stream()
    comments = [body for body in answer.sends if body.startswith(b":")]
    assert comments
    assert set(comments) == {b": ka\n"}
    assert answer.text() == "a"


async def test_rule_19_openai_python_reads_over_comments(gateway, events, listener):
    import openai

    gateway.settings = replace(gateway.settings, keep_alive_seconds=0.02, first_byte_seconds=0.01)
    gateway.script(
        events.admitted(), 0.1, *events.script("a", "b")[2:4], 0.1, events.finished(4, 2)
    )
    url = (await listener()).base_url + "/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="fbk_live_test", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "x"}], stream=True
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "ab"
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_rule_20_the_sign_of_life_can_be_an_empty_chunk_or_nothing(gateway, events):
    silent = [*events.script("a")[:3], 0.1, events.finished(3, 1)]
    gateway.settings = replace(
        gateway.settings, keep_alive_seconds=0.02, keep_alive=KeepAlive.CHUNK
    )
    gateway.script(*silent)
    answer = await gateway.stream()
    assert {} in [chunk["choices"][0]["delta"] for chunk in answer.chunks()[:-1]]
    assert answer.text() == "a"
    gateway.settings = replace(gateway.settings, keep_alive=KeepAlive.OFF)
    gateway.script(*silent)
    answer = await gateway.stream()
    assert len(answer.chunks()) == 3
    assert b": ka" not in answer.body


async def test_rule_22_no_event_has_empty_data_and_none_has_an_id_or_a_name(gateway):
    gateway.script("", "a", "", "\n\ndata: [DONE]\n\n", "")
    body = (await gateway.stream(USAGE)).body.decode()
    for line in body.split("\n"):
        assert line == "" or line.startswith('data: {"') or line == "data: [DONE]"


async def test_rule_23_text_arrives_whole_and_in_order(gateway):
    texts = ["👩‍👩‍👧", "", "é", "\u2028", "\x00", '"', "\\", "世", "界"]
    gateway.script(*texts)
    assert (await gateway.stream()).text() == "".join(texts)
    assert (await gateway.chat()).json()["choices"][0]["message"]["content"] == "".join(texts)


async def test_rule_24_line_ends_of_unicode_are_escaped(gateway):
    gateway.script("a\u2028b\u2029c\u0085d")
    answer = await gateway.stream({"model": "m\u2028"})
    assert answer.text() == "a\u2028b\u2029c\u0085d"
    lines = answer.body.decode().splitlines()
    assert all(line == "" or line.startswith("data: ") for line in lines)


async def test_rule_26_id_created_and_model_are_the_same_on_all_chunks(gateway):
    gateway.script("a", "b")
    chunks = (await gateway.stream(USAGE)).chunks()
    (same,) = {(c["id"], c["created"], c["model"], c["object"]) for c in chunks}
    assert same[0].startswith("chatcmpl-")
    assert same[1:] == (1_800_000_000, "tiny", "chat.completion.chunk")
    assert type(chunks[0]["created"]) is int


async def test_rule_27_nothing_on_the_way_may_buffer_or_compress_a_stream(gateway):
    gateway.script("a")
    headers = (await gateway.stream(headers={"accept-encoding": "gzip, br"})).headers
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in headers


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("running", [True, False])
async def test_rule_28_a_client_that_leaves_closes_the_pipeline_at_once(
    gateway, events, connect, streamed, running
):
    reached = asyncio.Event()
    texts = events.script("a")[2:3] if running else []

    class Reached:
        async def wait(self):
            reached.set()
            await asyncio.Event().wait()

    gateway.script(
        events.admitted(), *texts, type("E", (asyncio.Event,), {"wait": Reached().wait})()
    )
    client = await connect()
    await client.post({"stream": streamed})
    await asyncio.wait_for(reached.wait(), 5)
    await client.close()
    await asyncio.wait_for(gateway.pipeline.left.wait(), 1)
    assert gateway.pipeline.ending in ("CancelledError", "GeneratorExit")
    assert gateway.metrics.open_calls._value.get() == 0


async def test_rule_28_a_client_that_leaves_before_its_body_is_complete_costs_nothing(gateway):
    answer = await gateway.request("POST", "/v1/chat/completions", body=[b"{", None])
    assert answer.status == 0
    assert gateway.pipeline.calls == []


async def test_a_client_that_leaves_after_the_end_does_not_disturb_the_cleaning_up(gateway, events):
    gone = asyncio.Event()
    gateway.script(*events.script("a"), 0.05)
    hook = lambda message: gone.set() if not message.get("more_body", True) else None  # noqa: E731
    for streamed in (True, False):
        gone.clear()
        answer = await gateway.chat({"stream": streamed}, gone=gone, send_hook=hook)
        assert answer.complete
        assert gateway.pipeline.ending == "exhausted"


async def test_a_server_that_stops_at_once_cancels_and_the_pipeline_is_closed(gateway, events):
    gateway.script(events.admitted(), asyncio.Event())
    task = gateway.tasks(gateway.stream(), name="request")
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert gateway.pipeline.left.is_set()


async def test_rule_30_the_message_has_a_refusal_of_null(gateway):
    gateway.script("a")
    message = (await gateway.chat()).json()["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "a", "refusal": None}


async def test_rule_38_a_name_never_heard_of_is_ignored_named_and_counted(gateway):
    gateway.script("a")
    answer = await gateway.chat({"frobnicate": 1, "bad\r\nname": None, "user": "u"})
    assert answer.status == 200
    assert answer.headers["x-forebay-ignored"] == "frobnicate, bad??name"
    assert gateway.metrics.unknown_fields._value.get() == 2
    many = await gateway.chat({f"unknown{i}": i for i in range(25)})
    assert many.headers["x-forebay-ignored"].endswith("unknown19, +5")


@pytest.mark.parametrize(
    ("asked", "lane", "used"),
    [
        ("flex", Lane.BATCH, "flex"),
        ("default", Lane.INTERACTIVE, "default"),
        ("auto", Lane.INTERACTIVE, "default"),
        (None, Lane.INTERACTIVE, "default"),
        ("priority", Lane.PREMIUM, "priority"),
    ],
)
async def test_rule_44_service_tier_is_a_lane_and_the_tier_used_is_reported(
    gateway, asked, lane, used
):
    gateway.script("a", lane=lane)
    answer = await gateway.chat({"service_tier": asked, "user": "u", "store": True})
    assert gateway.call.lane is lane
    assert answer.json()["service_tier"] == used
    streamed = await gateway.stream({"service_tier": asked})
    assert {chunk["service_tier"] for chunk in streamed.chunks()} == {used}


async def test_rule_54_usage_details_are_always_integers(gateway):
    gateway.script("a", cached=3)
    usage = (await gateway.chat()).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 3
    for details in ("prompt_tokens_details", "completion_tokens_details"):
        assert all(type(value) is int for value in usage[details].values())
    assert {"cached_tokens", "audio_tokens"} <= set(usage["prompt_tokens_details"])
    assert {"reasoning_tokens", "audio_tokens"} <= set(usage["completion_tokens_details"])


async def test_rule_56_the_fingerprint_is_the_routes(gateway):
    gateway.script("a")
    assert (await gateway.chat()).json()["system_fingerprint"] == "fp_0123456789ab"
    chunks = (await gateway.stream()).chunks()
    assert {chunk["system_fingerprint"] for chunk in chunks} == {"fp_0123456789ab"}


async def test_the_model_is_echoed_as_asked_and_the_header_says_which_it_was(gateway):
    gateway.script("a")
    answer = await gateway.chat({"model": "tiny"})
    assert answer.json()["model"] == "tiny"
    assert answer.headers["x-forebay-model"] == "tiny-1"


async def test_the_exact_cost_is_in_a_header(gateway):
    gateway.script("a")
    assert (await gateway.chat()).headers["x-forebay-cost-usd"] == "0.0000171"


async def test_deltas_that_are_ready_together_leave_together(gateway, events):
    gateway.script(*events.script("a", "b", "c")[:-1], 0.0, events.delta(5, "d"), 0.0,
                   events.finished(6, 4))  # fmt: skip
    answer = await gateway.stream()
    assert answer.text() == "abcd"
    assert len(answer.sends) == 3


async def test_the_key_is_checked_before_the_body_is_read(gateway):
    gateway.pipeline.refusal = RateLimited(retry_after_seconds=3)
    answer = await gateway.request("POST", "/v1/chat/completions", body=[60.0, b"{}"])
    assert answer.status == 429
    assert answer.headers["retry-after"] == "3"


async def test_refusals_are_counted_by_code_and_failures_in_the_queue_are_not(gateway, events):
    await gateway.chat({"tools": [{}]})
    gateway.script(InsufficientQuota())
    await gateway.stream()
    gateway.script(events.admitted(), Failed(1, 1, QueueDeadline()))
    await gateway.stream()
    text = gateway.metrics.exposition().decode()
    assert 'forebay_refusals_total{code="unsupported_parameter"} 1.0' in text
    assert 'forebay_refusals_total{code="insufficient_quota"} 1.0' in text
    assert "queue_deadline" not in text
    assert 'route="/v1/chat/completions",status="503"} 1.0' in text


async def test_a_pipeline_that_ends_without_an_ending_is_an_error(gateway, events):
    gateway.script(events.admitted(), events.delta(2, "a"))
    assert (await gateway.chat()).status == 500
    gateway.script(events.admitted(), events.delta(2, "a"), 0.0)
    assert (await gateway.stream()).chunks()[-1]["error"]["code"] == "internal_error"


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_missing_finish_reason_is_an_error_and_never_made_up(gateway, streamed):
    gateway.script("a", reason=None)
    answer = await gateway.chat({"stream": streamed})
    assert '"stop"' not in answer.body.decode()
    assert "internal_error" in answer.body.decode()


async def test_an_error_after_the_end_was_sent_changes_nothing(gateway, events):
    gateway.script(*events.script("a"), 0.0, ValueError("too late"))
    answer = await gateway.stream()
    assert answer.text() == "a"
    assert answer.body.count(b"[DONE]") == 1


async def test_a_real_client_that_stops_reading_is_cut_off_and_its_call_closed(
    gateway, events, connect
):
    gateway.settings = replace(gateway.settings, keep_alive_seconds=0.05, slow_client_seconds=0.1)
    flood = [each for i in range(2, 300) for each in (events.delta(i, "x" * 100_000), 0.0)]
    gateway.script(events.admitted(), *flood, events.finished(300, 1))
    client = await connect()
    await client.post({"stream": True})
    await asyncio.wait_for(gateway.pipeline.left.wait(), 10)
    assert gateway.pipeline.ending in ("CancelledError", "GeneratorExit")


@pytest.mark.parametrize("overdue", [True, False])
async def test_a_client_that_does_not_even_take_the_status_line_is_cut_off(
    gateway, events, connect, overdue
):
    """Before the first token the watcher opens the stream, afterwards the relay does."""
    gateway.settings = replace(
        gateway.settings, first_byte_seconds=0.05, keep_alive_seconds=0.05, slow_client_seconds=0.4
    )
    gateway.script("x" * 20_000_000)
    client = await connect()
    await client.post({})
    await asyncio.wait_for(gateway.pipeline.left.wait(), 10)
    gateway.pipeline.left.clear()
    texts = [] if overdue else events.script("a")[2:3]
    gateway.script(events.admitted(), *texts, asyncio.Event())
    await client.post({"stream": True})
    await asyncio.wait_for(gateway.pipeline.left.wait(), 10)
    assert len(gateway.pipeline.calls) == 2
    assert gateway.pipeline.ending in ("CancelledError", "GeneratorExit")


async def test_signs_of_life_wait_for_a_send_that_waits_for_the_client(gateway, events):
    gateway.settings = replace(gateway.settings, keep_alive_seconds=0.01)
    released = asyncio.Event()
    gateway.script(*events.script("a")[:3], 0.0, events.finished(3, 1))
    stall = lambda m: released.wait() if b'"a"' in m.get("body", b"") else None  # noqa: E731
    task = gateway.tasks(gateway.stream(send_hook=stall), name="request")
    await asyncio.sleep(0.1)
    released.set()
    answer = await asyncio.wait_for(task, 5)
    assert answer.text() == "a"
    assert b": ka" not in answer.body


async def test_prompts_and_answers_never_reach_the_log(gateway, events, capsys):
    planted = "planted-8f3a"
    gateway.script(events.admitted(), events.delta(2, planted), 0.0, ValueError(planted))
    await gateway.stream({"messages": [{"role": "user", "content": planted}], planted: 1})
    await gateway.chat({"messages": [{"role": planted, "content": planted}]})
    written = capsys.readouterr()
    assert planted not in written.out + written.err
    assert "unhandled_error" in written.out + written.err


async def test_answers_are_valid_json_of_the_expected_keys(gateway):
    gateway.script("a")
    body = json.loads((await gateway.chat()).body)
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["index"] == 0
    assert body["choices"][0]["logprobs"] is None


def answers(*choices):
    """Deltas of several choices, one token each, and their end."""
    deltas = [Delta(i + 2, 1, choice, (i,), text) for i, (choice, text) in enumerate(choices)]
    reasons = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.STOP)
    usage = Usage(5, len(deltas), finish_reasons=reasons)
    return [*deltas, Finished(len(deltas) + 2, 1, usage, 17, reasons)]


THREE = ((1, "b1"), (0, "a1"), (1, "b2"), (1, "b3"))


async def test_rule_25_choices_are_apart_and_the_prompt_is_counted_once(gateway, events):
    gateway.script(events.admitted(), *answers(*THREE))
    answer = (await gateway.chat({"n": 3, "temperature": 1})).json()
    assert gateway.call.choices == 3
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2]
    assert [c["message"]["content"] for c in answer["choices"]] == ["a1", "b1b2b3", ""]
    assert [c["finish_reason"] for c in answer["choices"]] == ["stop", "length", "stop"]
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (5, 4)


async def test_rule_9_10_25_each_choice_of_a_stream_has_one_role_and_one_end(gateway, events):
    gateway.script(events.admitted(), *answers(*THREE))
    chunks = (await gateway.stream({"n": 3, "temperature": 1, **USAGE})).chunks()
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    for index, (text, reason) in enumerate([("a1", "stop"), ("b1b2b3", "length"), ("", "stop")]):
        mine = [choice for choice in choices if choice["index"] == index]
        assert [c["delta"].get("role") for c in mine] == ["assistant"] + [None] * (len(mine) - 1)
        assert "".join(c["delta"].get("content", "") for c in mine) == text
        assert [c["finish_reason"] for c in mine] == [None] * (len(mine) - 1) + [reason]
        assert mine[-1]["delta"] == {}
    assert chunks[-1]["usage"]["completion_tokens"] == 4


async def test_rule_42_logprobs_are_beside_the_text_of_their_tokens(gateway, events):
    first = Delta(2, 1, 0, (1,), "a", (TokenLogprob(b"a", -0.25),))
    held = Delta(3, 1, 0, (2,), "")
    last = Delta(4, 1, 0, (3,), "bc", (TokenLogprob(b"b", -0.5), TokenLogprob(b"c", -1.0)))
    usage = Usage(5, 3, finish_reasons=(FinishReason.STOP,))
    end = Finished(5, 1, usage, 17, (FinishReason.STOP,))
    gateway.script(events.admitted(), first, held, last, end)
    chunks = (await gateway.stream({"logprobs": True})).chunks()
    shown = [c["choices"][0]["logprobs"] for c in chunks]
    tokens = [[each["token"] for each in one["content"]] for one in shown if one is not None]
    assert tokens == [["a"], ["b", "c"]]
    gateway.pipeline.calls.clear()
    whole = (await gateway.chat({"logprobs": True})).json()["choices"][0]["logprobs"]
    assert [each["logprob"] for each in whole["content"]] == [-0.25, -0.5, -1.0]


async def test_an_answer_without_logprobs_says_null_and_an_empty_one_with_them_says_none(
    gateway, events
):
    end = Finished(2, 1, Usage(5, 0, finish_reasons=(FinishReason.STOP,)), 9, (FinishReason.STOP,))
    gateway.script(events.admitted(), end)
    assert (await gateway.chat()).json()["choices"][0]["logprobs"] is None
    answer = await gateway.chat({"logprobs": True})
    assert answer.json()["choices"][0]["logprobs"] == {"content": [], "refusal": None}


async def test_rule_7_strict_clients_are_told_what_would_be_ignored(gateway):
    gateway.script("x")
    body = {"stream_options": {"include_usage": True}, "metadata": {"a": "b"}, "colour": "red"}
    assert (await gateway.chat(body)).headers["x-forebay-ignored"] == "colour, stream_options"
    answer = await gateway.chat(body, headers={"x-forebay-strict": "true"})
    assert (answer.status, answer.error["code"]) == (400, "unknown_parameter")
    assert "colour, stream_options" in answer.error["message"]
    fine = await gateway.chat({"metadata": {}}, headers={"x-forebay-strict": "true"})
    assert fine.status == 200
