"""Questions about a schema's nodes: does it end, and can its alternatives be told apart? Pure.

Not here: what is done about the answers (`json_schema.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import msgspec

from forebay.core.schema_nodes import (
    AnyOf,
    Array,
    Literal,
    Node,
    Number,
    Object,
    Ref,
    Text,
    Tuple,
    walk,
)

Definitions = Mapping[str, Node]


def leads_back(name: str, definitions: Definitions) -> bool:
    """Whether a document of this definition may consist of one of itself and nothing else."""
    seen: set[str] = set()
    ahead = list(_at_once(definitions[name]))
    while ahead:
        next_ = ahead.pop()
        if next_ == name:
            return True
        if next_ not in seen:
            seen.add(next_)
            ahead += _at_once(definitions[next_])
    return False


def _at_once(node: Node) -> Iterator[str]:
    """References that a document of this node may consist of."""
    if isinstance(node, Ref):
        yield node.name
    elif isinstance(node, AnyOf):
        for option in node.options:
            yield from _at_once(option)


def endless(definitions: Definitions) -> str | None:
    """A definition of which some part could never end; None if all can."""
    ends: set[str] = set()
    while more := {n for n in definitions if n not in ends and _can_end(definitions[n], ends)}:
        ends |= more
    for name, node in definitions.items():
        if not all(_can_end(part, ends) for part in walk(node)):
            return name
    return None


def _can_end(node: Node, ends: set[str]) -> bool:
    match node:
        case Ref():
            return node.name in ends
        case AnyOf():
            return any(_can_end(option, ends) for option in node.options)
        case Array():
            return node.low == 0 or _can_end(node.items, ends)
        case Tuple():
            return all(_can_end(item, ends) for item in node.items)
        case Object():
            return all(_can_end(p.node, ends) for p in node.properties if p.required)
    return True


def resolved(node: Node, definitions: Definitions) -> Node:
    """What a reference leads to in the end (it does not lead back to itself)."""
    while isinstance(node, Ref):
        node = definitions[node.name]
    return node


def told_apart(nodes: Sequence[Node]) -> bool:
    """Whether no document can be of two of these."""
    return all(_two_told_apart(one, other) for one, other in combinations(nodes, 2))


def _two_told_apart(one: Node, other: Node) -> bool:
    if isinstance(one, Literal) and isinstance(other, Literal):
        return _differ(one, other)
    if isinstance(one, Object) and isinstance(other, Object):
        mine, theirs = _constants(one), _constants(other)
        return any(_differ(mine[name], theirs[name]) for name in mine.keys() & theirs.keys())
    return _types(one).isdisjoint(_types(other))


def _constants(node: Object) -> dict[str, Literal]:
    """The required properties with listed values."""
    return {p.name: p.node for p in node.properties if p.required and isinstance(p.node, Literal)}


def _differ(one: Literal, other: Literal) -> bool:
    """Numbers may be written in two ways (1 and 1.0), so only other plain values are compared."""
    values = [msgspec.json.decode(text) for text in (*one.texts, *other.texts)]
    if not all(value is None or isinstance(value, str | bool) for value in values):
        return False
    return set(one.texts).isdisjoint(other.texts)


_EVERY = frozenset(("string", "number", "array", "object", "literal"))


def _types(node: Node) -> frozenset[str]:
    """JSON's types of its documents; every one where that is not plain."""
    match node:
        case Text():
            return frozenset(("string",))
        case Number():
            return frozenset(("number",))
        case Array() | Tuple():
            return frozenset(("array",))
        case Object():
            return frozenset(("object",))
        case Literal():
            return frozenset(_type(msgspec.json.decode(text)) for text in node.texts)
    return _EVERY


def _type(value: Any) -> str:
    if isinstance(value, str):
        return "string"
    if isinstance(value, list | dict):
        return "array" if isinstance(value, list) else "object"
    return "literal" if value is None or isinstance(value, bool) else "number"
