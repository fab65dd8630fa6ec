"""The arithmetic of prices (L3, L11)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.job import Lane
from forebay.core.money import MAX_NANOS, Price, PriceTerms
from forebay.core.usage import Usage
from forebay.ledger.pricing import affordable_ceiling, amount_nanos, check_terms, hold_nanos


def price(input_nanos: int = 100, cached_nanos: int = 50, output_nanos: int = 400) -> Price:
    terms = PriceTerms("small", Lane.INTERACTIVE, input_nanos, cached_nanos, output_nanos)
    return Price(1, terms)


prices = st.integers(0, 10**6).flatmap(
    lambda most: st.builds(price, st.just(most), st.integers(0, most), st.integers(0, 10**6))
)
tokens = st.integers(0, 200_000)


def test_an_amount_is_uncached_plus_cached_plus_output() -> None:
    assert amount_nanos(price(), Usage(1_000, 30)) == 1_000 * 100 + 30 * 400
    assert amount_nanos(price(), Usage(1_000, 30, cached_input_tokens=1_000)) == 50_000 + 12_000
    assert amount_nanos(price(), Usage(1_000, 30, cached_input_tokens=1)) == 99_900 + 50 + 12_000
    assert amount_nanos(price(), Usage(0, 0)) == 0


@pytest.mark.parametrize(
    "usage", [Usage(-1, 0), Usage(1, -1), Usage(1, 0, cached_input_tokens=2), Usage(1, 0, -1)]
)
def test_counts_that_cannot_be_are_refused(usage: Usage) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        amount_nanos(price(), usage)


def test_a_hold_counts_the_prompt_once_and_the_ceiling_per_choice() -> None:
    assert hold_nanos(price(), 1_000, 512, 1) == 100_000 + 204_800
    assert hold_nanos(price(), 1_000, 512, 3) == 100_000 + 3 * 204_800


def test_what_does_not_fit_64_bits_is_refused() -> None:
    largest = price(1, 1, MAX_NANOS)
    assert hold_nanos(largest, 0, 1, 1) == MAX_NANOS
    with pytest.raises(OverflowError, match="64 bits"):
        hold_nanos(largest, 1, 1, 1)
    with pytest.raises(OverflowError, match="64 bits"):
        amount_nanos(largest, Usage(0, 2))


@given(prices, tokens, st.integers(1, 8), st.integers(-(10**6), 10**12))
def test_the_affordable_ceiling_is_the_largest_whose_hold_fits(
    some: Price, input_tokens: int, choices: int, headroom: int
) -> None:
    ceiling = affordable_ceiling(some, input_tokens, choices, headroom)
    assert ceiling >= 0
    if some.terms.output_nanos == 0:
        fits = hold_nanos(some, input_tokens, 0, choices) <= headroom
        assert ceiling == (MAX_NANOS if fits else 0)
        return
    if ceiling > 0:
        assert hold_nanos(some, input_tokens, ceiling, choices) <= headroom
    assert hold_nanos(some, input_tokens, ceiling + 1, choices) > headroom


@given(prices, tokens, tokens, st.integers(1, 8), st.data())
def test_l3_no_usage_within_a_hold_costs_more_than_the_hold(
    some: Price, input_tokens: int, ceiling: int, choices: int, data: st.DataObject
) -> None:
    check_terms(some.terms)
    cached = data.draw(st.integers(0, input_tokens))
    output = data.draw(st.integers(0, choices * ceiling))
    amount = amount_nanos(some, Usage(input_tokens, output, cached))
    assert 0 <= amount <= hold_nanos(some, input_tokens, ceiling, choices)


@pytest.mark.parametrize(
    ("some", "why"),
    [
        (price(-1, -1), "input_nanos"),
        (price(cached_nanos=-1), "cached_input_nanos"),
        (price(output_nanos=MAX_NANOS + 1), "output_nanos"),
        (price(100, 101), "dearer"),
    ],
)
def test_terms_that_could_break_l3_or_cannot_be_stored_are_refused(some: Price, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_terms(some.terms)
