from __future__ import annotations

import pytest

from forebay.core.wording import placed, plain


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (
            "Input should be a valid integer, unable to parse string as an integer",
            "must be a whole number",
        ),
        ("Input should be a valid number", "must be a number"),
        (
            "Input should be a dictionary or an instance of QueueSettings",
            "must be a group of settings (names with values)",
        ),
        ("Input should be a valid tuple", "must be a list"),
        ("Input should be greater than or equal to 1", "must be at least 1"),
        ("Input should be 'a' or 'b'", "must be 'a' or 'b'"),
        ("Value error, 'foo' is not one of 'key'.", "'foo' is not one of 'key'."),
        ("Field required", "is missing"),
        ("the file should be a list", "the file should be a list"),
    ],
)
def test_what_a_library_says_is_said_plainly(said, meant):
    assert plain(said) == meant


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("models.x.source: needs one", ("models[0].source", "needs one")),
        ("models.x.kv_tokens is 5; it must", ("models[0].kv_tokens", "is 5; it must")),
        ("models.x: an alias repeats", ("models[0]", "an alias repeats")),
        ("weight must be 1", ("models[0]", "weight must be 1")),
        ("models.xy: is another", ("models[0]", "models.xy: is another")),
    ],
)
def test_a_place_is_said_once(text, expected):
    assert placed("models[0]", text, ("models[0]", "models.x")) == expected
