from __future__ import annotations

import json

import pytest

from forebay.core.errors import InvalidRequest
from forebay.gateway.response_format import json_schema

PERSON = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@pytest.mark.parametrize("value", [None, {}, {"type": "text"}])
def test_text_is_bound_to_nothing(value):
    assert json_schema(value) == ""


@pytest.mark.parametrize(
    "value",
    [
        {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON, "strict": True}},
        {"type": "json_schema", "json_schema": {"schema": PERSON}},
        {"type": "json_schema", "json_schema": None, "schema": PERSON},
        {"type": "json_schema", "name": "p", "schema": PERSON},
        {"type": "json_object", "schema": PERSON},
    ],
)
def test_rule_40_both_nestings_of_a_schema_are_read(value):
    assert json.loads(json_schema(value)) == PERSON


def test_json_object_is_any_object():
    assert json.loads(json_schema({"type": "json_object"})) == {"type": "object"}


@pytest.mark.parametrize(
    ("value", "param", "code"),
    [
        ("json", "response_format", "invalid_type"),
        ({"schema": PERSON}, "response_format.type", "missing_required_parameter"),
        ({"type": "grammar"}, "response_format.type", "invalid_value"),
        ({"type": 5}, "response_format.type", "invalid_type"),
        ({"type": ["text"]}, "response_format.type", "invalid_type"),
        ({"type": "json_schema"}, "response_format.json_schema.schema",
         "missing_required_parameter"),
        ({"type": "json_schema", "json_schema": []}, "response_format.json_schema", "invalid_type"),
        ({"type": "json_schema", "json_schema": {"name": "x"}},
         "response_format.json_schema.schema", "missing_required_parameter"),
        ({"type": "json_schema", "json_schema": {"schema": {"type": "strin"}}},
         "response_format.json_schema.schema.type", "invalid_schema"),
        ({"type": "json_schema", "schema": {"not": {}}}, "response_format.schema.not",
         "invalid_schema"),
        ({"type": "json_object", "schema": "x"}, "response_format.schema", "invalid_schema"),
    ],
)  # fmt: skip
def test_a_wrong_format_is_refused_with_its_path_and_code(value, param, code):
    with pytest.raises(InvalidRequest) as caught:
        json_schema(value)
    assert (caught.value.param, caught.value.code) == (param, code)
