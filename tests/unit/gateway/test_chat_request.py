from __future__ import annotations

import pytest

from forebay.core.call import Message
from forebay.core.errors import ForebayError, InvalidRequest, UnsupportedParameter
from forebay.core.job import Lane
from forebay.gateway.chat_fields import CHAT_FIELDS
from forebay.gateway.chat_request import parse_chat as parse
from forebay.gateway.fields import Kind

USER = {"role": "user", "content": "Hi"}


def body(**fields):
    return {"model": "m", "messages": [USER], **fields}


def messages(*items):
    return parse(body(messages=list(items))).messages


def test_a_minimal_request_leaves_everything_to_the_model():
    request = parse(body())
    assert request.messages == (Message("user", "Hi"),)
    assert (request.lane, request.streamed, request.max_output_tokens) == (
        Lane.INTERACTIVE, False, None,
    )  # fmt: skip
    assert request.sampling.temperature is None
    assert request.ignored == ()


def test_rule_31_developer_is_system():
    assert messages({"role": "developer", "content": "Be brief."}, USER)[0] == Message(
        "system", "Be brief."
    )


def test_rule_32_leading_system_messages_are_merged_and_later_ones_stay():
    merged = messages(
        {"role": "system", "content": "A"},
        {"role": "developer", "content": [{"type": "text", "text": "B"}]},
        USER,
        {"role": "system", "content": "C"},
    )
    assert merged == (Message("system", "A\n\nB"), Message("user", "Hi"), Message("system", "C"))


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant"])
def test_rule_34_content_part_arrays_are_accepted_everywhere(role):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {}}]
    assert messages({"role": role, "content": parts})[0].content == "a\nb"


@pytest.mark.parametrize(
    ("kind", "code"),
    [("image_url", "unsupported_value"), ("file", "unsupported_value"), ("poem", "invalid_value")],
)
def test_rule_34_an_unsupported_part_is_named(kind, code):
    with pytest.raises(InvalidRequest) as caught:
        messages(USER, USER, {"role": "user", "content": [{"type": kind}]})
    assert caught.value.param == "messages[2].content[0].type"
    assert caught.value.code == code
    assert kind in caught.value.message


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}, {"content": []}])
def test_rule_35_an_assistant_without_content_said_nothing(content):
    said = messages(USER, {"role": "assistant", "refusal": None, "tool_calls": [], **content}, USER)
    assert said[1] == Message("assistant", "")


def test_a_refusal_in_the_history_is_what_the_assistant_said():
    part = {"type": "refusal", "refusal": "No."}
    assert messages(USER, {"role": "assistant", "content": [part]})[1].content == "No."


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 9}, 9),
        ({"max_tokens": 7, "max_completion_tokens": 9}, 7),
        ({"max_tokens": 9, "max_completion_tokens": 7}, 7),
        ({"max_tokens": None, "max_completion_tokens": 7}, 7),
        ({"max_tokens": None}, None),
    ],
)
def test_rule_36_both_names_of_the_maximum_count_and_the_smaller_wins(fields, limit):
    assert parse(body(**fields)).max_output_tokens == limit


def test_rule_37_an_explicit_null_is_absent_for_every_optional_field():
    nulls = {name: None for name in CHAT_FIELDS if name not in ("model", "messages")}
    assert parse(body(**nulls)) == parse(body())


def test_rule_38_unknown_names_inside_messages_are_ignored_and_named_once():
    request = parse(body(messages=[{**USER, "x": 1}, {**USER, "x": 2, "name": "Ann"}], y=1))
    assert request.ignored == ("y", "messages[].x")


def test_rule_43_every_number_has_its_range():
    request = parse(body(temperature=2, top_p=1, top_k=1, seed=-(2**63), n=1))
    assert request.sampling.temperature == 2.0
    assert request.sampling.seed == -(2**63)
    assert parse(body(seed=2**63 - 1, temperature=0.0)).sampling.temperature == 0.0


def test_rule_39_what_is_accepted_reaches_the_call():
    request = parse(
        body(
            n=3,
            logprobs=True,
            top_logprobs=0,
            presence_penalty=-1,
            frequency_penalty=0.5,
            repetition_penalty=1.2,
            response_format={"type": "json_object"},
        )
    )
    wish = request.sampling
    assert (request.choices, wish.logprobs, wish.json_schema) == (3, True, '{"type":"object"}')
    penalties = (wish.presence_penalty, wish.frequency_penalty, wish.repetition_penalty)
    assert penalties == (-1.0, 0.5, 1.2)


def test_rule_44_fields_that_name_people_and_stores_are_accepted():
    names = ("user", "safety_identifier", "prompt_cache_key", "metadata", "store")
    assert parse(body(**dict.fromkeys(names, "x"))).ignored == ()
    assert parse(body(service_tier="fast")).lane is Lane.PREMIUM


