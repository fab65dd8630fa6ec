"""Arithmetic of prices: integers of nano-USD only, nothing is ever rounded.

A price is a whole number of nano-USD per token, so every amount here is an exact sum of products
(L11: an amount can be recomputed from its price version for ever). A hold is priced as if nothing
were cached, and a cached token never costs more than an uncached one (`check_terms`), so what is
settled cannot exceed what was held (L3).

Not here: who is charged and whether the balances allow it (`forebay.ledger.rules`).
"""

from __future__ import annotations

from forebay.core.money import MAX_NANOS, Price, PriceTerms
from forebay.core.usage import Usage


def amount_nanos(price: Price, usage: Usage) -> int:
    """What this usage costs: uncached input + cached input + output.

    Raises ValueError for counts that cannot be, OverflowError beyond 64 bits.
    """
    cached = usage.cached_input_tokens
    if not 0 <= cached <= usage.input_tokens or usage.output_tokens < 0:
        raise ValueError(f"{usage} cannot be: 0 <= cached <= input and 0 <= output")
    terms = price.terms
    return _representable(
        terms.input_nanos * (usage.input_tokens - cached)
        + terms.cached_input_nanos * cached
        + terms.output_nanos * usage.output_tokens
    )


def hold_nanos(price: Price, input_tokens: int, ceiling_tokens: int, choices: int) -> int:
    """H = in·P + out·n·M, the most a call can cost. Raises OverflowError beyond 64 bits."""
    terms = price.terms
    return _representable(
        terms.input_nanos * input_tokens + terms.output_nanos * choices * ceiling_tokens
    )


def affordable_ceiling(price: Price, input_tokens: int, choices: int, headroom: int) -> int:
    """The largest M whose hold fits into `headroom`; 0 if not even one token does."""
    left = headroom - price.terms.input_nanos * input_tokens
    if left < 0:
        return 0
    per_token = price.terms.output_nanos * choices
    return left // per_token if per_token else MAX_NANOS


def check_terms(terms: PriceTerms) -> None:
    """Raise ValueError for terms that could break L3 or cannot be stored."""
    for name in ("input_nanos", "cached_input_nanos", "output_nanos"):
        if not 0 <= getattr(terms, name) <= MAX_NANOS:
            raise ValueError(f"{name} of {terms.model} ({terms.lane}) is not between 0 and 2^63-1")
    if terms.cached_input_nanos > terms.input_nanos:
        raise ValueError(
            f"cached input of {terms.model} ({terms.lane}) is dearer than input: a settlement "
            "could exceed its hold (L3)"
        )


def _representable(nanos: int) -> int:
    if nanos > MAX_NANOS:
        raise OverflowError(f"{nanos} nano-USD does not fit 64 bits (9.2 billion USD)")
    return nanos
