from __future__ import annotations

import json

import pytest

from forebay.core.errors import UnsupportedParameter
from forebay.gateway.chat_fields import CHAT_FIELDS, MESSAGE_FIELDS
from forebay.gateway.completion_fields import COMPLETION_FIELDS
from forebay.gateway.fields import NOTHING, Kind
from forebay.gateway.fields import screen as screen_by
from forebay.gateway.responses_fields import RESPONSES_FIELDS

TABLES = (COMPLETION_FIELDS, CHAT_FIELDS, MESSAGE_FIELDS, RESPONSES_FIELDS)
REFUSED = [
    (field, table) for table in TABLES for field in table.values() if field.kind is Kind.REFUSED
]


def screen(values):
    """By the first table that refuses one of the names; by chat's where none does."""
    for table in TABLES:
        if any(name in table and table[name].kind is Kind.REFUSED for name in values):
            return screen_by(values, table)
    return screen_by(values, CHAT_FIELDS)


@pytest.mark.parametrize(("field", "table"), REFUSED, ids=lambda each: getattr(each, "name", ""))
def test_a_field_that_would_change_the_answer_is_refused_unless_it_asks_for_nothing(field, table):
    assert screen_by({field.name: None}, table) == []
    for value in field.harmless:
        assert screen_by({field.name: value}, table) == []
    with pytest.raises(UnsupportedParameter) as caught:
        screen_by({field.name: {"what": "ever"}}, table)
    assert caught.value.param == field.name
    assert field.name in caught.value.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("top_logprobs", 5),
        ("best_of", 2),
        ("echo", True),
        ("suffix", "end"),
        ("logit_bias", {"1": 5}),
        ("modalities", ["text", "audio"]),
        ("reasoning_effort", "low"),
        ("min_tokens", 1),
        ("prompt_logprobs", 0),
        ("skip_special_tokens", False),
        ("add_generation_prompt", False),
        ("truncate_prompt_tokens", 0),
    ],
)
def test_values_that_change_the_answer_are_refused(name, value):
    with pytest.raises(UnsupportedParameter):
        screen({name: value})


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("logit_bias", {"1": 5}, ": the engines here cannot do it. Remove it, or send null or a "
         "value that asks for nothing (false, 0, or anything empty)."),
        ("length_penalty", 1.1, ": beam search is not built. Remove it, or send null or 1."),
        ("reasoning_effort", "low", 'or send null or "none".'),
        ("modalities", ["audio"], 'or send null, ["text"] or a value that asks'),
        ("top_logprobs", 3, "or send null or 0."),
        ("skip_special_tokens", False, "or send null or true."),
        ("prompt_logprobs", 1, "Remove it, or send null."),
    ],
)  # fmt: skip
def test_a_refusal_says_why_and_what_is_accepted_instead(name, value, says):
    with pytest.raises(UnsupportedParameter) as caught:
        screen({name: value})
    assert says in caught.value.message


@pytest.mark.parametrize(("field", "table"), REFUSED, ids=lambda each: getattr(each, "name", ""))
def test_what_a_refusal_offers_is_accepted(field, table):
    offered = [json.loads(value) for value in field.special()]
    for value in [*offered, *(NOTHING if field.takes_nothing else ())]:
        assert screen_by({field.name: value}, table) == []
    assert "accepted" not in field.note, "a note is the reason; what is accepted follows from it"


@pytest.mark.parametrize("name", ["user", "metadata", "store", "prompt_cache_key", "cache_salt"])
def test_fields_that_change_nothing_are_ignored_without_a_word(name):
    assert screen({name: {"any": "thing"}}) == []


def test_rule_38_unknown_names_are_returned_with_their_path():
    assert screen({"a": 1, "model": "m", "b": None}) == ["a", "b"]
    assert screen_by({"x": 1}, MESSAGE_FIELDS, path="messages[3].") == ["messages[3].x"]


def test_nothing_that_reaches_for_the_server_is_known():
    for name in ("api_base", "base_url", "user_config", "callbacks", "extra_body"):
        assert all(name not in table for table in TABLES)


def test_every_supported_field_says_what_it_takes():
    for table in TABLES:
        for field in table.values():
            assert bool(field.schema) == (field.kind is Kind.SUPPORTED), field.name
