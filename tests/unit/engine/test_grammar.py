"""Every text of a grammar is a document of its schema: seen with random schemas and random texts."""

from __future__ import annotations

import json
import re
from datetime import date, datetime, time
from ipaddress import IPv4Address
from random import Random
from urllib.parse import urlsplit
from uuid import UUID

import jsonschema
import pytest

from forebay.core.errors import InvalidRequest
from forebay.core.json_schema import read
from forebay.core.schema_formats import FORMATS, KNOWN_PATTERNS
from forebay.engine.grammar import between, ebnf, quoted
from forebay.testing.ebnf import Grammar
from forebay.testing.schemas import random_schema

NUMBERS = range(400)


def texts(schema, count=8, seed=0):
    """Texts of the grammar of this schema."""
    grammar = Grammar(ebnf(read(schema, path="schema")), Random(seed))
    made = []
    for _ in range(count):
        try:
            made.append(grammar.text())
        except RecursionError:
            continue  # too deep for this way of making texts
    return made


@pytest.mark.parametrize("number", NUMBERS)
def test_every_text_is_a_document_of_its_schema(number):
    schema = random_schema(Random(number))
    found = texts(schema, seed=number)
    assert found or "$defs" in schema
    for text in found:
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize("number", range(200))
@pytest.mark.parametrize("decimals", [0, 1, 3])
def test_between_two_bounds_lies_every_text_and_both_bounds_can_be_written(number, decimals):
    random = Random(number)
    low = random.choice((-1, 1)) * random.choice((0, 1, 9, 10, 99, 100, 101, 12345, 10**15))
    high = low + random.choice((0, 1, 8, 9, 10, 89, 90, 91, 1000, 10**6, 2 * 10**15))
    grammar = Grammar(f"root ::= {between(low, high, decimals)}", random)
    scale = 10**decimals
    for _ in range(30):
        text = grammar.text()
        assert json.loads(text) == float(text)
        assert low <= round(float(text) * scale) <= high, text
        assert len(text.partition(".")[2]) == decimals


@pytest.mark.parametrize(
    ("low", "high"), [(0, 0), (-3, 12), (7, 7), (98, 102), (-105, -95), (0, 250), (-1, 1)]
)
def test_between_small_bounds_everything_can_be_written(low, high):
    grammar = Grammar(f"root ::= {between(low, high, 0)}", Random(1))
    found = {int(grammar.text()) for _ in range(20_000)}
    assert found == set(range(low, high + 1))


def test_properties_come_in_order_and_optional_ones_may_be_left_out():
    schema = {
        "type": "object",
        "properties": {name: {"const": 1} for name in "abcd"},
        "required": ["c"],
    }
    found = {tuple(json.loads(text)) for text in texts(schema, 400)}
    assert all(list(names) == sorted(names) and "c" in names for names in found)
    assert len(found) == 8


def test_a_grammar_has_room_for_one_line_break_at_a_place_and_no_more():
    seen = set()
    for text in texts({"type": "object"}, 300):
        json.loads(text)
        outside = "s".join(text.replace("\\\\", "").replace('\\"', "").split('"')[::2])
        blanks = re.findall(r"[ \n]+", outside)
        assert all(re.fullmatch(r" |\n {0,12}", each) for each in blanks), blanks
        seen.update(blanks)
    assert {" ", "\n"} <= seen


def test_lengths_are_counted_in_characters():
    lengths = set()
    for text in texts({"type": "string", "minLength": 15, "maxLength": 50}, 600):
        lengths.add(len(json.loads(text)))
    assert min(lengths) >= 15
    assert max(lengths) <= 50
    assert len(lengths) > 25


@pytest.mark.parametrize(("low", "high"), [(0, 0), (0, 1), (1, 1), (2, 2), (0, 3), (1, 4), (3, 5)])
def test_arrays_have_as_many_items_as_they_may(low, high):
    schema = {"type": "array", "items": {"const": 0}, "minItems": low, "maxItems": high}
    found = {len(json.loads(text)) for text in texts(schema, 200)}
    assert found == set(range(low, high + 1))


PARSERS = {
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "date-time": datetime.fromisoformat,
    "uuid": UUID,
    "email": re.compile(r"[^@]+@[^@.]+\.[a-z]{2,}").fullmatch,
    "uri": urlsplit,
    "ipv4": IPv4Address,
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_text_of_a_format_is_one_of_the_stated_length_and_fits_known_patterns(name):
    lengths = set()
    for text in texts({"type": "string", "format": name}, 2000):
        value = json.loads(text)
        assert PARSERS[name](value)
        lengths.add(len(value))
        for pattern in KNOWN_PATTERNS.get(name, ()):
            assert re.search(pattern, value), pattern
    shortest, longest = FORMATS[name]
    assert shortest <= min(lengths)
    assert max(lengths) <= longest


@pytest.mark.parametrize(
    ("name", "pattern"), [(name, each) for name, known in KNOWN_PATTERNS.items() for each in known]
)
def test_a_known_pattern_may_stand_beside_its_format_alone(name, pattern):
    schema = {"type": "string", "format": name, "pattern": pattern}
    assert texts(schema) != []
    for other in set(FORMATS) - {name}:
        with pytest.raises(InvalidRequest):
            texts({**schema, "format": other})
    with pytest.raises(InvalidRequest):
        texts({"type": "string", "pattern": pattern})


def test_a_terminal_is_its_text_whatever_it_holds():
    awkward = json.dumps('q"uo\\te\n\x00 ßé世😀\u2028e', ensure_ascii=False)
    assert Grammar(f"root ::= {quoted(awkward)}", Random(0)).text() == awkward


def test_a_schema_of_equal_parts_has_one_rule_for_them():
    part = {"type": "object", "properties": {"x": {"type": "string", "maxLength": 100}}}
    properties = {f"p{i}": part for i in range(20)}
    grammar = ebnf(read({"type": "object", "properties": properties}, path="schema"))
    assert grammar.count('"\\"x\\""') == 2  # as the first property, and after others
