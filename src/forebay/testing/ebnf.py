"""Random texts of a grammar in EBNF, as `forebay.engine.grammar` writes it: for tests that look at
what a grammar allows without an engine.

Knows terminals in quotes, classes of characters, names, parentheses, `|`, and the counts `*`, `?`,
`{n}`, `{n,}` and `{n,m}`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

_TOKEN = re.compile(
    r'\s*("(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|[A-Za-z]\w*|\{\d+(?:,\d*)?\}|[()|*?])'
)
_ATOM = re.compile(r"\\(?:u[0-9a-f]{4}|U[0-9a-f]{8}|x[0-9a-f]{2}|.)|.", re.DOTALL)
_MOST = 3  # repetitions beyond the least, where there is no upper bound
_DEEP = 12  # rules inside each other, after which the shortest way out is taken

Text = Callable[[int], str]


class Grammar:
    """Parsed once, then asked for texts."""

    def __init__(self, source: str, random: Random) -> None:
        self._random = random
        self._rules: dict[str, Text] = {}
        for line in source.strip().split("\n"):
            name, _, body = line.partition(" ::= ")
            self._rules[name] = _Parser(body, self).whole()

    def text(self) -> str:
        """One text of `root`. Raises KeyError for a rule that is used and not there."""
        return self._rules["root"](0)

    def rule(self, name: str, depth: int) -> str:
        """One text of a rule."""
        return self._rules[name](depth + 1)

    def choose(self, options: list[Text], depth: int) -> str:
        """One of the alternatives; deep inside, the shortest of some tries at each."""
        if depth < _DEEP:
            return self._random.choice(options)(depth)
        for option in options:
            try:
                return option(depth)
            except RecursionError:
                continue
        raise RecursionError

    def count(self, low: int, high: int | None, depth: int) -> int:
        """How often something is repeated."""
        if depth >= _DEEP:
            return low
        return self._random.randint(low, low + _MOST if high is None else high)

    def character(self, members: str, negated: bool) -> str:
        """One of a class; of a negated one, any that is not in it."""
        if not negated:
            return self._random.choice(members)
        while True:
            found = chr(self._random.choice((*range(32, 127), 0xE9, 0x2028, 0x1F600)))
            if found not in members:
                return found


class _Parser:
    def __init__(self, body: str, grammar: Grammar) -> None:
        self._tokens: list[str] = []
        end = 0
        while end < len(body.rstrip()):
            found = _TOKEN.match(body, end)
            assert found, f"not a grammar from here on: {body[end:]}"
            self._tokens.append(found[1])
            end = found.end()
        self._grammar = grammar
        self._next = 0

    def whole(self) -> Text:
        made = self._alternatives()
        assert self._next == len(self._tokens), self._tokens[self._next :]
        return made

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def _take(self) -> str:
        self._next += 1
        return self._tokens[self._next - 1]

    def _alternatives(self) -> Text:
        options = [self._sequence()]
        while self._peek() == "|":
            self._take()
            options.append(self._sequence())
        if len(options) == 1:
            return options[0]
        return lambda depth: self._grammar.choose(options, depth)

    def _sequence(self) -> Text:
        parts: list[Text] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._counted(self._item()))
        return lambda depth: "".join(part(depth) for part in parts)

    def _item(self) -> Text:
        token = self._take()
        if token == "(":
            inside = self._alternatives()
            assert self._take() == ")"
            return inside
        if token[0] == '"':
            literal = _unescaped(token[1:-1])
            return lambda _: literal
        if token[0] == "[":
            negated = token[1] == "^"
            members = _members(token[2 if negated else 1 : -1])
            return lambda _: self._grammar.character(members, negated)
        return lambda depth: self._grammar.rule(token, depth)

    def _counted(self, item: Text) -> Text:
        token = self._peek()
        if token not in ("*", "?") and not token.startswith("{"):
            return item
        self._take()
        if token == "*":
            low, high = 0, None
        elif token == "?":
            low, high = 0, 1
        else:
            first, comma, last = token[1:-1].partition(",")
            low = int(first)
            high = int(last) if last else None if comma else low
        grammar = self._grammar
        return lambda depth: "".join(item(depth) for _ in range(grammar.count(low, high, depth)))


def _unescaped(text: str) -> str:
    return "".join(map(_character, _ATOM.findall(text)))


def _character(atom: str) -> str:
    """What one atom of a terminal or class stands for."""
    if len(atom) > 2:
        return chr(int(atom[2:], 16))
    return "\n" if atom == "\\n" else atom[-1]


def _members(text: str) -> str:
    """All characters of a class's inside: single ones, and ranges."""
    atoms = _ATOM.findall(text)
    members = ""
    while atoms:
        first = _character(atoms.pop(0))
        members += first
        if len(atoms) > 1 and atoms[0] == "-":
            last = _character(atoms[1])
            members += "".join(map(chr, range(ord(first) + 1, ord(last) + 1)))
            del atoms[:2]
    return members
