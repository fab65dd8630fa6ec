"""What is accepted, what is refused and where; and that neither takes long."""

from __future__ import annotations

from random import Random

import pytest

from forebay.core.errors import InvalidRequest
from forebay.core.json_schema import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_NODES,
    MAX_VALUES,
    read,
    without_annotations,
)
from forebay.core.schema_nodes import (
    AnyOf,
    Anything,
    Array,
    Literal,
    Number,
    Object,
    Property,
    Ref,
    Text,
    Tuple,
)
from forebay.testing.schemas import random_schema


def root(schema):
    return read(schema, path="schema").root


def refusal(schema):
    with pytest.raises(InvalidRequest) as caught:
        read(schema, path="schema")
    assert caught.value.code == "invalid_schema"
    assert str(caught.value.param).startswith("schema")
    assert len(caught.value.message) < 500
    return caught.value


@pytest.mark.parametrize(
    ("schema", "node"),
    [
        ({}, Anything()),
        ({"title": "x", "description": "y", "default": 1, "x-order": 3}, Anything()),
        ({"type": "string"}, Text()),
        ({"maxLength": 3}, Text(0, 3)),
        ({"type": "string", "format": "uuid"}, Text(format="uuid")),
        ({"type": "boolean"}, Literal(("true", "false"))),
        ({"type": ["null", "string", "null"]}, AnyOf((Literal(("null",)), Text()))),
        ({"enum": ["a", 1, 1, None]}, Literal(('"a"', "1", "null"))),
        ({"enum": ["a", 1, 2.0, True], "type": "integer"}, Literal(("1", "2.0"))),
        ({"const": {"a": [1]}}, Literal(('{"a":[1]}',))),
        ({"type": "integer", "minimum": 0.5, "exclusiveMaximum": 3}, Number(True, 1, 2)),
        ({"type": "number", "minimum": 0.5, "maximum": 3}, Number(False, 500, 3000, 3)),
        ({"type": "number", "minimum": 1, "exclusiveMinimum": 1, "maximum": 2},
         Number(False, 101, 200, 2)),
        ({"type": "number"}, Number(False)),
        ({"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991},
         Number(True)),
        ({"type": "integer", "minimum": 5}, Number(True, 5, 10**15 - 1)),
        ({"type": "array", "minItems": None, "maxItems": None}, Array(Anything())),
        ({"type": "string", "minLength": None, "maxLength": 5, "format": None}, Text(0, 5)),
        ({"const": None, "title": None}, Literal(("null",))),
        ({"minItems": 2.0}, Array(Anything(), 2, None)),
        ({"type": "object"}, Object((), Anything())),
        ({"type": "object", "propertyNames": {"type": "string"}}, Object((), Anything())),
        ({"allOf": [{"type": "null"}], "title": "x"}, Literal(("null",))),
        ({"oneOf": [{"type": "null"}, {"type": "string"}]}, AnyOf((Literal(("null",)), Text()))),
        ({"type": "string", "nullable": True}, Text()),
        ({"prefixItems": [{"type": "string"}, {}], "items": False, "maxItems": 2},
         Tuple((Text(), Anything()))),
        ({"type": "string", "format": "uri", "minLength": 1, "maxLength": 2083}, Text(format="uri")),
        ({"type": "object", "additionalProperties": False}, Object(())),
        ({"properties": {"a": {"type": "null"}, "b": True}, "required": ["b"]},
         Object((Property("a", Literal(("null",)), False), Property("b", Anything(), True)))),
    ],
)  # fmt: skip
def test_what_a_schema_says(schema, node):
    assert root(schema) == node


def test_definitions_are_read_when_something_refers_to_them():
    schema = {
        "$ref": "#/$defs/a~1b",
        "$defs": {"a/b": {"type": "array", "items": {"$ref": "#"}}, "unused": {"not": {}}},
    }
    found = read(schema, path="schema")
    assert found.root == Ref("#/$defs/a~1b")
    assert set(found.definitions) == {"#", "#/$defs/a~1b"}


@pytest.mark.parametrize(
    ("schema", "param", "says"),
    [
        ([], "schema", "must be an object"),
        ("x", "schema", "must be an object"),
        ({"type": "strin"}, "schema.type", '"strin" is none of'),
        ({"type": []}, "schema.type", "empty"),
        ({"type": 5}, "schema.type", "5 is none of"),
        ({"type": "string", "pattern": "(a+)+b"}, "schema.pattern", "cannot be enforced"),
        ({"not": {}}, "schema.not", "cannot be enforced"),
        ({"allOf": [{}, {}]}, "schema.allOf", "more than one"),
        ({"oneOf": [{"type": "string"}, {"type": "string"}]}, "schema.oneOf", "two alternatives"),
        ({"oneOf": [{"const": 1}, {"const": 1.0}]}, "schema.oneOf", "two alternatives"),
        ({"oneOf": [{}, {"type": "null"}]}, "schema.oneOf", "two alternatives"),
        ({"oneOf": [{"properties": {"k": {"const": "a"}}}, {"properties": {"k": {"const": "b"}}}]},
         "schema.oneOf", "two alternatives"),
        ({"prefixItems": []}, "schema.prefixItems", "at least one"),
        ({"prefixItems": [{}], "minItems": 2}, "schema.prefixItems", "just these"),
        ({"type": "object", "propertyNames": {"maxLength": 3}}, "schema.propertyNames", "names"),
        ({"type": "string", "format": "uuid", "pattern": "^x$"}, "schema.pattern", "pattern"),
        ({"type": "array", "uniqueItems": True}, "schema.uniqueItems", "cannot be enforced"),
        ({"type": "string", "format": "hostname"}, "schema.format", "only date-time"),
        ({"type": "string", "format": "date", "maxLength": 3}, "schema.format", "10 to 10"),
        ({"type": "string", "minimum": 3}, "schema.minimum", "nothing about string"),
        ({"minimum": 3, "maxLength": 4}, "schema", "give a type"),
        ({"type": "string", "maxLength": -1}, "schema.maxLength", "0 to 4096"),
        ({"type": "string", "maxLength": 4097}, "schema.maxLength", "0 to 4096"),
        ({"type": "string", "maxLength": True}, "schema.maxLength", "integer"),
        ({"type": "string", "minLength": 5, "maxLength": 4}, "schema.minLength", "above"),
        ({"type": "array", "maxItems": 257}, "schema.maxItems", "0 to 256"),
        ({"type": "array", "items": [{}]}, "schema.items", "must be an object"),
        ({"type": "array", "items": False}, "schema.items", "must be an object"),
        ({"type": "number", "minimum": "1"}, "schema.minimum", "must be a number"),
        ({"type": "number", "minimum": 1e17}, "schema", "no number of at most 15 digits"),
        ({"type": "number", "exclusiveMinimum": 1e15}, "schema", "no number of at most 15"),
        ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 5e-324}, "schema", "no number"),
        ({"type": "string", "format": {}}, "schema.format", "cannot be enforced"),
        ({"items": {"$id": "x"}}, "schema.items.$id", "only the whole schema"),
        ({"$ref": "#/%24defs/x", "$defs": {"x": {}}}, "schema.$ref", "must name a definition"),
        ({"type": "number", "exclusiveMinimum": True}, "schema.exclusiveMinimum", "a number"),
        ({"type": "number", "minimum": 2, "maximum": 1}, "schema", "no number"),
        ({"type": "number", "minimum": 1, "exclusiveMaximum": 1}, "schema", "no number"),
        ({"type": "integer", "minimum": 1.2, "maximum": 1.8}, "schema", "no number"),
        ({"enum": []}, "schema.enum", "at least one"),
        ({"enum": ["a"], "type": "integer"}, "schema.enum", "none of its values"),
        ({"enum": ["a"], "maxLength": 3}, "schema.maxLength", "beside enum"),
        ({"anyOf": []}, "schema.anyOf", "at least one"),
        ({"anyOf": [{}], "type": "string"}, "schema.type", "beside anyOf"),
        ({"$ref": "#/$defs/x"}, "schema.$ref", "leads nowhere"),
        ({"items": {"anyOf": [{"$ref": "#/$defs/x"}]}}, "schema.items.anyOf[0].$ref", "nowhere"),
        ({"$ref": "#/default/x", "default": {"x": {}}}, "schema.$ref", "not lead to a subschema"),
        ({"$ref": "#/$defs"}, "schema.$ref", "leads nowhere"),
        ({"$ref": "#/$defs/a/b", "$defs": {"a": {"b": {}}}}, "schema.$ref", "not lead to a sub"),
        ({"$ref": "https://example.org/x"}, "schema.$ref", "must name a definition"),
        ({"$ref": "#/$defs/x", "type": "null", "$defs": {"x": {}}}, "schema.type", "beside $ref"),
        ({"properties": []}, "schema.properties", "object of schemas"),
        ({"properties": {"a": {"type": "x"}}}, "schema.properties.a.type", "none of"),
        ({"properties": {"a": {}}, "required": ["b"]}, "schema.required", "'b' is not among"),
        ({"required": "a", "properties": {"a": {}}}, "schema.required", "array of names"),
        ({"properties": {"a": {}}, "additionalProperties": {"not": {}}},
         "schema.additionalProperties.not", "cannot be enforced"),
    ],
)  # fmt: skip
def test_what_cannot_be_enforced_is_refused_with_its_place(schema, param, says):
    error = refusal(schema)
    assert error.param == param
    assert says in error.message


