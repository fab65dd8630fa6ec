from __future__ import annotations

import json
from pathlib import Path

import pytest

from forebay.core.errors import UnsupportedParameter
from forebay.gateway.fields import FIELDS, MESSAGE_FIELDS, NOTHING, Kind, markdown, screen

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "chat-fields.md"
REFUSED = [field for field in FIELDS.values() if field.kind is Kind.REFUSED]


@pytest.mark.parametrize("field", REFUSED, ids=lambda field: field.name)
def test_a_field_that_would_change_the_answer_is_refused_unless_it_asks_for_nothing(field):
    assert screen({field.name: None}) == []
    for value in field.harmless:
        assert screen({field.name: value}) == []
    with pytest.raises(UnsupportedParameter) as caught:
        screen({field.name: {"what": "ever"}})
    assert caught.value.param == field.name
    assert field.name in caught.value.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("response_format", {"type": "json_object"}),
        ("logprobs", True),
        ("top_logprobs", 5),
        ("presence_penalty", 0.1),
        ("repetition_penalty", 1.1),
        ("repetition_penalty", 0),
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
        ("repetition_penalty", 1.1, ": an extension of vLLM's. Remove it, or send null or 1."),
        ("reasoning_effort", "low", 'or send null or "none".'),
        ("response_format", {"type": "json_object"}, 'or send null, {"type":"text"} or a value that asks'),
        ("logprobs", True, "or send null or false."),
        ("top_logprobs", 3, "or send null or 0."),
        ("skip_special_tokens", False, "or send null or true."),
        ("prompt_logprobs", 1, "Remove it, or send null."),
    ],
)  # fmt: skip
def test_a_refusal_says_why_and_what_is_accepted_instead(name, value, says):
    with pytest.raises(UnsupportedParameter) as caught:
        screen({name: value})
    assert says in caught.value.message


@pytest.mark.parametrize("field", REFUSED, ids=lambda field: field.name)
def test_what_a_refusal_offers_is_accepted(field):
    offered = [json.loads(value) for value in field.special()]
    for value in [*offered, *(NOTHING if field.takes_nothing else ())]:
        assert screen({field.name: value}) == []
    assert "accepted" not in field.note, "a note is the reason; what is accepted follows from it"


@pytest.mark.parametrize("name", ["user", "metadata", "store", "prompt_cache_key", "cache_salt"])
def test_fields_that_change_nothing_are_ignored_without_a_word(name):
    assert screen({name: {"any": "thing"}}) == []


def test_rule_38_unknown_names_are_returned_with_their_path():
    assert screen({"a": 1, "model": "m", "b": None}) == ["a", "b"]
    assert screen({"x": 1}, MESSAGE_FIELDS, path="messages[3].") == ["messages[3].x"]


def test_nothing_that_reaches_for_the_server_is_known():
    for name in ("api_base", "base_url", "user_config", "callbacks", "extra_body"):
        assert name not in FIELDS


def test_the_reference_page_says_what_happens_to_too_large_a_maximum_and_to_headers():
    page = " ".join(markdown().split())
    assert "is lowered to that, not refused" in page
    assert "the `finish_reason` `length`" in page
    assert "`Idempotency-Key` is too" in page


def test_the_reference_page_is_the_table():
    assert REFERENCE.read_text() == markdown()
    for name in FIELDS:
        assert f"| `{name}` |" in markdown()