@pytest.mark.parametrize(
    ("stop", "read"),
    [(None, ()), ("x", ("x",)), ([], ()), (["a", "b", "c", "\n"], ("a", "b", "c", "\n"))],
)
def test_stop_is_a_string_or_a_few(stop, read):
    assert parse(body(stop=stop)).sampling.stop == read


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"model": None}, "model", "missing_required_parameter"),
        ({"model": 5}, "model", "invalid_type"),
        ({"model": ""}, "model", "string_below_min_length"),
        ({"model": "m" * 257}, "model", "string_above_max_length"),
        ({"messages": None}, "messages", "missing_required_parameter"),
        ({"messages": "Hi"}, "messages", "invalid_type"),
        ({"messages": []}, "messages", "empty_array"),
        ({"messages": [USER] * 2049}, "messages", "array_above_max_length"),
        ({"messages": ["Hi"]}, "messages[0]", "invalid_type"),
        ({"messages": [USER, {"content": "x"}]}, "messages[1].role", "missing_required_parameter"),
        ({"messages": [{**USER, "role": 1}]}, "messages[0].role", "invalid_type"),
        ({"messages": [{**USER, "role": "robot"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{**USER, "role": "tool"}]}, "messages[0].role", "unsupported_value"),
        ({"messages": [{**USER, "role": "function"}]}, "messages[0].role", "unsupported_value"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
        ({"messages": [{**USER, "content": 5}]}, "messages[0].content", "invalid_type"),
        ({"messages": [{**USER, "content": []}]}, "messages[0].content", "empty_array"),
        ({"messages": [{**USER, "content": ["x"]}]}, "messages[0].content[0]", "invalid_type"),
        ({"messages": [{**USER, "content": [{}]}]}, "messages[0].content[0].type",
         "missing_required_parameter"),
        ({"messages": [{**USER, "content": [{"type": 1}]}]}, "messages[0].content[0].type",
         "invalid_type"),
        ({"messages": [{**USER, "content": [{"type": "text"}]}]}, "messages[0].content[0].text",
         "missing_required_parameter"),
        ({"messages": [{**USER, "content": [{"type": "text", "text": 1}]}]},
         "messages[0].content[0].text", "invalid_type"),
        ({"stream": 1}, "stream", "invalid_type"),
        ({"stream": True, "stream_options": []}, "stream_options", "invalid_type"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage",
         "invalid_type"),
        ({"n": 0}, "n", "integer_below_min_value"),
        ({"n": -1}, "n", "integer_below_min_value"),
        ({"n": 9}, "n", "integer_above_max_value"),
        ({"n": True}, "n", "invalid_type"),
        ({"n": "2"}, "n", "invalid_type"),
        ({"max_tokens": 0}, "max_tokens", "integer_below_min_value"),
        ({"max_tokens": -5}, "max_tokens", "integer_below_min_value"),
        ({"max_tokens": 10**18}, "max_tokens", "integer_above_max_value"),
        ({"max_tokens": 5.0}, "max_tokens", "invalid_type"),
        ({"max_tokens": True}, "max_tokens", "invalid_type"),
        ({"max_completion_tokens": "5"}, "max_completion_tokens", "invalid_type"),
        ({"temperature": -0.1}, "temperature", "decimal_below_min_value"),
        ({"temperature": 2.1}, "temperature", "decimal_above_max_value"),
        ({"temperature": "hot"}, "temperature", "invalid_type"),
        ({"temperature": False}, "temperature", "invalid_type"),
        ({"temperature": 10**400}, "temperature", "decimal_above_max_value"),
        ({"top_p": 0}, "top_p", "decimal_below_min_value"),
        ({"top_p": 1.01}, "top_p", "decimal_above_max_value"),
        ({"top_k": -2}, "top_k", "integer_below_min_value"),
        ({"seed": 2**63}, "seed", "integer_above_max_value"),
        ({"seed": -(2**63) - 1}, "seed", "integer_below_min_value"),
        ({"seed": 1.5}, "seed", "invalid_type"),
        ({"stop": 5}, "stop", "invalid_type"),
        ({"stop": ""}, "stop", "string_below_min_length"),
        ({"stop": ["a"] * 5}, "stop", "array_above_max_length"),
        ({"stop": ["a", ""]}, "stop[1]", "string_below_min_length"),
        ({"stop": ["a", None]}, "stop[1]", "invalid_type"),
        ({"stop": ["x" * 257]}, "stop[0]", "string_above_max_length"),
        ({"ignore_eos": "yes"}, "ignore_eos", "invalid_type"),
        ({"presence_penalty": 2.1}, "presence_penalty", "decimal_above_max_value"),
        ({"frequency_penalty": -2.1}, "frequency_penalty", "decimal_below_min_value"),
        ({"repetition_penalty": 0}, "repetition_penalty", "decimal_below_min_value"),
        ({"repetition_penalty": 2.5}, "repetition_penalty", "decimal_above_max_value"),
        ({"logprobs": 1}, "logprobs", "invalid_type"),
        ({"response_format": "json"}, "response_format", "invalid_type"),
        ({"service_tier": "gold"}, "service_tier", "invalid_value"),
        ({"service_tier": 1}, "service_tier", "invalid_type"),
        ({"service_tier": []}, "service_tier", "invalid_type"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_with_its_path_and_code(fields, param, code):
    with pytest.raises(InvalidRequest) as caught:
        parse(body(**fields))
    assert (caught.value.param, caught.value.code) == (param, code)
    assert param in caught.value.message
    assert len(caught.value.message) < 300


def test_an_empty_string_is_answered_with_what_can_be_sent_instead():
    def message(**fields):
        with pytest.raises(InvalidRequest) as caught:
            parse(body(**fields))
        return caught.value.message

    assert "GET /v1/models" in message(model="")
    assert "leave it out" not in message(model="")  # it is required
    assert "leave it out" in message(stop="")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{}]}, "tools"),
        ({"messages": [{**USER, "tool_calls": [{}]}]}, "messages[0].tool_calls"),
        ({"messages": [{**USER, "audio": {"id": "x"}}]}, "messages[0].audio"),
    ],
)
def test_what_is_not_built_is_refused_by_its_path(fields, param):
    with pytest.raises(UnsupportedParameter) as caught:
        parse(body(**fields))
    assert caught.value.param == param


def test_every_supported_field_is_checked():
    """A field that is called supported but never read would be accepted and ignored."""
    for field in CHAT_FIELDS.values():
        if field.kind is Kind.SUPPORTED and field.name != "stream_options":
            with pytest.raises(ForebayError) as caught:
                parse(body(**{field.name: {"wrong": "type"}}))
            assert str(caught.value.param).startswith(field.name)