def deep(levels, innermost):
    schema = innermost
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


BOMBS = {
    "too large": {"enum": ["x" * MAX_BYTES]},
    "too deep": deep(MAX_DEPTH, {}),
    "too many": {"properties": {str(i): {} for i in range(MAX_NODES)}},
    "too many values": {"enum": list(range(MAX_VALUES + 1))},
    "too many digits": {
        "properties": {
            f"p{i}": {"type": "number", "minimum": -123456789012345, "maximum": 123456789012345}
            for i in range(105)
        }
    },
    "too many lengths": {
        "properties": {f"p{i}": {"type": "string", "maxLength": 50 + i} for i in range(101)}
    },
    "itself": {"$ref": "#"},
    "each other": {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [{"$ref": "#/$defs/a"}, {}]}},
    },
    "needs itself": {"properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    "needs itself by items": {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    "many definitions": {
        "$ref": "#/$defs/d0",
        "$defs": {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 3} for i in range(150)}
        | {"d150": {}},
    },
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_within_the_bounds_of_the_reader(name):
    error = refusal(BOMBS[name])
    assert "limit" in error.message or "itself" in error.message


def test_the_largest_that_fits_is_read():
    assert root(deep(MAX_DEPTH - 1, {})) is not None
    assert root({"properties": {str(i): {} for i in range(MAX_NODES - 1)}}) is not None
    assert root({"enum": list(range(MAX_VALUES))}) is not None


