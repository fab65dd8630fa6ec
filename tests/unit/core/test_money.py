"""Amounts are exact or refused."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.money import MAX_NANOS, format_usd, nanos_from_usd, nanos_per_token


@pytest.mark.parametrize(
    ("text", "nanos"),
    [
        ("5.00", 5_000_000_000),
        ("0", 0),
        ("0.000000001", 1),
        ("1e-9", 1),
        ("9223372036.854775807", MAX_NANOS),
        (Decimal("0.10"), 100_000_000),
    ],
)
def test_an_amount_is_whole_nano_usd(text: str | Decimal, nanos: int) -> None:
    assert nanos_from_usd(text) == nanos


@pytest.mark.parametrize("text", ["", "five", "5,00", "5 USD", "0x5", "sNaN"])
def test_what_is_no_number_is_no_amount(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not an amount of USD such as 5\.00"):
        nanos_from_usd(text)


@pytest.mark.parametrize(
    "text", ["-0.01", "NaN", "Infinity", "-Infinity", "9223372036.854775808", "1e30"]
)
def test_an_amount_that_no_account_can_have_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not between 0 and 9\.2 billion USD"):
        nanos_from_usd(text)


@pytest.mark.parametrize("text", ["0.0000000001", "1.0000000005", "1e-10"])
def test_money_is_never_rounded_silently(text: str) -> None:
    with pytest.raises(ValueError, match="finer than one nano-USD"):
        nanos_from_usd(text)


@pytest.mark.parametrize(
    ("usd_per_million", "factor", "nanos"),
    [
        ("0.10", "1", 100),
        ("0.001", "1", 1),
        ("0", "1", 0),
        ("0.10", "0.5", 50),
        ("0.10", "1.75", 175),
        ("0.0001", "1", 1),
        ("0.101", "0.5", 51),
        ("0.0015", "2", 3),
    ],
)
def test_a_price_per_token_is_rounded_up_once_after_the_lane_s_factor(
    usd_per_million: str, factor: str, nanos: int
) -> None:
    assert nanos_per_token(Decimal(usd_per_million), factor=Decimal(factor)) == nanos


@pytest.mark.parametrize("usd_per_million", ["-0.1", "NaN", "Infinity"])
def test_a_price_is_finite_and_not_negative(usd_per_million: str) -> None:
    with pytest.raises(ValueError, match="is not a price"):
        nanos_per_token(Decimal(usd_per_million))


@pytest.mark.parametrize(
    ("nanos", "text"),
    [
        (17_100, "0.0000171"),
        (0, "0.00"),
        (1, "0.000000001"),
        (5_000_000_000, "5.00"),
        (5_100_000_000, "5.10"),
        (-2_500_000_000, "-2.50"),
        (-1, "-0.000000001"),
        (MAX_NANOS, "9223372036.854775807"),
    ],
)
def test_an_amount_is_shown_exactly_and_at_least_to_the_cent(nanos: int, text: str) -> None:
    assert format_usd(nanos) == text


@given(st.integers(0, MAX_NANOS))
def test_what_is_shown_can_be_read_again(nanos: int) -> None:
    assert nanos_from_usd(format_usd(nanos)) == nanos


@pytest.mark.parametrize("text", ["1e999999", "1e9999999999"])
def test_a_huge_exponent_is_refused_before_anything_is_computed(text: str) -> None:
    with pytest.raises(ValueError, match="billion"):
        nanos_from_usd(text)


@pytest.mark.parametrize(
    "text", ["1.0000000000000000000000000000001", "9223372036.8547758070000000000001"]
)
def test_digits_beyond_what_decimals_usually_carry_are_not_rounded_away(text: str) -> None:
    with pytest.raises(ValueError, match="finer"):
        nanos_from_usd(text)
