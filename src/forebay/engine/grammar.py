"""A JSON schema as a grammar in EBNF, the dialect of xgrammar and llama.cpp: pure.

    root ::= "{" "\\"name\\"" ":" " "? r3 "}"

Every text of the grammar is a valid document of the schema. White space is bounded at every
place: a grammar that allows any lets a small model write line breaks to its limit (a third of all
documents, with the engine's own conversion). Numbers have at most 15 digits before the
point for the same reason; an unbounded string or array is the schema's wish.

A number between bounds is written with a fixed count of decimals, so that the comparison is one of
digits: all strings of digits between two of the same length are a few alternatives for each digit.

Not here: which schemas are accepted (`forebay.core.json_schema`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

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
from forebay.core.schema_numbers import MAX_DIGITS

_CODE_AND_DIGIT = re.compile(r"(?<=[^ -~])(?=[0-9a-fA-F])")
# Characters of bounded strings are counted in blocks: the engine prepares each place of a rule
# once (some milliseconds), and a block is one rule wherever it is repeated.
_BLOCK = 16
_LONG = 256
_COLON, _COMMA = '":" " "?', '"," space'
_INTEGER = f'"-"? ( "0" | [1-9] [0-9]{{0,{MAX_DIGITS - 1}}} )'
_NUMBER = f'{_INTEGER} ( "." [0-9]{{1,{MAX_DIGITS}}} )? ( [eE] [+-]? [0-9] [0-9]? )?'
_HEX = "[0-9a-f]"
# 28 days for February: every text is a date.
_28, _30, _31 = (
    f'( "0" [1-9] | "1" [0-9] | {end} )'
    for end in ('"2" [0-8]', '"2" [0-9] | "30"', '"2" [0-9] | "3" [01]')
)
_MONTH_DAY = (
    f'( "0" ( "2-" {_28} | [469] "-" {_30} | [13578] "-" {_31} ) '
    f'| "1" ( "1-" {_30} | [02] "-" {_31} ) )'
)
_DATE = f'( "19" | "20" ) [0-9]{{2}} "-" {_MONTH_DAY}'
_TIME = '( [01] [0-9] | "2" [0-3] ) ":" [0-5] [0-9] ":" [0-5] [0-9] "Z"'
_BYTE = (
    '( "0" | "1" ( [0-9] ( [0-9] )? )? | "2" ( [0-4] ( [0-9] )? | "5" ( [0-5] )? | [6-9] )? '
    "| [3-9] ( [0-9] )? )"
)
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f'{_DATE} "T" {_TIME}',
    "email": '[a-z] [a-z0-9]{0,11} "@" [a-z] [a-z0-9]{0,9} "." [a-z]{2,6}',
    "uri": '"https://" [a-z] [a-z0-9]{0,15} "." [a-z]{2,6} ( "/" [a-z0-9]{1,12} ){0,2}',
    "ipv4": f'{_BYTE} "." {_BYTE} "." {_BYTE} "." {_BYTE}',
    "uuid": f'{_HEX}{{8}} "-" {_HEX}{{4}} "-4" {_HEX}{{3}} "-" [89ab] {_HEX}{{3}} "-" {_HEX}{{12}}',
}
_STANDARD = {
    "character": r'[^"\\\x00-\x1f\x7f] | "\\" ["\\/bfnrt]',
    "block": f"character{{{_BLOCK}}}",
    "page": f"block{{{_BLOCK}}}",
    # A line break and some spaces, as models like to write JSON, but never two line breaks.
    "space": r'( " " | "\n" [ ]{0,12} )?',
    "string": '"\\"" rest',
    "rest": r'"\"" | [^"\\\x00-\x1f\x7f] rest | "\\" escape rest',
    "escape": r'["\\/bfnrt] | "u" ( [0-9a-cA-CefEF] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2} )',
    "number": _NUMBER,
    "value": 'string | number | "true" | "false" | "null" | map | list',
    "map": f'"{{" space ( member ( {_COMMA} member )* )? "}}"',
    "member": f"string {_COLON} value space",
    "list": f'"[" space ( value space ( {_COMMA} value space )* )? "]"',
}


def ebnf(schema: Schema) -> str:
    """The grammar's text; its first rule is `root`."""
    return _Writer(schema).text()


