"""A JSON schema as the documents that it allows: what a grammar is made from. Plain data.

Not here: which schemas there are nodes for (`json_schema.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Literal:
    """One of these values, each as its JSON text."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Text:
    """A string; lengths in characters, `high` None: unbounded. `format` is a name or empty."""

    low: int = 0
    high: int | None = None
    format: str = ""


@dataclass(frozen=True, slots=True)
class Number:
    """A number from low/10^decimals to high/10^decimals, both included; both None: unbounded."""

    integer: bool
    low: int | None = None
    high: int | None = None
    decimals: int = 0


@dataclass(frozen=True, slots=True)
class Array:
    """`high` None: unbounded."""

    items: Node
    low: int = 0
    high: int | None = None


@dataclass(frozen=True, slots=True)
class Tuple:
    """An array of exactly these items."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Property:
    """One named member of an object."""

    name: str
    node: Node
    required: bool


@dataclass(frozen=True, slots=True)
class Object:
    """These properties in this order; `additional`, where none are listed, is that of any name."""

    properties: tuple[Property, ...] = ()
    additional: Node | None = None


@dataclass(frozen=True, slots=True)
class AnyOf:
    """A document of one of these."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Ref:
    """The definition of this name in `Schema.definitions`."""

    name: str


@dataclass(frozen=True, slots=True)
class Anything:
    """Any JSON value."""


Node = Literal | Text | Number | Array | Tuple | Object | AnyOf | Ref | Anything


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema that was accepted. `definitions` are those that the root reaches; "#" is the root."""

    root: Node
    definitions: Mapping[str, Node]


def walk(node: Node) -> Iterator[Node]:
    """This node and all below it; what references lead to is not below."""
    yield node
    for child in below(node):
        yield from walk(child)


def below(node: Node) -> Iterable[Node]:
    """The nodes that this one consists of."""
    match node:
        case AnyOf():
            return node.options
        case Array():
            return (node.items,)
        case Tuple():
            return node.items
        case Object():
            members = [p.node for p in node.properties]
            return members if node.additional is None else [*members, node.additional]
    return ()