def test_annotations_say_nothing_and_names_that_look_like_them_stay():
    schema = {
        "title": "T",
        "description": "d",
        "x-order": 1,
        "type": "object",
        "properties": {
            "title": {"type": "string", "description": "what"},
            "description": {
                "anyOf": [{"const": {"title": "kept"}}, {"type": "null", "title": "n"}]
            },
        },
        "additionalProperties": {"type": "array", "items": {"title": "i", "type": "null"}},
        "$defs": {"default": {"type": "string", "default": "x"}},
    }
    assert without_annotations(schema) == {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "description": {"anyOf": [{"const": {"title": "kept"}}, {"type": "null"}]},
        },
        "additionalProperties": {"type": "array", "items": {"type": "null"}},
        "$defs": {"default": {"type": "string"}},
    }
    assert without_annotations(True) is True


@pytest.mark.parametrize("number", range(200))
def test_a_schema_without_its_annotations_means_the_same(number):
    schema = random_schema(Random(number))
    assert read(without_annotations(schema), path="schema") == read(schema, path="schema")


def test_alternatives_with_a_constant_each_are_told_apart_also_behind_references():
    cat = {"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"]}
    dog = {"type": "object", "properties": {"kind": {"const": "dog"}}, "required": ["kind"]}
    schema = {
        "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
        "discriminator": {"propertyName": "kind"},
        "$defs": {"cat": cat, "dog": dog},
    }
    assert root(schema) == AnyOf((Ref("#/$defs/cat"), Ref("#/$defs/dog")))
    dog["properties"]["kind"]["const"] = "cat"
    assert "two alternatives" in refusal(schema).message


def test_references_may_lead_through_other_subschemas():
    leaf = {"type": "array", "items": {"type": "null", "title": "t"}}
    schema = {
        "properties": {"title": leaf, "b": {"$ref": "#/properties/title/items"}},
        "required": ["b"],
    }
    for each in (schema, without_annotations(schema)):
        found = read(each, path="schema").definitions
        assert found["#/properties/title/items"] == Literal(("null",))


def test_a_name_with_a_tilde_or_slash_is_found_by_its_pointer():
    schema = {"$ref": "#/$defs/a~0b", "$defs": {"a~b": {"type": "null"}}}
    assert read(schema, path="schema").definitions["#/$defs/a~0b"] == Literal(("null",))
