"""Lines out of pieces, however the pieces are cut."""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterator, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.batch import Line, lines
from forebay.batch.jsonl import Splitter

MOST_BYTES = 10
MARK = codecs.BOM_UTF8
TEXTS = {
    "nothing": b"",
    "one line": b'{"a":1}\n',
    "without an end": b'{"a":1}\n{"b"',
    "carriage returns": b"a\r\nbb\r\n\r\nccc",
    "carriage returns inside": b"a\rb\n\rc\n\r\r\n\r",
    "only newlines": b"\n\n\n",
    "white space": b" \t\n\x0b\r\n ",
    "a mark": MARK + b"a\nb",
    "a mark alone": MARK,
    "half a mark": MARK[:2] + b"\n",
    "marks where they are none": MARK + MARK + b"a\n" + MARK + b"b\n",
    "a mark and the longest line": MARK + b"1234567890\n1234567890",
    "a mark, the longest line and a return": MARK + b"1234567890\r\nb",
    "a mark and a longer line": MARK + b"12345678901\nb",
    "the longest line": b"1234567890\nb\n1234567890",
    "the longest line and a return": b"1234567890\r\n1234567890\r\nb",
    "longer by one": b"12345678901\nb\n12345678901",
    "longer by one, and a return": b"12345678901\r\nb\n",
    "longer by a return": b"1234567890\r\r\nb",
    "much longer": b"x" * 95 + b"\nb\n" + b"y" * 95,
    "no text": bytes(range(256)),
}


def split(pieces: Iterable[bytes]) -> list[Line]:
    splitter = Splitter(MOST_BYTES)
    found = [line for piece in pieces for line in splitter.feed(piece)]
    return found + splitter.end()


def expected(text: bytes) -> list[tuple[bytes, bool]]:
    """What is in each line, and whether that is too much; said in the plainest way."""
    whole = text.removeprefix(MARK).split(b"\n")
    if not whole[-1] and text != MARK:
        whole.pop()
    bare = [line.removesuffix(b"\r") for line in whole]
    return [(line, len(line) > MOST_BYTES) for line in bare]


def shown(found: list[Line]) -> list[tuple[int, bytes, bool]]:
    return [(each.number, each.content, each.too_long) for each in found]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_lines_are_those_of_the_text(text: bytes) -> None:
    found = split([text])
    assert [line.number for line in found] == list(range(1, len(found) + 1))
    assert len(found) == len(expected(text))
    for line, (content, too_long) in zip(found, expected(text), strict=True):
        assert line.too_long is too_long
        if too_long:
            assert line.size_bytes > MOST_BYTES
            assert content.startswith(line.content)
        else:
            assert (line.content, line.size_bytes) == (content, len(content))


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_where_pieces_end_makes_no_difference(text: bytes) -> None:
    whole = split([text])
    for first in range(len(text) + 1):
        assert split([text[:first], text[first:]]) == whole
        for second in range(first, min(first + 30, len(text) + 1)):
            assert split([text[:first], text[first:second], text[second:]]) == whole
    assert split(text[place : place + 1] for place in range(len(text))) == whole
    assert split([b"", text, b"", b""]) == whole


@given(st.lists(st.sampled_from([b"\n", b"\r", MARK, b"12345", b"x", b"", MARK[:1], MARK[1:]])))
def test_any_pieces_are_like_their_sum(pieces: list[bytes]) -> None:
    text = b"".join(pieces)
    found = split(pieces)
    assert found == split([text])
    assert [(each.too_long) for each in found] == [too_long for _, too_long in expected(text)]


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        (b"12345678901\n", 11),
        (b"12345678901\r\n", 11),
        (MARK + b"12345678901", 11),
        (b"x" * 1_000 + b"\n", 1_000),
    ],
)
def test_of_a_line_that_is_too_long_the_size_is_told(text: bytes, size_bytes: int) -> None:
    (line,) = split([text])
    assert (line.size_bytes, line.too_long) == (size_bytes, True)


def test_a_huge_line_is_not_held() -> None:
    splitter = Splitter(MOST_BYTES)
    for _ in range(1_000):
        assert list(splitter.feed(b"x" * 1_000)) == []
    assert sum(map(len, splitter._held)) <= MOST_BYTES + 4
    assert list(splitter.feed(b"\nb\n")) == [
        Line(1, b"x" * (MOST_BYTES + 4), 1_000_000, too_long=True),
        Line(2, b"b", 1),
    ]


def test_blank_lines_are_white_space_and_have_numbers() -> None:
    found = split([b"\n \t\r\n\r\na\n\n" + b" " * 11])
    assert [(each.number, each.is_blank) for each in found] == [
        (1, True),
        (2, True),
        (3, True),
        (4, False),
        (5, True),
        (6, False),
    ]


async def test_lines_of_pieces_that_come_one_by_one() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b'{"a"', b":1}\n", b"\n{}"):
            yield piece

    found = [line async for line in lines(pieces(), MOST_BYTES)]
    assert found == [Line(1, b'{"a":1}', 7), Line(2, b"", 0), Line(3, b"{}", 2)]
