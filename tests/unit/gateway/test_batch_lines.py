"""Lines of batches: what they ask for, what is wrong with them, and how their outcomes are written."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from forebay.core.batch import BatchState, LineError, Place
from forebay.core.delta import FinishReason
from forebay.core.errors import EngineFailed, InsufficientQuota, LeaseLost
from forebay.core.event import Admitted
from forebay.core.job import Lane
from forebay.core.usage import Usage
from forebay.gateway import GatewaySettings, body
from forebay.gateway.batch_lines import ENDPOINTS, BatchLines
from forebay.pipeline.batch_lines import LineFormat, LineRefused, ReadLine
from forebay.pipeline.kept_answer import KeptChoice, encode_answer
from forebay.testing.clock import FakeClock
from tests.unit.gateway.catalog import FakeCatalog
from tests.unit.gateway.conftest import PRINCIPAL, admitted

CHAT, COMPLETIONS, RESPONSES = ENDPOINTS
PLACE = Place("batch_abc", 17)
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]},
    COMPLETIONS: {"model": "tiny", "prompt": "Hello"},
    RESPONSES: {"model": "tiny", "input": "Hello"},
}
MOST_BYTES = 10_000
SETTINGS = GatewaySettings(max_body_bytes=MOST_BYTES)


@pytest.fixture
def lines() -> LineFormat:
    return BatchLines(FakeCatalog(), FakeClock(), SETTINGS)


def line(endpoint: str = CHAT, envelope: Any = None, **fields: Any) -> bytes:
    whole = {
        "custom_id": "request-1",
        "method": "POST",
        "url": endpoint,
        "body": {**BODIES[endpoint], **fields},
        **(envelope or {}),
    }
    return json.dumps({name: value for name, value in whole.items() if value is not ...}).encode()


def read(lines: LineFormat, content: bytes, endpoint: str = CHAT) -> ReadLine:
    return lines.read(content, PLACE, endpoint, PRINCIPAL)


def refused(lines: LineFormat, content: bytes, endpoint: str = CHAT) -> LineError:
    with pytest.raises(LineRefused) as caught:
        read(lines, content, endpoint)
    return caught.value.error


def head(lane: Lane = Lane.BATCH) -> Admitted:
    return replace(admitted(lane), call_id=PLACE.call_id)


def kept(*texts: str, reason: FinishReason = FinishReason.STOP) -> bytes:
    choices = [KeptChoice([1, 2], text, []) for text in texts]
    usage = Usage(5, 2 * len(texts), 3, finish_reasons=(reason,) * len(texts))
    return encode_answer(usage, choices)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_line_is_a_call_in_the_batch_lane_for_which_nobody_waits(
    lines: LineFormat, endpoint: str
) -> None:
    content = line(endpoint, seed=7, metadata=None)
    found = read(lines, content, endpoint)
    call = found.call
    assert found.custom_id == lines.custom_id(content) == "request-1"
    assert (call.id, call.principal, call.model) == ("batch_req_abc_17", PRINCIPAL, "tiny")
    assert (call.lane, call.streamed, call.background, call.logged) == (
        Lane.BATCH, False, True, False
    )  # fmt: skip
    assert (call.idempotency, call.queue_deadline_seconds, call.place) == (None, None, PLACE)
    assert (call.sampling.seed, call.body_bytes) == (7, len(content))


def test_each_endpoint_has_its_own_words_for_what_is_asked(lines: LineFormat) -> None:
    assert read(lines, line(CHAT)).call.messages[0].content == "Hello"
    assert read(lines, line(COMPLETIONS), COMPLETIONS).call.prompt == "Hello"
    said = [{"role": "user", "content": text} for text in ("Hello", "Hi", "Bye")]
    wish = read(lines, line(RESPONSES, input=said), RESPONSES).call.remembrance
    assert wish is not None
    assert [item.parts for item in wish.input] == [("Hello",), ("Hi",), ("Bye",)]
    assert len({item.id for item in wish.input}) == 3
    assert (wish.turn_id, wish.conversation_id, wish.previous_id) == (None, None, None)


def test_a_mark_before_the_line_and_names_that_mean_nothing_are_ignored(lines: LineFormat) -> None:
    content = b"\xef\xbb\xbf" + line(envelope={"priority": 1}, made_up=True)
    assert read(lines, content).custom_id == lines.custom_id(content) == "request-1"


@pytest.mark.parametrize("tier", ["auto", "priority", "flex", "anything", 7, None])
def test_the_tier_says_nothing(lines: LineFormat, tier: Any) -> None:
    for endpoint in ENDPOINTS:
        found = read(lines, line(endpoint, service_tier=tier), endpoint)
        assert found.call.lane is Lane.BATCH
        answer = json.loads(lines.answer(found, head(), kept("Hi")))
        assert answer["response"]["body"]["service_tier"] == "flex"


@pytest.mark.parametrize("name", ["custom_id", "method", "url", "body"])
@pytest.mark.parametrize("value", [..., None])
def test_what_a_line_lacks_is_named(lines: LineFormat, name: str, value: Any) -> None:
    error = refused(lines, line(envelope={name: value}))
    assert (error.code, error.param) == ("missing_required_parameter", name)
    assert f"Missing required parameter: {name}." in error.message


@pytest.mark.parametrize(
    ("envelope", "code", "param"),
    [
        ({"custom_id": 1}, "invalid_type", "custom_id"),
        ({"custom_id": ""}, "string_below_min_length", "custom_id"),
        ({"custom_id": "x" * 513}, "string_above_max_length", "custom_id"),
        ({"method": "GET"}, "invalid_method", "method"),
        ({"method": "post"}, "invalid_method", "method"),
        ({"method": 1}, "invalid_method", "method"),
        ({"url": "/v1/embeddings"}, "invalid_url", "url"),
        ({"url": "/v1/completions"}, "invalid_url", "url"),
        ({"url": []}, "invalid_url", "url"),
        ({"body": "text"}, "invalid_type", "body"),
        ({"body": []}, "invalid_type", "body"),
    ],
)
def test_what_is_wrong_around_a_body_is_named(
    lines: LineFormat, envelope: dict[str, Any], code: str, param: str
) -> None:
    error = refused(lines, line(envelope=envelope))
    assert (error.code, error.param) == (code, param)
    assert len(error.message) < 300


def test_an_empty_name_is_not_told_to_be_left_out(lines: LineFormat) -> None:
    """It is required."""
    message = refused(lines, line(envelope={"custom_id": ""})).message
    assert message.endswith("Send a name for the line, by which its answer is found.")


def test_a_url_that_is_not_the_batchs_says_which_that_is(lines: LineFormat) -> None:
    error = refused(lines, line(envelope={"url": "/v1/embeddings"}))
    assert f'"/v1/embeddings", which does not match the batch endpoint {CHAT}' in error.message


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"a":1,"a":2}', b'{"a":"\xff"}'])
def test_what_is_no_object_of_json_is_called_that(lines: LineFormat, content: bytes) -> None:
    error = refused(lines, content)
    assert (error.code, error.param) == ("invalid_json_line", None)
    assert error.message.startswith("This line ")


def test_a_line_that_is_not_json_says_so(lines: LineFormat) -> None:
    assert "not valid JSON" in refused(lines, b"{invalid json here").message


def test_what_is_said_of_a_body_can_be_said_of_a_line() -> None:
    """Every message of the decoder begins in the same way."""
    source = inspect.getsource(body)
    decoding = source[source.index("def decode_object") :]
    messages = decoding.count("InvalidRequest(\n") + decoding.count("InvalidRequest(f")
    messages += decoding.count('InvalidRequest("')
    assert messages == decoding.count('"The request body ') > 5


def test_a_line_that_is_too_long_is_not_looked_into(lines: LineFormat) -> None:
    content = line(messages=[{"role": "user", "content": "x" * MOST_BYTES}])
    error = refused(lines, content[: MOST_BYTES + 1])
    assert (error.code, error.param) == ("line_too_long", None)
    assert f"the limit is {MOST_BYTES} bytes" in error.message


@pytest.mark.parametrize(
    ("endpoint", "fields", "code", "param"),
    [
        (CHAT, {"model": None}, "invalid_request", "body.model"),
        (CHAT, {"messages": None}, "invalid_request", "body.messages"),
        (COMPLETIONS, {"prompt": None}, "invalid_request", "body.prompt"),
        (RESPONSES, {"input": None}, "invalid_request", "body.input"),
        (CHAT, {"messages": []}, "empty_array", "body.messages"),
        (CHAT, {"messages": [{"role": "x", "content": ""}]}, "invalid_value", "body.messages[0].role"),
        (CHAT, {"temperature": 3}, "decimal_above_max_value", "body.temperature"),
        (CHAT, {"tools": [{}]}, "unsupported_parameter", "body.tools"),
        (CHAT, {"stream": True}, "streaming_unsupported", "body.stream"),
        (COMPLETIONS, {"stream": True}, "streaming_unsupported", "body.stream"),
        (RESPONSES, {"stream": True}, "streaming_unsupported", "body.stream"),
        (CHAT, {"stream": "yes"}, "invalid_type", "body.stream"),
        (CHAT, {"conversation": "conv_1"}, "unsupported_value", "body.conversation"),
        (RESPONSES, {"conversation": {"id": "conv_1"}}, "unsupported_value", "body.conversation"),
        (RESPONSES, {"previous_response_id": "resp_1"}, "unsupported_value", "body.previous_response_id"),
        (RESPONSES, {"background": True}, "unsupported_value", "body.background"),
        (RESPONSES, {"store": True}, "unsupported_value", "body.store"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_body_is_named_by_its_path(
    lines: LineFormat, endpoint: str, fields: dict[str, Any], code: str, param: str
) -> None:
    error = refused(lines, line(endpoint, **fields), endpoint)
    assert (error.code, error.param) == (code, param)
    assert param.removeprefix("body.").split("[")[0].lower() in error.message.lower()


def test_streaming_is_said_not_to_be_supported(lines: LineFormat) -> None:
    message = refused(lines, line(stream=True)).message
    assert "Streaming is not supported" in message


@pytest.mark.parametrize(
    "fields",
    [
        {"stream": False, "store": False, "background": False},
        {"stream": None, "store": None, "background": None, "conversation": None},
    ],
)
def test_what_asks_for_nothing_more_passes(lines: LineFormat, fields: dict[str, Any]) -> None:
    for endpoint in ENDPOINTS:
        read(lines, line(endpoint, **fields), endpoint)
    chat = read(lines, line(CHAT, store=True))
    assert chat.call.remembrance is None


# -- outcomes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("endpoint", "type_", "prefix"),
    [(CHAT, ChatCompletion, "chatcmpl-"), (COMPLETIONS, Completion, "cmpl-"), (RESPONSES, Response, "resp_")],
)  # fmt: skip
def test_an_answer_is_what_the_endpoint_would_have_sent(
    lines: LineFormat, endpoint: str, type_: Any, prefix: str
) -> None:
    found = read(lines, line(endpoint), endpoint)
    written = lines.answer(found, head(), kept("Hi"))
    assert written.endswith(b"\n")
    assert written.count(b"\n") == 1
    answer = json.loads(written)
    inner = answer["response"].pop("body")
    assert answer == {
        "id": "batch_req_abc_17",
        "custom_id": "request-1",
        "response": {"status_code": 200, "request_id": "batch_req_abc_17"},
        "error": None,
    }
    type_.model_validate_json(json.dumps(inner))
    assert (inner["id"], inner["model"]) == (f"{prefix}abc_17", "tiny")
    usage = inner["usage"]
    assert usage["total_tokens"] == 7
    details = usage.get("prompt_tokens_details") or usage["input_tokens_details"]
    assert details["cached_tokens"] == 3


def test_written_again_an_answer_is_the_same_bytes() -> None:
    """Also later, by another process."""
    written = set()
    for later in (0, 1000):
        clock = FakeClock()
        clock.advance(later)
        lines = BatchLines(FakeCatalog(), clock, SETTINGS)
        for endpoint in ENDPOINTS:
            written.add(lines.answer(read(lines, line(endpoint), endpoint), head(), kept("Hi")))
    assert len(written) == len(ENDPOINTS)


def test_all_choices_of_a_call_are_there_with_why_they_ended(lines: LineFormat) -> None:
    found = read(lines, line(n=2, temperature=1))
    answer = json.loads(lines.answer(found, head(), kept("a", "b", reason=FinishReason.LENGTH)))
    choices = answer["response"]["body"]["choices"]
    assert [(c["message"]["content"], c["finish_reason"]) for c in choices] == [
        ("a", "length"), ("b", "length")
    ]  # fmt: skip


def test_a_response_that_was_cut_off_is_incomplete_and_was_not_stored(lines: LineFormat) -> None:
    found = read(lines, line(RESPONSES), RESPONSES)
    answer = json.loads(lines.answer(found, head(), kept("Hi", reason=FinishReason.LENGTH)))
    inner = answer["response"]["body"]
    assert (inner["status"], inner["completed_at"]) == ("incomplete", None)
    assert (inner["store"], inner["background"], inner["conversation"]) == (False, False, None)


def test_a_text_is_one_line_for_whoever_splits_lines_in_any_way(lines: LineFormat) -> None:
    text = "a\n\u2028b\u2029\u0085\r\nc\x0b\x0c"
    content = line(envelope={"custom_id": "x\u2028y"})
    written = lines.answer(read(lines, content), head(), kept(text)).decode()
    assert len(written.splitlines()) == 1
    answer = json.loads(written)
    assert answer["response"]["body"]["choices"][0]["message"]["content"] == text
    assert answer["custom_id"] == "x\u2028y"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (InsufficientQuota("No money.", param="model"), 429, "insufficient_quota"),
        (EngineFailed(), 500, "engine_error"),
        (LeaseLost("fence 7"), 500, "internal_error"),
    ],
)
def test_a_failure_is_told_with_its_status_as_over_http(
    lines: LineFormat, error: Any, status: int, code: str
) -> None:
    written = lines.faulty("request-1", PLACE, lines.fault(error))
    assert written.endswith(b"}\n")
    found = json.loads(written)
    inner = found["response"].pop("body")["error"]
    assert found == {
        "id": PLACE.call_id,
        "custom_id": "request-1",
        "response": {"status_code": status, "request_id": PLACE.call_id},
        "error": None,
    }
    assert set(inner) == {"message", "type", "param", "code"}
    assert (inner["code"], inner["param"]) == (code, error.param)
    assert inner["message"].endswith("(request id: batch_req_abc_17)")
    assert "fence" not in inner["message"]


@pytest.mark.parametrize(
    ("ended", "code"),
    [(BatchState.EXPIRED, "batch_expired"), (BatchState.CANCELLED, "batch_cancelled")],
)
def test_a_line_that_was_not_run_says_why(lines: LineFormat, ended: BatchState, code: str) -> None:
    found = msgspec.json.decode(lines.unrun("request-1", PLACE, ended))
    assert found["response"] is None
    assert (found["id"], found["custom_id"]) == (PLACE.call_id, "request-1")
    assert found["error"]["code"] == code
    assert "Nothing was charged" in found["error"]["message"]


def test_it_says_what_a_batch_may_be_for(lines: LineFormat) -> None:
    assert lines.endpoints == ENDPOINTS
    assert lines.most_line_bytes == MOST_BYTES
