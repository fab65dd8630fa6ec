"""Lines out of a file that comes in pieces, within bounds. Pure.

JSON Lines: UTF-8, one JSON value a line, `\\n` or `\\r\\n` at its end, which the last one may lack. A byte
order mark before the first is no part of it. Blank lines are lines without a call.

Not here: what a line says (`forebay.gateway`).
"""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

# A line of just the most bytes may have so many more: a byte order mark and a carriage return.
_NOT_COUNTED_BYTES = len(codecs.BOM_UTF8) + 1


class Line(NamedTuple):
    """`number` counts from 1, blank lines included. `size_bytes` is of the whole line, of which `content`
    is only the beginning if it is too long."""

    number: int
    content: bytes
    size_bytes: int
    too_long: bool = False

    @property
    def is_blank(self) -> bool:
        """White space, if anything."""
        return not self.too_long and not self.content.strip()


async def lines(pieces: AsyncIterator[bytes], most_bytes: int) -> AsyncIterator[Line]:
    """The lines of these pieces. Of one with more than `most_bytes` hardly more than those are held."""
    splitter = Splitter(most_bytes)
    async for piece in pieces:
        for line in splitter.feed(piece):
            yield line
    for line in splitter.end():
        yield line


class Splitter:
    """The same, step by step."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._size_bytes = 0
        self._number = 0

    def feed(self, piece: bytes) -> Iterator[Line]:
        """Lines that this piece completes. To be read to the end before the next piece."""
        *whole, rest = piece.split(b"\n")
        for part in whole:
            self._hold(part)
            yield self._complete()
        self._hold(rest)

    def end(self) -> list[Line]:
        """The last one, if it has no end of its own."""
        return [self._complete()] if self._size_bytes else []

    def _hold(self, part: bytes) -> None:
        self._size_bytes += len(part)
        room = self._most_bytes + _NOT_COUNTED_BYTES - self._held_bytes
        if part and room > 0:
            self._held.append(part[:room])
            self._held_bytes += len(self._held[-1])

    def _complete(self) -> Line:
        content, size = b"".join(self._held), self._size_bytes
        self._held, self._held_bytes, self._size_bytes = [], 0, 0
        self._number += 1
        if size == len(content) and content.endswith(b"\r"):
            content, size = content[:-1], size - 1
        if self._number == 1:
            content, size = _without_mark(content, size)
        return Line(self._number, content, size, too_long=size > self._most_bytes)


def _without_mark(content: bytes, size: int) -> tuple[bytes, int]:
    bare = content.removeprefix(codecs.BOM_UTF8)
    return bare, size - len(content) + len(bare)
