from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.errors import InvalidRequest, RequestTooLarge
from forebay.gateway.inflate import STEP_BYTES, Inflater


def inflated(limit: int, *parts: bytes) -> list[bytes]:
    inflater = Inflater(limit)
    steps = [step for part in parts for step in inflater.steps(part)]
    inflater.end()
    return steps


@given(st.binary(max_size=5000), st.integers(1, 9), st.integers(1, 40), st.integers(1, 1000))
def test_however_it_arrives_it_is_what_was_compressed(data, level, size, repeated):
    data *= repeated
    packed = gzip.compress(data, level)
    parts = [packed[i : i + size] for i in range(0, len(packed), size)]
    assert b"".join(inflated(len(data), *parts)) == data
    assert b"".join(inflated(len(data), packed)) == data


def test_a_step_is_bounded_and_so_is_the_whole():
    packed = gzip.compress(bytes(10_000_000))
    steps = inflated(10_000_000, packed)
    assert max(map(len, steps)) == STEP_BYTES
    assert sum(map(len, steps)) == 10_000_000
    given = []
    with pytest.raises(RequestTooLarge, match="more than 9999999 bytes"):
        given.extend(map(len, Inflater(9_999_999).steps(packed)))
    assert sum(given) <= 9_999_999


@pytest.mark.parametrize("limit", [1, STEP_BYTES - 1, STEP_BYTES, STEP_BYTES + 1])
def test_the_limit_itself_is_allowed(limit):
    assert sum(map(len, inflated(limit, gzip.compress(bytes(limit))))) == limit
    with pytest.raises(RequestTooLarge):
        inflated(limit, gzip.compress(bytes(limit + 1)))


@pytest.mark.parametrize("cut", range(len(gzip.compress(b"hello"))))
def test_what_breaks_off_is_no_body(cut):
    with pytest.raises(InvalidRequest) as caught:
        inflated(100, gzip.compress(b"hello")[:cut])
    assert caught.value.code == "invalid_encoding"
    assert "ends before its gzip stream does" in caught.value.message


# All but the header's notes, which say nothing: time, level, system.
@pytest.mark.parametrize("at", [*range(4), *range(10, len(gzip.compress(b"hello")))])
def test_a_damaged_byte_is_noticed(at):
    packed = bytearray(gzip.compress(b"hello", mtime=0))
    packed[at] ^= 0xFF
    with pytest.raises(InvalidRequest) as caught:
        inflated(100, bytes(packed))
    assert caught.value.code == "invalid_encoding"


@pytest.mark.parametrize(
    "packed", [zlib.compress(b"hello"), b"hello", b"\x1f\x8bhello", b"PK\x03\x04", b"\0" * 50]
)
def test_what_is_not_gzip_is_said_to_be_none(packed):
    with pytest.raises(InvalidRequest, match="is not valid gzip"):
        inflated(100, packed)


@pytest.mark.parametrize(
    "rest", [b"\0", b"x", gzip.compress(b"more", mtime=0), gzip.compress(b"", mtime=0) * 1000]
)
def test_nothing_may_follow_the_stream(rest):
    packed = gzip.compress(b"hello")
    for parts in ((packed + rest,), (packed, rest)):
        with pytest.raises(InvalidRequest, match="after the end of its gzip stream"):
            inflated(100, *parts)
