from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from openai.types.responses import ResponseIncludable

from forebay.core.errors import InvalidRequest, UnsupportedParameter
from forebay.core.job import Lane, Sampling
from forebay.gateway.responses_fields import INCLUDABLE, RESPONSES_FIELDS
from forebay.gateway.responses_request import parse_response
from forebay.gateway.responses_schema import Echo

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}


def parse(**fields):
    body = {"model": "m", "input": "Hi", **fields}
    return parse_response(body, lambda model: Sampling(temperature=0.3, top_p=0.8))


def spoken(*items):
    return parse(input=list(items)).continued.spoken


def echo(**fields):
    return msgspec.json.decode(parse(**fields).continued.record, type=Echo)


def test_a_minimal_request_is_what_the_user_says_and_is_stored():
    request = parse()
    assert request.continued.spoken == (("user", ("Hi",)),)
    assert request.continued.turn_prefix == "resp_"
    assert (request.streamed, request.max_output_tokens, request.lane) == (
        False, None, Lane.INTERACTIVE,
    )  # fmt: skip
    assert request.sampling.temperature is None
    assert request.ignored == ()


def test_rule_37_an_explicit_null_is_absent_for_every_optional_field_of_a_response():
    nulls = {name: None for name in RESPONSES_FIELDS if name not in ("model", "input")}
    assert parse(**nulls) == parse()


@pytest.mark.parametrize(
    ("item", "read"),
    [
        ({"role": "user", "content": "a"}, ("user", ("a",))),
        ({"type": "message", "role": "system", "content": "a"}, ("system", ("a",))),
        (
            {"role": "developer", "content": [{"type": "input_text", "text": "a"}]},
            ("developer", ("a",)),
        ),
        (
            {
                "id": "msg_1",
                "type": "message",
                "status": "completed",
                "role": "assistant",
                "content": [
                    {"type": "output_text", "text": "a", "annotations": [], "logprobs": []},
                    {"type": "refusal", "refusal": "No."},
                ],
            },
            ("assistant", ("a", "No.")),
        ),
        ({"role": "user", "content": [{"type": "text", "text": ""}]}, ("user", ("",))),
    ],
)
def test_rule_34_messages_come_with_and_without_a_type_and_in_parts(item, read):
    assert spoken(item) == (read,)


@pytest.mark.parametrize(
    ("item", "param", "named"),
    [
        ({"type": "function_call_output", "output": "x"}, "input[0].type", "function_call_output"),
        ({"type": "item_reference", "id": "msg_1"}, "input[0].type", "item_reference"),
        ({"type": "reasoning", "summary": []}, "input[0].type", "reasoning"),
        (
            {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]},
            "input[0].content[0].type",
            "input_image",
        ),
        (
            {"role": "user", "content": [{"type": "input_file", "file_id": "x"}]},
            "input[0].content[0].type",
            "input_file",
        ),
        ({"role": "tool", "content": "x"}, "input[0].role", "tool"),
    ],
)
def test_items_and_parts_that_are_no_text_are_refused_by_name(item, param, named):
    with pytest.raises(InvalidRequest) as caught:
        spoken(item)
    assert (caught.value.param, caught.value.code) == (param, "unsupported_value")
    assert named in caught.value.message


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"model": None}, "model", "missing_required_parameter"),
        ({"input": None}, "input", "missing_required_parameter"),
        ({"input": 5}, "input", "invalid_type"),
        ({"input": []}, "input", "empty_array"),
        (
            {"input": [{"role": "user", "content": "x"}] * 2049},
            "input",
            "array_above_max_length",
        ),
        ({"input": ["x"]}, "input[0]", "invalid_type"),
        ({"input": [{"content": "x"}]}, "input[0].role", "missing_required_parameter"),
        ({"input": [{"role": "user"}]}, "input[0].content", "missing_required_parameter"),
        ({"instructions": 5}, "instructions", "invalid_type"),
        ({"max_output_tokens": 0}, "max_output_tokens", "integer_below_min_value"),
        ({"max_output_tokens": "9"}, "max_output_tokens", "invalid_type"),
        ({"temperature": 3}, "temperature", "decimal_above_max_value"),
        ({"top_p": 0}, "top_p", "decimal_below_min_value"),
        ({"stream": "yes"}, "stream", "invalid_type"),
        ({"store": "yes"}, "store", "invalid_type"),
        ({"metadata": []}, "metadata", "invalid_type"),
        ({"metadata": {"a": 1}}, "metadata.a", "invalid_type"),
        ({"metadata": {"a": "x" * 513}}, "metadata.a", "string_above_max_length"),
        ({"metadata": {"a" * 65: "x"}}, f"metadata.{'a' * 64}", "string_above_max_length"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata", "array_above_max_length"),
        ({"previous_response_id": 5}, "previous_response_id", "invalid_type"),
        ({"previous_response_id": "turn_1"}, "previous_response_id", "invalid_value"),
        ({"conversation": 5}, "conversation", "invalid_type"),
        ({"conversation": ""}, "conversation", "string_below_min_length"),
        ({"conversation": {}}, "conversation.id", "missing_required_parameter"),
        ({"conversation": {"id": 5}}, "conversation.id", "invalid_type"),
        (
            {"conversation": {"id": "conv_1", "on_expired": "old"}},
            "conversation.on_expired",
            "invalid_value",
        ),
        (
            {"conversation": {"id": "conv_1", "on_expired": 5}},
            "conversation.on_expired",
            "invalid_type",
        ),
        (
            {"conversation": "conv_1", "previous_response_id": "resp_1"},
            "previous_response_id",
            "mutually_exclusive_parameters",
        ),
        ({"truncation": "some"}, "truncation", "invalid_value"),
        ({"truncation": 5}, "truncation", "invalid_type"),
        ({"text": "x"}, "text", "invalid_type"),
        ({"text": {"format": "json"}}, "text.format", "invalid_type"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "invalid_value"),
        (
            {"text": {"format": {"type": "json_schema"}}},
            "text.format.schema",
            "missing_required_parameter",
        ),
        (
            {"text": {"format": {"type": "json_schema", "schema": {"not": {}}}}},
            "text.format.schema.not",
            "invalid_schema",
        ),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "unsupported_value"),
        ({"service_tier": "scale"}, "service_tier", "invalid_value"),
        ({"include": "x"}, "include", "invalid_type"),
        ({"include": [5]}, "include[0]", "invalid_type"),
        (
            {"include": ["reasoning.encrypted_content", "message.output_text.colour"]},
            "include[1]",
            "unsupported_value",
        ),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls", "invalid_type"),
        ({"user": 5}, "user", "invalid_type"),
        ({"safety_identifier": "x" * 513}, "safety_identifier", "string_above_max_length"),
        ({"prompt_cache_key": []}, "prompt_cache_key", "invalid_type"),
    ],
)
def test_rule_43_a_value_that_is_not_valid_is_named_with_its_place(fields, param, code):
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    assert (caught.value.param, caught.value.code) == (param, code)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        ({"tools": {"a": 1}}, "tools"),
        ({"n": 2}, "n"),
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
    ],
)
def test_rule_39_what_would_change_the_answer_is_refused(fields, param):
    with pytest.raises(UnsupportedParameter) as caught:
        parse(**fields)
    assert caught.value.param == param


