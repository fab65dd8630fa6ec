from __future__ import annotations

import json
from random import Random

import jsonschema
import pytest

from forebay.core.json_schema import read
from forebay.engine.document import document
from forebay.testing.schemas import random_schema


@pytest.mark.parametrize("number", range(200))
def test_the_document_is_one_of_its_schema(number):
    schema = random_schema(Random(number))
    jsonschema.validate(json.loads(document(read(schema, path="schema"))), schema)


def test_a_recursive_schema_ends():
    node = {
        "type": "object",
        "properties": {
            "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"$ref": "#/$defs/end"}]},
        },
        "required": ["next"],
    }
    end = {"type": "object", "properties": {"at": {"const": "last"}}, "required": ["at"]}
    schema = {"$ref": "#/$defs/node", "$defs": {"node": node, "end": end}}
    assert json.loads(document(read(schema, path="schema"))) == {"next": {"at": "last"}}


@pytest.mark.parametrize(
    "bounds",
    [
        {"exclusiveMinimum": 0.5},
        {"exclusiveMaximum": -3},
        {"minimum": 1.25, "maximum": 1.25},
        {"exclusiveMinimum": 0, "exclusiveMaximum": 0.001},
    ],
)
def test_numbers_keep_their_bounds(bounds):
    schema = {"type": "number", **bounds}
    jsonschema.validate(json.loads(document(read(schema, path="schema"))), schema)
