"""What the scripted model says, from the prompt alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.engine.script import IM_START, Performance, Script, parse, split

MARKER = (IM_START, *b"assistant\n")
IDS = st.lists(st.integers(0, 258), max_size=60).map(tuple)
BYTES = st.lists(st.integers(0, 255), max_size=60).map(tuple)


def user(text: str) -> tuple[int, ...]:
    return (IM_START, *b"user\n", *text.encode(), 257, 10, *MARKER)


def said(performance: Performance, count: int) -> bytes:
    start = performance.start
    return bytes(performance.token(start + n) for n in range(count))


@given(IDS, BYTES)
def test_what_follows_the_last_assistant_marker_was_published(
    before: tuple[int, ...], published: tuple[int, ...]
) -> None:
    parts = split((*before, *MARKER, *published))
    assert parts.original == (*before, *MARKER)
    assert parts.published == published


def test_a_prompt_without_a_marker_is_all_original() -> None:
    assert split((1, 2, 3)) == ((1, 2, 3), ())
    assert split(MARKER) == (MARKER, ())
    assert split(MARKER[1:]) == (MARKER[1:], ())
    assert split(()) == ((), ())


@given(st.text(max_size=30), st.integers(0, 80), st.integers(1, 40))
def test_a_prefix_is_continued_with_the_same_text(text: str, done: int, more: int) -> None:
    """E8."""
    prompt = user(text.replace("[[", ""))
    whole = said(Performance(prompt), done + more)
    resumed = Performance((*prompt, *whole[:done]))
    assert said(resumed, more) == whole[done:]
    assert resumed.length == Performance(prompt).length


def test_other_prompts_get_other_texts() -> None:
    assert len({said(Performance(user(f"prompt {n}")), 40) for n in range(50)}) == 50


def test_the_last_directive_of_a_dialogue_counts() -> None:
    prompt = (*user("[[script length=1]]"), *b"x", 257, 10, *user("[[script length=9 text=ab]]"))
    assert Performance(prompt).script == Script(length=9, text=b"ab")


def test_the_default_directive_is_for_prompts_without_one() -> None:
    assert Performance(user("hi"), "length=4").length == 4
    assert Performance(user("[[script length=5]]"), "length=4 hang_at=1").script == Script(length=5)


def test_every_number_of_a_script_can_be_set() -> None:
    assert parse(
        "length=1 choice_step=2 split_utf8=1 crash_at=2 hang_at=3 duplicate_at=4 kv_exhausted_at=5 "
        "overlong=6 drop_usage=1 miscount=8 alien_at=7 deaf=1 text=two words, length=7"
    ) == Script(1, 2, b"two words, length=7", 1, 2, 3, 4, 5, 6, 1, 8, 7, 1)


@pytest.mark.parametrize("body", ["lenght=3", "length", "length=-1", "length=٣", "text=", "40"])
def test_a_script_that_is_not_understood_is_refused(body: str) -> None:
    with pytest.raises(ValueError, match="script"):
        parse(body)


def test_a_fault_strikes_once_unless_it_comes_before_the_first_token() -> None:
    prompt = user("hi")
    fresh, resumed = Performance(prompt), Performance((*prompt, *b"hello"))
    assert [n for n in range(9) if fresh.strikes(5, n)] == [5]
    assert not resumed.strikes(5, 5)
    assert resumed.strikes(6, 6)
    assert fresh.strikes(0, 0)
    assert not fresh.strikes(None, 0)


def test_ids_that_no_vocabulary_has_are_refused() -> None:
    with pytest.raises(ValueError, match="prompt id"):
        Performance((1, -1))
    with pytest.raises(ValueError, match="prompt id"):
        Performance((2**32,))
