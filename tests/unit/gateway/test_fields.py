from __future__ import annotations

from pathlib import Path

import pytest

from forebay.core.errors import UnsupportedParameter
from forebay.gateway.fields import FIELDS, MESSAGE_FIELDS, Kind, markdown, screen

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


@pytest.mark.parametrize("name", ["user", "metadata", "store", "prompt_cache_key", "cache_salt"])
def test_fields_that_change_nothing_are_ignored_without_a_word(name):
    assert screen({name: {"any": "thing"}}) == []


def test_rule_38_unknown_names_are_returned_with_their_path():
    assert screen({"a": 1, "model": "m", "b": None}) == ["a", "b"]
    assert screen({"x": 1}, MESSAGE_FIELDS, path="messages[3].") == ["messages[3].x"]


def test_nothing_that_reaches_for_the_server_is_known():
    for name in ("api_base", "base_url", "user_config", "callbacks", "extra_body"):
        assert name not in FIELDS


def test_the_reference_page_is_the_table():
    assert REFERENCE.read_text() == markdown()
    for name in FIELDS:
        assert f"| `{name}` |" in markdown()
