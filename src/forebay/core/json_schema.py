"""The part of JSON Schema that an answer can be bound to: read, checked and bounded. Pure.

What is accepted here can be written as a grammar whose every text is a valid document of the schema
(`forebay.engine.grammar`). What could not be enforced is refused with the place where it stands,
never ignored; annotations (`title`, `description`, `default`, …) say nothing about documents and are.

The documents that are generated are a subset of the valid ones: properties come in the schema's
order, and an object with `properties` has no others unless none are listed.

Invariants
- The work and the grammar are bounded by `MAX_…`: reading a schema takes milliseconds at most.
- Every node can end: no `$ref` leads to itself without an object or array between, and none
  requires itself for ever.

Source of the vocabulary: JSON Schema 2020-12 (json-schema.org). Not here: `not`, `if`, `multipleOf`,
`uniqueItems`; `pattern` but for known ones beside a format; `oneOf` of what could be two of them;
`allOf` of more than one.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import msgspec

from forebay.core.errors import InvalidRequest
from forebay.core.schema_checks import endless, leads_back, resolved, told_apart
from forebay.core.schema_formats import FORMATS, KNOWN_PATTERNS
from forebay.core.schema_nodes import (
    AnyOf,
    Anything,
    Array,
    Literal,
    Node,
    Number,
    Object,
    Property,
    Ref,
    Schema,
    Text,
    Tuple,
)
from forebay.core.schema_numbers import MAX_DIGITS, Edge, between, weight

MAX_BYTES = 16 * 1024
MAX_DEPTH = 16
MAX_NODES = 200
MAX_VALUES = 512  # of all enumerations together
MAX_LENGTH = 4096
MAX_ITEMS = 256
MAX_WEIGHT = 4_000
_STRING_WEIGHT = 40
_ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly",
     "$schema", "$id", "$comment", "$defs", "definitions", "discriminator", "strict", "nullable")
)  # fmt: skip
_OF_TYPE = {
    "string": frozenset(("minLength", "maxLength", "format", "pattern")),
    "number": frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")),
    "integer": frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")),
    "array": frozenset(("items", "prefixItems", "minItems", "maxItems")),
    "object": frozenset(("properties", "required", "additionalProperties", "propertyNames")),
    "boolean": frozenset[str](),
    "null": frozenset[str](),
}
_KEYWORDS = frozenset(("type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref")).union(
    *_OF_TYPE.values()
)


# Where subschemas stand: by name, one, or several in a row.
_NAMED = frozenset(("properties", "$defs", "definitions"))
_SINGLE = frozenset(("items", "additionalProperties"))
_SEVERAL = frozenset(("anyOf", "oneOf", "allOf", "prefixItems"))


def read(schema: Any, *, path: str) -> Schema:
    """The nodes of a decoded schema; `path` is where it stands in the request.

    Raises InvalidRequest with code `invalid_schema` and the place in `param`.
    """
    size_bytes = len(msgspec.json.encode(schema))
    if size_bytes > MAX_BYTES:
        raise _invalid(path, f"it has {size_bytes} bytes as JSON; the limit is {MAX_BYTES}")
    if not isinstance(schema, dict):
        raise _invalid(path, "it must be an object")
    reader = _Reader(schema, path)
    root = reader.node(schema, path, 1)
    definitions = {"#": root, **reader.definitions()}
    _require_ends(definitions, path)
    reader.require_one_of_each(definitions)
    return Schema(root, definitions)


def without_annotations(schema: Any) -> Any:
    """The same schema without what says nothing about documents."""
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _NAMED and isinstance(value, dict):
            kept[name] = {key: without_annotations(below) for key, below in value.items()}
        elif name in _SEVERAL and isinstance(value, list):
            kept[name] = [without_annotations(below) for below in value]
        elif name in _KEYWORDS:
            kept[name] = without_annotations(value) if name in _SINGLE else value
    return kept


class _Reader:
    """One pass over one schema; definitions are read when something refers to them."""

    def __init__(self, schema: Mapping[str, Any], path: str) -> None:
        self._schema = schema
        self._path = path
        self._nodes = self._values = self._weight = 0
        self._wanted: dict[str, str] = {}
        self._one_of: list[tuple[tuple[Node, ...], str]] = []

    def definitions(self) -> dict[str, Node]:
        """Those that were referred to, and those that they refer to."""
        found: dict[str, Node] = {}
        while missing := [name for name in self._wanted if name not in found]:
            for name in missing:
                place = f"{self._path}.{name.removeprefix('#/').replace('/', '.')}"
                found[name] = self.node(self._look_up(name, self._wanted[name]), place, 1)
        return found

    def require_one_of_each(self, definitions: Mapping[str, Node]) -> None:
        """`oneOf` is `anyOf` where no document can be of two alternatives."""
        for options, path in self._one_of:
            if not told_apart([resolved(option, definitions) for option in options]):
                raise _invalid(
                    path,
                    "a document could be of two alternatives. Give each a required property with "
                    "a const of its own, or use anyOf",
                )

    def node(self, schema: Any, path: str, depth: int) -> Node:
        """One subschema and all below it."""
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise _invalid(self._path, f"it has more than {MAX_NODES} subschemas, the limit")
        if depth > MAX_DEPTH:
            raise _invalid(path, f"it is nested more than {MAX_DEPTH} levels deep, the limit")
        if schema is True:
            return Anything()
        if not isinstance(schema, dict):
            raise _invalid(path, "it must be an object, or true for any value")
        if "$id" in schema and schema is not self._schema:
            raise _invalid(f"{path}.$id", "only the whole schema may have one")
        schema = {k: v for k, v in schema.items() if v is not None or k == "const"}
        used = self._keywords(schema, path)
        if "$ref" in used:
            return self._ref(schema, used, path)
        for name in ("anyOf", "oneOf", "allOf"):
            if name in used:
                _alone(used, name, path)
                return self._of_several(name, schema[name], f"{path}.{name}", depth)
        if "enum" in used or "const" in used:
            return self._literal(schema, used, path)
        return self._typed(schema, used, path, depth)

    def _keywords(self, schema: Mapping[str, Any], path: str) -> frozenset[str]:
        """The assertions that it makes. Refuses those that could not be enforced."""
        used = frozenset(schema) - _ANNOTATIONS
        for name in schema:
            if name in used and name not in _KEYWORDS and not name.startswith("x-"):
                raise _invalid(
                    f"{path}.{name[:64]}",
                    f"{name[:64]!r} cannot be enforced. Supported are {', '.join(sorted(_KEYWORDS))}",
                )
        return used & _KEYWORDS

    def _ref(self, schema: Mapping[str, Any], used: frozenset[str], path: str) -> Node:
        _alone(used, "$ref", path)
        name = schema["$ref"]
        plain = isinstance(name, str) and "%" not in name
        if not plain or not (name == "#" or name.startswith("#/")):
            raise _invalid(f"{path}.$ref", 'it must name a definition here, such as "#/$defs/x"')
        if name != "#":
            self._look_up(name, f"{path}.$ref")
            self._wanted.setdefault(name, f"{path}.$ref")
        return Ref(name)

    def _look_up(self, name: str, path: str) -> Any:
        """The subschema that a JSON pointer (RFC 6901) in fragment form leads to, by way of others."""
        found: Any = self._schema
        parts = iter(name.split("/")[1:])
        for part in parts:
            keys = [part, next(parts, "")] if part in _NAMED else [part]
            if part not in _NAMED | _SINGLE:
                raise _invalid(path, f"{name[:64]!r} does not lead to a subschema")
            for key in keys:
                key = key.replace("~1", "/").replace("~0", "~")
                if not isinstance(found, dict) or key not in found:
                    raise _invalid(path, f"{name[:64]!r} leads nowhere in the schema")
                found = found[key]
        return found

    def _of_several(self, name: str, options: Any, path: str, depth: int) -> Node:
        if not isinstance(options, list) or not options:
            raise _invalid(path, "it must be an array of at least one schema")
        if name == "allOf" and len(options) > 1:
            raise _invalid(path, "it cannot be enforced for more than one schema")
        nodes = tuple(
            self.node(option, f"{path}[{i}]", depth + 1) for i, option in enumerate(options)
        )
        if name == "oneOf":
            self._one_of.append((nodes, path))
        return nodes[0] if len(nodes) == 1 else AnyOf(nodes)

    def _literal(self, schema: Mapping[str, Any], used: frozenset[str], path: str) -> Node:
        name = "const" if "const" in used else "enum"
        if beside := used - {name, "type"}:
            raise _invalid(f"{path}.{min(beside)}", f"beside {name} only type is supported")
        values = [schema["const"]] if name == "const" else schema["enum"]
        if not isinstance(values, list) or not values:
            raise _invalid(f"{path}.enum", "it must be an array of at least one value")
        self._values += len(values)
        if self._values > MAX_VALUES:
            raise _invalid(f"{path}.{name}", f"more than {MAX_VALUES} values are listed, the limit")
        types = _types(schema, path) if "type" in used else tuple(_OF_TYPE)
        kept = [value for value in values if any(_is_of(value, type_) for type_ in types)]
        if not kept:
            raise _invalid(f"{path}.{name}", "none of its values has the given type")
        texts = dict.fromkeys(msgspec.json.encode(value).decode() for value in kept)
        return Literal(tuple(texts))

    def _typed(
        self, schema: Mapping[str, Any], used: frozenset[str], path: str, depth: int
    ) -> Node:
        types = _types(schema, path) if "type" in used else _implied(used, path)
        if not types:
            return Anything()
        if foreign := used - {"type"} - frozenset().union(*(_OF_TYPE[t] for t in types)):
            raise _invalid(f"{path}.{min(foreign)}", f"it says nothing about {' or '.join(types)}")
        nodes = [self._of_type(type_, schema, path, depth) for type_ in types]
        return nodes[0] if len(nodes) == 1 else AnyOf(tuple(nodes))

    def _of_type(self, type_: str, schema: Mapping[str, Any], path: str, depth: int) -> Node:
        match type_:
            case "string":
                text = _text(schema, path)
                self._weigh(_STRING_WEIGHT if text.low or text.high is not None else 0)
                return text
            case "integer" | "number":
                return self._number(schema, path, integer=type_ == "integer")
            case "boolean":
                return Literal(("true", "false"))
            case "null":
                return Literal(("null",))
            case "array":
                return self._array(schema, path, depth)
        return self._object(schema, path, depth)

    def _number(self, schema: Mapping[str, Any], path: str, *, integer: bool) -> Number:
        low = _edge(schema, "minimum", "exclusiveMinimum", path, max)
        high = _edge(schema, "maximum", "exclusiveMaximum", path, min)
        number = between(integer, low, high)
        if number is None:
            raise _invalid(
                path, f"no number of at most {MAX_DIGITS} digits lies between its bounds"
            )
        self._weigh(weight(number))
        return number

    def _weigh(self, weight: int) -> None:
        """Bounds become parts of a grammar, and its preparation takes time."""
        self._weight += weight
        if self._weight > MAX_WEIGHT:
            raise _invalid(
                self._path,
                "the bounds of its numbers and strings weigh more than the limit: bounded strings "
                f"{_STRING_WEIGHT} each, bounds of numbers the square of their digits, together "
                f"{MAX_WEIGHT}. Give fewer or rounder bounds",
            )

    def _array(self, schema: Mapping[str, Any], path: str, depth: int) -> Array | Tuple:
        low, high = _bounds(schema, "minItems", "maxItems", MAX_ITEMS, path)
        first = schema.get("prefixItems")
        if first is None:
            items = self.node(schema.get("items", True), f"{path}.items", depth + 1)
            return Array(items, low, high)
        if not isinstance(first, list) or not first:
            raise _invalid(f"{path}.prefixItems", "it must be an array of at least one schema")
        if low > len(first) or (high is not None and high < len(first)):
            raise _invalid(f"{path}.prefixItems", "minItems and maxItems must allow just these")
        return Tuple(
            tuple(
                self.node(item, f"{path}.prefixItems[{i}]", depth + 1)
                for i, item in enumerate(first)
            )
        )

    def _object(self, schema: Mapping[str, Any], path: str, depth: int) -> Object:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, dict):
            raise _invalid(f"{path}.properties", "it must be an object of schemas")
        if not isinstance(required, list) or not all(isinstance(n, str) for n in required):
            raise _invalid(f"{path}.required", "it must be an array of names")
        if unknown := [name for name in required if name not in properties]:
            raise _invalid(f"{path}.required", f"{unknown[0][:64]!r} is not among the properties")
        members = tuple(
            Property(
                name,
                self.node(below, f"{path}.properties.{name[:64]}", depth + 1),
                name in required,
            )
            for name, below in properties.items()
        )
        if schema.get("propertyNames", True) not in (True, {}, {"type": "string"}):
            raise _invalid(f"{path}.propertyNames", "names cannot be bound to a schema")
        other = schema.get("additionalProperties", True)
        if members or other is False:
            if not isinstance(other, bool):  # none are generated, but it must be a schema we read
                self.node(other, f"{path}.additionalProperties", depth + 1)
            return Object(members)
        return Object((), self.node(other, f"{path}.additionalProperties", depth + 1))


def _types(schema: Mapping[str, Any], path: str) -> tuple[str, ...]:
    value = schema["type"]
    types = value if isinstance(value, list) else [value]
    for type_ in types:
        if not isinstance(type_, str) or type_ not in _OF_TYPE:
            raise _invalid(f"{path}.type", f"{_seen(type_)} is none of {', '.join(_OF_TYPE)}")
    if not types:
        raise _invalid(f"{path}.type", "it is an empty array")
    return tuple(dict.fromkeys(types))


def _implied(used: frozenset[str], path: str) -> tuple[str, ...]:
    """The type that the keywords speak about; none: any value."""
    spoken = [type_ for type_ in _OF_TYPE if used & _OF_TYPE[type_] and type_ != "integer"]
    if len(spoken) > 1:
        raise _invalid(path, f"it has keywords for {' and '.join(spoken)}; give a type")
    return tuple(spoken)


def _text(schema: Mapping[str, Any], path: str) -> Text:
    low, high = _bounds(schema, "minLength", "maxLength", MAX_LENGTH, path)
    format_, pattern = schema.get("format"), schema.get("pattern")
    if format_ is not None and not (isinstance(format_, str) and format_ in FORMATS):
        raise _invalid(
            f"{path}.format", f"{_seen(format_)} cannot be enforced, only {', '.join(FORMATS)}"
        )
    if pattern is not None and pattern not in KNOWN_PATTERNS.get(format_ or "", ()):
        raise _invalid(f"{path}.pattern", "a pattern cannot be enforced")
    if format_:
        shortest, longest = FORMATS[format_]
        if low > shortest or (high is not None and high < longest):
            raise _invalid(f"{path}.format", f"its texts have {shortest} to {longest} characters")
        return Text(format=format_)
    return Text(low, high)


def _edge(
    schema: Mapping[str, Any], name: str, exclusive: str, path: str, tighter: Any
) -> Edge | None:
    """The tighter of an including and an excluding bound."""
    found = []
    for keyword in (name, exclusive):
        value = schema.get(keyword)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _invalid(f"{path}.{keyword}", "it must be a number")
        found.append(Edge(Decimal(repr(value)), keyword == exclusive))
    if not found:
        return None
    bound = tighter(edge.value for edge in found)
    return Edge(bound, any(edge.excluded for edge in found if edge.value == bound))


def _bounds(
    schema: Mapping[str, Any], least: str, most: str, limit: int, path: str
) -> tuple[int, int | None]:
    low, high = schema.get(least, 0), schema.get(most)
    for name, value in ((least, low), (most, high)):
        whole = (
            isinstance(value, int | float) and not isinstance(value, bool) and value == int(value)
        )
        if value is not None and not (whole and 0 <= value <= limit):
            raise _invalid(f"{path}.{name}", f"it must be an integer from 0 to {limit}")
    if high is not None and low > high:
        raise _invalid(f"{path}.{least}", f"it is above {most}")
    return int(low), None if high is None else int(high)


def _is_of(value: Any, type_: str) -> bool:
    match type_:
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)
        case "integer":
            number = isinstance(value, int | float) and not isinstance(value, bool)
            return number and value == int(value)
    return isinstance(value, int | float) and not isinstance(value, bool)


def _require_ends(definitions: Mapping[str, Node], path: str) -> None:
    """Refuse references that lead to themselves at once, and documents that could never end."""
    for name in definitions:
        if leads_back(name, definitions):
            raise _invalid(path, f"the reference {name[:64]!r} leads to itself")
    if (never := endless(definitions)) is not None:
        raise _invalid(path, f"a document of {never[:64]!r} could never end: it needs itself")


def _seen(value: Any) -> str:
    return msgspec.json.encode(value).decode()[:64]


def _alone(used: frozenset[str], name: str, path: str) -> None:
    if beside := used - {name}:
        raise _invalid(f"{path}.{min(beside)}", f"beside {name} it is not supported")


def _invalid(path: str, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"The JSON schema cannot be used: at {path}: {why}.", param=path, code="invalid_schema"
    )