def test_tools_are_refused_by_their_types_and_names():
    tools = [{"type": "function", "name": "get_weather"}, {"type": "web_search"}, {}, 5]
    with pytest.raises(UnsupportedParameter) as caught:
        parse(tools=tools * 3)
    assert "function get_weather, web_search, one without a type, 5" in caught.value.message
    assert caught.value.message.count("get_weather") == 3
    assert ", …" in caught.value.message


def test_what_asks_for_nothing_is_accepted():
    nothing = {
        "background": False,
        "tools": [],
        "include": [],
        "top_logprobs": 0,
        "n": 1,
        "reasoning": {"effort": "high"},
        "max_tool_calls": 5,
        "stream_options": {"include_obfuscation": True},
        "text": {"verbosity": "medium"},
        "conversation": None,
    }
    assert parse(**nothing).ignored == ()


def test_what_openai_can_include_is_accepted_though_only_logprobs_are_there():
    assert set(INCLUDABLE) == set(get_args(ResponseIncludable))
    assert parse(include=[*INCLUDABLE]).sampling.logprobs
    assert not parse(include=["file_search_call.results"]).sampling.logprobs


def test_names_never_heard_of_are_ignored_with_their_place():
    request = parse(
        colour="red",
        text={"x": 1},
        conversation={"id": "conv_1", "y": 1},
        input=[{"role": "user", "content": "a", "z": 1}],
    )
    assert set(request.ignored) == {"colour", "text.x", "conversation.y", "input[].z"}


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, True),
        ({"store": True}, True),
        ({"store": False}, False),
        ({"store": False, "previous_response_id": "resp_1"}, False),
        ({"store": False, "conversation": "conv_1"}, True),
    ],
)
def test_a_response_is_kept_unless_it_should_not_be_and_belongs_to_no_conversation(fields, kept):
    assert bool(parse(**fields).continued.turn_prefix) == kept


@pytest.mark.parametrize(
    ("fields", "cut", "said"),
    [
        ({}, True, "auto"),
        ({"conversation": "conv_1"}, True, "auto"),
        ({"previous_response_id": "resp_1"}, True, "auto"),
        ({"previous_response_id": "resp_1", "truncation": "auto"}, True, "auto"),
        ({"previous_response_id": "resp_1", "truncation": "disabled"}, False, "disabled"),
    ],
)
def test_a_past_that_does_not_fit_is_cut_unless_that_is_disabled(fields, cut, said):
    assert parse(**fields).continued.cut == cut
    assert echo(**fields).truncation == said


@pytest.mark.parametrize(
    "reference", ["conv_1", {"id": "conv_1"}, {"id": "conv_1", "on_expired": "error"}]
)
def test_a_conversation_is_named_in_two_ways(reference):
    continued = parse(conversation=reference).continued
    assert (continued.conversation_id, continued.fresh) == ("conv_1", False)


def test_a_conversation_that_is_gone_can_be_begun_anew():
    assert parse(conversation={"id": "conv_1", "on_expired": "new"}).continued.fresh


def test_rule_40_the_format_of_the_text_is_enforced_and_repeated():
    format_ = {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True}
    request = parse(text={"format": format_})
    assert msgspec.json.decode(request.sampling.json_schema) == SCHEMA
    assert echo(text={"format": format_}).text.format == format_
    nested = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
    assert echo(text={"format": nested}).text.format == {**format_, "name": "schema"}
    assert parse(text={"format": {"type": "json_object"}}).sampling.json_schema
    assert parse(text={"format": {"type": "text"}}).sampling.json_schema == ""


def test_what_is_sampled_is_what_was_asked_for_or_the_models_own():
    assert (echo().temperature, echo().top_p) == (0.3, 0.8)
    assert (echo(temperature=0, top_p=1).temperature, echo(top_p=1).top_p) == (0.0, 1.0)
    wish = parse(temperature=0, top_k=5, seed=1, stop="x", presence_penalty=1).sampling
    assert (wish.temperature, wish.top_k, wish.seed, wish.stop) == (0.0, 5, 1, ("x",))
    assert wish.presence_penalty == 1.0
