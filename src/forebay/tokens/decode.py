"""From token ids to text, one at a time: half characters and possible stop strings are held back.

E5: bytes that may still become a character wait for the rest; at the end they are dropped. Bytes
that never can become one turn into U+FFFD, as in Python's own UTF-8 decoder.

E4: the text is matched against all stop strings by Knuth, Morris and Pratt's automaton (one state
per stop string: how much of it the text's end has matched). Held back is the longest end of the
text that is the beginning of a stop string, and no more. The stop string that is completed first
wins (of several completed by the same character, the longest), so the outcome does not depend on
where tokens end, and the cost is linear in the text.

Not here: which ids end a generation (the engine knows the model's own end tokens).
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from forebay.core.errors import EngineFault, InvalidRequest
from forebay.tokens.contract import Decoder, Piece

_NOTHING = Piece("", False)
_STOPPED = Piece("", True)
_new_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class StopMatcher:
    """Feeds on text, gives back what may be shown."""

    __slots__ = ("_automata", "_first", "_states", "held")

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise InvalidRequest("A stop string must not be empty.", param="stop")
        self._automata = [(stop, _failures(stop)) for stop in stops]
        self._states = [0] * len(stops)
        self._first = frozenset(stop[0] for stop in stops)
        self.held = ""

    def push(self, text: str) -> Piece:
        """`stopped`: a stop string was completed; it and all after it are gone."""
        if not self.held and self._first.isdisjoint(text):
            return Piece(text, False)
        joined = self.held + text
        for position, character in enumerate(text, start=len(self.held) + 1):
            if completed := self._advance(character):
                self.held = ""
                return Piece(joined[: position - completed], True)
        shown = len(joined) - max(self._states)
        self.held = joined[shown:]
        return Piece(joined[:shown], False)

    def _advance(self, character: str) -> int:
        """Length of the longest stop string that this character completes, else 0."""
        completed = 0
        for number, (stop, failures) in enumerate(self._automata):
            matched = self._states[number]
            while matched and stop[matched] != character:
                matched = failures[matched - 1]
            matched += stop[matched] == character
            if matched == len(stop):
                completed = max(completed, matched)
            self._states[number] = matched
        return completed


def _failures(stop: str) -> list[int]:
    """For each beginning of `stop`: how long its longest end is that begins `stop` again."""
    failures, matched = [0] * len(stop), 0
    for position in range(1, len(stop)):
        while matched and stop[matched] != stop[position]:
            matched = failures[matched - 1]
        matched += stop[matched] == stop[position]
        failures[position] = matched
    return failures


class TableDecoder(Decoder):
    """Looks each id up in the model's table of bytes (control tokens have none).

    About a microsecond per token without a stop string. The tokenizers library's own stream costs
    the same, but keeps its state in the library and its rules on invalid text to itself.
    """

    __slots__ = ("_matcher", "_stopped", "_table", "_utf8")

    def __init__(self, table: Sequence[bytes], stop: Sequence[str]) -> None:
        self._table = table
        self._utf8 = _new_utf8_decoder("replace")
        self._matcher = StopMatcher(stop) if stop else None
        self._stopped = False

    def push(self, token_id: int) -> Piece:
        if self._stopped:
            return _STOPPED
        if not 0 <= token_id < len(self._table):
            raise EngineFault(f"token id {token_id} is outside the vocabulary")
        text = self._utf8.decode(self._table[token_id])
        if not text:
            return _NOTHING
        if self._matcher is None:
            return Piece(text, False)
        piece = self._matcher.push(text)
        self._stopped = piece.stopped
        return piece

    @property
    def held(self) -> int:
        half = bool(self._utf8.getstate()[0])
        return half + (len(self._matcher.held) if self._matcher is not None else 0)

    def token(self, token_id: int) -> bytes:
        return self._table[token_id]

    def finish(self) -> str:
        if self._stopped or self._matcher is None:
            return ""
        held, self._matcher.held = self._matcher.held, ""
        return held