class _Writer:
    """Rules by name. Every subschema that is not a plain text of its own gets one."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._rules: dict[str, str] = {}
        self._names: dict[Node, str] = {}
        self._definitions = {name: f"d{i}" for i, name in enumerate(schema.definitions)}

    def text(self) -> str:
        """All rules, the root's first."""
        for name, node in self._schema.definitions.items():
            self._rules[self._definitions[name]] = self._expression(node)
        lines = [f"root ::= {self._definitions['#']}"]
        lines += [f"{name} ::= {body}" for name, body in (self._rules | _STANDARD).items()]
        return "\n".join(lines) + "\n"

    def _rule(self, body: Callable[[], str] | str) -> str:
        name = f"r{len(self._rules)}"
        self._rules[name] = ""  # the number is taken
        self._rules[name] = body if isinstance(body, str) else body()
        return name

    def _name(self, node: Node) -> str:
        """A rule for this node; equal nodes share one."""
        if isinstance(node, Ref):
            return self._definitions[node.name]
        if isinstance(node, Anything):
            return "value"
        known = self._names.get(node)
        if known is None:
            known = self._names[node] = self._rule(lambda: self._expression(node))
        return known

    def _expression(self, node: Node) -> str:
        match node:
            case Literal():
                return _one_text_of(node.texts)
            case Text():
                return self._string(node)
            case Number():
                return _number(node)
            case AnyOf():
                return " | ".join(self._name(option) for option in node.options)
            case Array():
                return self._array(node)
            case Tuple():
                items = f" {_COMMA} ".join(f"{self._name(item)} space" for item in node.items)
                return f'"[" space {items} "]"'
            case Object():
                return self._object(node)
            case Ref() | Anything():
                return self._name(node)

    def _array(self, node: Array) -> str:
        item = f"{self._name(node.items)} space"
        if node.high == 0:
            return '"[" space "]"'
        more = _times(f"( {_COMMA} {item} )", max(0, node.low - 1), _less_one(node.high))
        inside = f"{item} {more}"
        return f'"[" space {inside} "]"' if node.low else f'"[" space ( {inside} )? "]"'

    def _object(self, node: Object) -> str:
        if node.additional is not None:
            member = self._rule(f"string {_COLON} {self._name(node.additional)} space")
            return f'"{{" space ( {member} ( {_COMMA} {member} )* )? "}}"'
        first, _ = self._members(node.properties)
        return f'"{{" space {first} "}}"'

    def _members(self, properties: tuple[Property, ...]) -> tuple[str, str]:
        """What may stand where the first of these would: as the object's first, and after others."""
        first = after = '""'
        for member in reversed(properties):
            this = f"{quoted(_json(member.name))} {_COLON} {self._name(member.node)} space"
            skip_first, skip_after = first, after
            first, after = f"{this} {after}", f"{_COMMA} {this} {after}"
            if not member.required:
                first = self._rule(f"{first} | {skip_first}")
                after = self._rule(f"{after} | {skip_after}")
            elif len(after) > _LONG:
                after = self._rule(after)  # else it would be written out at every option before it
        return first, after

    def _string(self, node: Text) -> str:
        """Of `low` characters, and then of up to `high` - `low` more."""
        if node.format:
            return f'"\\"" {_FORMATS[node.format]} "\\""'
        if node.low == 0 and node.high is None:
            return "string"
        parts = ['"\\""', self._characters(node.low)]
        if node.high is None:
            parts.append("rest")
        else:
            parts += [self._up_to(node.high - node.low), '"\\""']
        return " ".join(part for part in parts if part)

    def _characters(self, count: int) -> str:
        """Exactly so many."""
        blocks, rest = divmod(count, _BLOCK)
        pages, blocks = divmod(blocks, _BLOCK)
        parts = (_times("page", pages, pages), _times("block", blocks, blocks))
        return " ".join(part for part in (*parts, self._few(rest, rest)) if part)

    def _up_to(self, count: int) -> str:
        """At most so many: less than a block, fewer blocks than fit and less than one more, or all
        that fit and the rest. Pages of blocks likewise."""
        if count < _BLOCK:
            return self._few(0, count)
        few = self._few(0, _BLOCK - 1)
        pages, rest = divmod(count, _BLOCK**2)
        if pages:
            less = f"{_times('page', 0, pages - 1)} block{{0,{_BLOCK - 1}}} {few}"
            return f"( {less} | page{{{pages}}} {self._up_to(rest)} )"
        blocks, rest = divmod(count, _BLOCK)
        less = f"{_times('block', 0, blocks - 1)} {few}"
        return f"( {less} | block{{{blocks}}} {self._few(0, rest)} )"

    def _few(self, low: int, high: int) -> str:
        if high == 0:
            return ""
        name = f"c{low}to{high}"
        self._rules[name] = f"character{{{low},{high}}}"
        return name


def _times(what: str, low: int, high: int | None) -> str:
    if high is None:
        return f"{what}{{{low},}}" if low else f"{what}*"
    return f"{what}{{{low},{high}}}" if high else ""


def _less_one(count: int | None) -> int | None:
    return None if count is None else count - 1


def _number(node: Number) -> str:
    if node.low is None or node.high is None:
        return _INTEGER if node.integer else "number"
    return between(node.low, node.high, node.decimals)


