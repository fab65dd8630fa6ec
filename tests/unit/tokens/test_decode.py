from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forebay.core.errors import EngineFault, InvalidRequest
from forebay.tokens.decode import StopMatcher, TableDecoder

BYTES = [bytes([byte]) for byte in range(256)]


def shown(matcher: StopMatcher, *texts: str) -> list[str]:
    return [matcher.push(text).text for text in texts]


def test_only_the_longest_end_that_may_become_a_stop_string_is_held_back() -> None:
    """E4."""
    matcher = StopMatcher(["abcd", "bce"])
    assert shown(matcher, "xab", "c") == ["x", ""]
    assert matcher.held == "abc"
    assert shown(matcher, "x") == ["abcx"]


def test_when_one_stop_string_fails_a_shorter_one_may_still_hold() -> None:
    """E4: `abc` cannot become `abcd` any more, but `bc` may still become `bce`."""
    matcher = StopMatcher(["abcd", "bcef"])
    assert shown(matcher, "abc", "e") == ["", "a"]
    assert matcher.held == "bce"
    assert matcher.push("f") == ("", True)


def test_a_stop_string_that_repeats_itself_is_found() -> None:
    """E4: the automaton steps back instead of starting over."""
    matcher = StopMatcher(["aab"])
    assert shown(matcher, "a", "a", "a", "a") == ["", "", "a", "a"]
    assert matcher.push("b") == ("", True)


def test_the_first_to_be_completed_wins_wherever_tokens_end() -> None:
    """E4."""
    for split in range(6):
        table = [b"-xabc"[:split], b"-xabc"[split:]]
        decoder = TableDecoder(table, ["xabc", "ab"])
        pieces = [decoder.push(0), decoder.push(1)]
        assert "".join(piece.text for piece in pieces) == "-x"
        assert pieces[-1].stopped


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        StopMatcher(["x", ""])


def test_a_long_stop_string_costs_time_in_proportion_to_the_text() -> None:
    """K3: would take hours if each character were compared from the start again."""
    matcher = StopMatcher(["a" * 20_000 + "b"])
    assert sum(len(text) for text in shown(matcher, *["a" * 1000] * 60)) == 40_000


@given(st.binary(max_size=40), st.lists(st.integers(1, 5), max_size=40))
@example(b"\xed\xa0", [])  # half a surrogate: two replacement characters at once, none yet here
def test_bytes_become_the_text_that_python_makes_of_them(data: bytes, sizes: list[int]) -> None:
    """E5: valid or not, however they are cut; only an unfinished end is missing."""
    table, rest = [], data
    for size in [*sizes, len(data)]:
        table.append(rest[:size])
        rest = rest[size:]
    decoder = TableDecoder(table, ())
    text = "".join(decoder.push(number).text for number in range(len(table)))
    whole = data.decode("utf-8", "replace")
    assert whole.startswith(text)
    assert whole[len(text) :].strip("\ufffd") == ""
    assert len(whole) - len(text) <= 3
    assert decoder.finish() == ""


def test_half_a_character_is_held_until_the_rest_comes_and_never_shown_as_broken() -> None:
    """E5."""
    decoder = TableDecoder(BYTES, ())
    assert [decoder.push(byte).text for byte in "é😀".encode()] == ["", "é", "", "", "", "😀"]


def test_bytes_that_cannot_become_a_character_are_replaced_at_once() -> None:
    """E5: an invalid start does not hold back what follows it."""
    decoder = TableDecoder(BYTES, ())
    assert [decoder.push(byte).text for byte in b"\xf0\x9f" + b"ab\xff"] == [
        *("", "", "\ufffda", "b", "\ufffd"),
    ]


def test_a_half_character_before_a_stop_string_does_not_hide_it() -> None:
    """E4, E5."""
    decoder = TableDecoder(BYTES, ["STOP"])
    pieces = [decoder.push(byte) for byte in b"ok \xf0STOP"]
    assert "".join(piece.text for piece in pieces) == "ok \ufffd"
    assert pieces[-1].stopped


def test_tokens_without_bytes_say_nothing_and_unknown_ids_are_faults() -> None:
    decoder = TableDecoder([b"", b"a"], ())
    assert decoder.push(0) == ("", False)
    for token_id in (2, -1):
        with pytest.raises(EngineFault):
            decoder.push(token_id)
    assert decoder.push(1) == ("a", False)


def test_finish_gives_what_was_held_once() -> None:
    decoder = TableDecoder(BYTES, ["ab"])
    decoder.push(ord("a"))
    assert (decoder.finish(), decoder.finish()) == ("a", "")
