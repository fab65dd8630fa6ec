"""Random JSON schemas of the kind that answers can be bound to, for tests of engines and grammars.

Texts are bounded, so that a small model cannot talk for ever.

Not here: which schemas are accepted (`forebay.core.json_schema`).
"""

from __future__ import annotations

from random import Random
from typing import Any

_NAMES = (
    "name", "age", "city", "title", "count", "price", "items", "tags", "status", "kind", "value",
    "note", "größe", 'qu"ote', "a b", "id",
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    "red",
    "green",
    1,
    -2.5,
    None,
    True,
    False,
    "x y",
    'q"uote',
    "ü\n",
    "\\",
    [1, "a"],
    {},
)
_FORMATS = ("date", "time", "date-time", "uuid", "email", "uri", "ipv4")
_PLAIN = ("string", "integer", "number", "boolean", "null", "enum", "const", "format", "types")
_NESTED = ("object", "array", "anyOf", "object", "array", "oneOf", "tuple")
_ENDLESS = ("ref", "map")
_DEEP = 3

Schema = dict[str, Any]


def random_schema(random: Random, *, endless: bool = True) -> Schema:
    """An object's schema, up to three levels deep. `endless`: it may have definitions that refer to
    themselves and objects of any size, of which a model may never make an end."""
    writer = _Writer(random, _NESTED + (_ENDLESS if endless else ()))
    schema = writer.object(0)
    if writer.definitions:
        schema["$defs"] = writer.definitions
    return schema


class _Writer:
    def __init__(self, random: Random, nested: tuple[str, ...]) -> None:
        self._random = random
        self._nested = nested
        self.definitions: dict[str, Schema] = {}

    def any(self, depth: int) -> Schema:
        """A schema of any kind that still fits this deep."""
        kind = self._random.choice(_PLAIN + (self._nested if depth < _DEEP else ()))
        match kind:
            case "object":
                return self.object(depth)
            case "array":
                low = self._random.randint(0, 2)
                high = low + self._random.randint(0, 2)
                return {
                    "type": "array",
                    "items": self.any(depth + 1),
                    "minItems": low,
                    "maxItems": high,
                }
            case "anyOf":
                count = self._random.randint(1, 3)
                return {"anyOf": [self.any(depth + 1) for _ in range(count)]}
            case "oneOf":
                return {"oneOf": [self._tagged(tag, depth) for tag in ("a", "ab", "b")]}
            case "tuple":
                items = [self.any(depth + 1) for _ in range(self._random.randint(1, 3))]
                return {"type": "array", "prefixItems": items, "items": False}
            case "ref":
                return self._ref()
            case "map":
                return {"type": "object", "additionalProperties": {"type": "boolean"}}
        return self._plain(kind)

    def object(self, depth: int) -> Schema:
        """Some properties, most of them required."""
        names = self._random.sample(_NAMES, self._random.randint(0 if depth else 1, 4))
        schema: Schema = {
            "type": "object",
            "title": "ignored",
            "properties": {name: self.any(depth + 1) for name in names},
            "required": [name for name in names if self._random.random() < 0.7],
        }
        schema["additionalProperties"] = False
        return schema

    def _tagged(self, tag: str, depth: int) -> Schema:
        """An object that its `kind` tells from others."""
        schema = self.object(depth + 1)
        schema["properties"] = (
            {"kind": {"const": tag}} | schema["properties"] | {"kind": {"const": tag}}
        )
        schema["required"] = sorted({*schema["required"], "kind"})
        return schema

    def _ref(self) -> Schema:
        """A tree of nodes that may end at every level."""
        if not self.definitions:
            node = {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}
            self.definitions["node"] = {
                "type": "object",
                "properties": {
                    "value": {"type": "integer", "minimum": 0, "maximum": 9},
                    "next": node,
                },
                "required": ["value", "next"],
                "additionalProperties": False,
            }
        return {"$ref": "#/$defs/node"}

    def _plain(self, kind: str) -> Schema:
        random = self._random
        match kind:
            case "string":
                low = random.choice((0, 0, 1, 3, 17))
                high = low + random.choice((0, 1, 5, 12, 40, 100))
                return {"type": "string", "minLength": low, "maxLength": high}
            case "integer" | "number":
                return {"type": kind, **self._range(kind)}
            case "enum":
                return {"enum": random.sample(_VALUES, random.randint(1, 4))}
            case "const":
                return {"const": random.choice(_VALUES)}
            case "format":
                return {"type": "string", "format": random.choice(_FORMATS)}
            case "types":
                return {"type": random.sample(["boolean", "null", "integer"], 2)}
        return {"type": kind}

    def _range(self, kind: str) -> Schema:
        """No bound, one or two, of every sign and size, included or not."""
        random = self._random
        digits = 0 if kind == "integer" else random.choice((0, 1, 2, 3))
        low: float = round(random.uniform(-1000, 1000), digits)
        high: float = round(low + random.choice((2, 7.5, 90, 12345.678)), digits)
        if not digits:
            low, high = int(low), int(high)
        least, most = random.choice(
            (("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum"))
        )
        bounds = random.choice(((), (least,), (most,), (least, most), (least, most)))
        return {name: low if name == least else high for name in bounds}