def between(low: int, high: int, decimals: int) -> str:
    """The decimal texts of low/10^decimals to high/10^decimals, both included."""
    ranges = []
    if high >= 0:
        ranges.append(_not_negative(max(low, 0), high, decimals))
    if low < 0:
        ranges.append(f'"-" {_not_negative(max(1, -high), -low, decimals)}')
    return " | ".join(ranges)


class _Rest(NamedTuple):
    """What is left of the texts between two of equal length, after some digits were written."""

    low: str
    high: str
    pointed: bool  # the decimal point is written, or there is none

    @property
    def free(self) -> bool:
        return set(self.low) <= {"0"} and set(self.high) <= {"9"}

    def after(self, digit: str) -> _Rest | None:
        """What is left behind this digit; None if it cannot stand here."""
        if not self.low or not self.low[0] <= digit <= self.high[0]:
            return None
        rest = len(self.low) - 1
        low = self.low[1:] if digit == self.low[0] else "0" * rest
        return _Rest(low, self.high[1:] if digit == self.high[0] else "9" * rest, self.pointed)


def _not_negative(low: int, high: int, decimals: int) -> str:
    """All counts of digits at once, so that every digit decides where to go on."""
    least, most = len(_digits(low, decimals)), len(_digits(high, decimals))
    rests = []
    for count in range(least, most + 1):
        first = _digits(low, decimals) if count == least else "1" + "0" * (count - 1)
        last = _digits(high, decimals) if count == most else "9" * count
        rests.append(_Rest(first, last, not decimals))
    return _choice(tuple(rests), decimals)


def _digits(value: int, decimals: int) -> str:
    return str(value).rjust(decimals + 1, "0")


def _choice(rests: tuple[_Rest, ...], decimals: int) -> str:
    """No two alternatives begin with the same character: xgrammar (0.1.34) confuses some that do."""
    if all(rest.free for rest in rests):
        return _any_digits(rests, decimals)
    ways: dict[tuple[_Rest, ...], str] = {}
    for digit in "0123456789":
        here = [rest for rest in rests if rest.pointed or len(rest.low) > decimals]
        ahead = tuple(after for rest in here if (after := rest.after(digit)) is not None)
        if ahead:
            ways[ahead] = ways.get(ahead, "") + digit
    options = [
        f"{_one_of(digits)} {_choice(ahead, decimals)}".strip() for ahead, digits in ways.items()
    ]
    for rest in rests:
        if not rest.pointed and len(rest.low) == decimals:
            options.append(f'"." {_choice((rest._replace(pointed=True),), decimals)}')
        elif not rest.low:
            options.append('""')
    return options[0] if len(options) == 1 else f"( {' | '.join(options)} )"


def _any_digits(rests: tuple[_Rest, ...], decimals: int) -> str:
    """Of every count from the shortest to the longest."""
    counts = [len(rest.low) for rest in rests]
    least, most = min(counts), max(counts)
    if rests[0].pointed:
        return _count_digits(least, most)
    before = _count_digits(least - decimals, most - decimals)
    return f'{before} "." {_count_digits(decimals, decimals)}'.strip()


def _count_digits(least: int, most: int) -> str:
    if most == 0:
        return ""
    return f"[0-9]{{{least}}}" if least == most else f"[0-9]{{{least},{most}}}"


def _one_of(digits: str) -> str:
    """One of these digits, which are in order."""
    if len(digits) == 1:
        return quoted(digits)
    gapless = int(digits[-1]) - int(digits[0]) == len(digits) - 1
    return f"[{digits[0]}-{digits[-1]}]" if gapless else f"[{digits}]"


def _one_text_of(texts: Iterable[str]) -> str:
    """One of these texts; as with numbers, each character decides where to go on."""
    ways: dict[str, list[str]] = {}
    for text in dict.fromkeys(texts):
        ways.setdefault(text[:1], []).append(text)
    options = []
    for group in ways.values():
        start = _common_start(min(group), max(group))
        rests = [text[len(start) :] for text in group]
        options.append(f"{quoted(start)} {_one_text_of(rests) if len(rests) > 1 else ''}".strip())
    return options[0] if len(options) == 1 else f"( {' | '.join(options)} )"


def _common_start(one: str, other: str) -> str:
    pairs = zip(one, other, strict=False)
    size = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
    return one[:size]


def _json(text: str) -> str:
    """The JSON text of a string; msgspec escapes no more than it must."""
    return msgspec.json.encode(text).decode()


def quoted(text: str) -> str:
    """A terminal of this JSON text, which has no control characters: the others stand for themselves.

    xgrammar writes those outside ASCII as codes of no fixed length, and reads them again: ß and e
    beside it became one character. So a digit or letter that could belong to a code is a terminal of
    its own.
    """
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + _CODE_AND_DIGIT.sub('" "', escaped) + '"'
