"""Money: signed 64-bit integers of nano-USD (1e-9 USD). No floats, ever.

A price is nano-USD per token, so 0.10 USD per million tokens is 100. The smallest price that can
be stored is therefore 0.001 USD per million tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal, InvalidOperation

from forebay.core.job import Lane

NANOS_PER_USD = 1_000_000_000
MAX_NANOS = 2**63 - 1
_MOST_DIGITS = 20  # more than MAX_NANOS has


def nanos_from_usd(text: str | Decimal) -> int:
    """Whole nano-USD of a decimal amount such as "5.00".

    Raises ValueError for anything that is not a finite, representable, non-negative amount, or
    that is finer than one nano-USD: money is never rounded silently.
    """
    try:
        amount = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text!r} is not an amount of USD such as 5.00") from None
    if amount.is_snan():
        raise ValueError(f"{text!r} is not an amount of USD such as 5.00")
    # Compared before anything is computed: huge exponents would overflow the arithmetic.
    if not amount.is_finite() or amount < 0 or amount.adjusted() > _MOST_DIGITS:
        raise ValueError(f"{text!r} is not between 0 and 9.2 billion USD")
    exact = Context(prec=len(amount.as_tuple().digits) + _MOST_DIGITS)
    nanos = amount.scaleb(9, exact)
    if nanos != nanos.to_integral_value(context=exact):
        raise ValueError(f"{text!r} is finer than one nano-USD (9 decimals)")
    if nanos > MAX_NANOS:
        raise ValueError(f"{text!r} is not between 0 and 9.2 billion USD")
    return int(nanos)


def nanos_per_token(usd_per_million: Decimal, *, factor: Decimal = Decimal(1)) -> int:
    """Price per token of a price per million tokens; `factor` is the lane's multiplier.

    A result that is not a whole number of nano-USD is rounded up to the next one, after the
    factor, so that the stored price is what is charged and nothing is rounded per call.
    """
    nanos = usd_per_million * factor * NANOS_PER_USD / 1_000_000
    if not nanos.is_finite() or nanos < 0:
        raise ValueError(f"{usd_per_million} USD per million tokens is not a price")
    return int(nanos.to_integral_value(rounding=ROUND_CEILING))


def format_usd(nanos: int) -> str:
    """The exact decimal, without trailing zeros beyond cents: 17_100 -> "0.0000171"."""
    sign, digits = ("-" if nanos < 0 else ""), f"{abs(nanos):010d}"
    whole, fraction = digits[:-9], digits[-9:].rstrip("0").ljust(2, "0")
    return f"{sign}{whole}.{fraction}"


@dataclass(frozen=True, slots=True)
class PriceTerms:
    """What one model costs in one lane, in nano-USD per token."""

    model: str
    lane: Lane
    input_nanos: int
    cached_input_nanos: int
    output_nanos: int


@dataclass(frozen=True, slots=True)
class Price:
    """A stored, immutable version of some terms; a hold pins one and settles with it (L11)."""

    version: int
    terms: PriceTerms
