"""A small document of a JSON schema: what the scripted model answers where a schema is asked for. Pure.

Required properties and the fewest items; of alternatives the one that needs the fewest definitions
inside each other, so that a recursive schema ends.

Not here: which schemas are accepted (`forebay.core.json_schema`), real models (`grammar.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal

import msgspec

from forebay.core.schema_nodes import (
    AnyOf,
    Anything,
    Array,
    Literal,
    Node,
    Number,
    Object,
    Ref,
    Schema,
    Text,
    Tuple,
)

_LETTERS = "forebay "
_FORMATS = {
    "date": "2026-11-30",
    "time": "12:00:00Z",
    "date-time": "2026-11-30T12:00:00Z",
    "uuid": "f04eba70-0000-4000-8000-000000000000",
    "email": "forebay@example.org",
    "uri": "https://example.org/forebay",
    "ipv4": "127.0.0.1",
}


def document(schema: Schema) -> str:
    """Its JSON text."""
    return _Composer(schema).write(schema.root)


class _Composer:
    def __init__(self, schema: Schema) -> None:
        self._definitions = schema.definitions
        self._heights: dict[str, float] = {}
        while len(self._heights) < len(self._definitions):
            found = {name: _height(node, self._heights) for name, node in self._definitions.items()}
            known = {name: height for name, height in found.items() if math.isfinite(height)}
            self._heights = known | self._heights

    def write(self, node: Node) -> str:
        match node:
            case Literal():
                return node.texts[0]
            case Text():
                return _quoted(_FORMATS[node.format] if node.format else _text(node))
            case Number():
                return _number(node)
            case Array():
                items = [self.write(node.items)] if node.low else []
                return "[" + ",".join(items * node.low) + "]"
            case Tuple():
                return "[" + ",".join(map(self.write, node.items)) + "]"
            case Object():
                required = [p for p in node.properties if p.required]
                return (
                    "{"
                    + ",".join(f"{_quoted(p.name)}:{self.write(p.node)}" for p in required)
                    + "}"
                )
            case AnyOf():
                return self.write(min(node.options, key=lambda o: _height(o, self._heights)))
            case Ref():
                return self.write(self._definitions[node.name])
            case Anything():
                return "null"


def _height(node: Node, known: Mapping[str, float]) -> float:
    """Definitions inside each other that the smallest document needs; infinite: not known yet."""
    match node:
        case Ref():
            return known.get(node.name, math.inf) + 1
        case AnyOf():
            return min(_height(option, known) for option in node.options)
        case Array():
            return _height(node.items, known) if node.low else 0
        case Tuple():
            return max(_height(item, known) for item in node.items)
        case Object():
            return max((_height(p.node, known) for p in node.properties if p.required), default=0)
    return 0


def _text(node: Text) -> str:
    length = max(node.low, len(_LETTERS) if node.high is None else min(node.high, len(_LETTERS)))
    return (_LETTERS * (length // len(_LETTERS) + 1))[:length]


def _number(node: Number) -> str:
    if node.low is None or node.high is None:
        return "7"
    middle = (node.low + node.high) // 2
    return format(Decimal(middle).scaleb(-node.decimals), "f")


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()
