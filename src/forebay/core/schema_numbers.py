"""Numbers between two bounds, as integers over a power of ten: what a text of digits is compared by.

At most `MAX_DIGITS` digits are generated: a double tells all such numbers apart, so what is between
the bounds as decimal texts is so for every reader.

Not here: their grammar (`forebay.engine.grammar`).
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import NamedTuple

from forebay.core.schema_nodes import Number

MAX_DIGITS = 15
LARGEST = 10**MAX_DIGITS - 1
_MAX_DECIMALS = 8


class Edge(NamedTuple):
    """A bound; `excluded`: it is not itself allowed."""

    value: Decimal
    excluded: bool


def between(integer: bool, low: Edge | None, high: Edge | None) -> Number | None:
    """The numbers that may be generated; None if there are none. A bound beyond all of them is none."""
    if low is not None and low.value < -LARGEST:
        low = None
    if high is not None and high.value > LARGEST:
        high = None
    edges = [edge.value for edge in (low, high) if edge is not None]
    if not edges:
        return Number(integer)
    if max(map(abs, edges)) > LARGEST:
        return None
    decimals = 0 if integer else _decimals(edges)
    scale = 10**decimals
    least, most = -LARGEST, LARGEST
    if low is not None:
        value = low.value * scale
        least = math.floor(value) + 1 if low.excluded else math.ceil(value)
    if high is not None:
        value = high.value * scale
        most = math.ceil(value) - 1 if high.excluded else math.floor(value)
    return Number(integer, least, most, decimals) if least <= most else None


def _decimals(edges: list[Decimal]) -> int:
    """Two more than the bounds have, as far as the digits reach."""
    wanted = max(max(0, -int(edge.normalize().as_tuple().exponent)) for edge in edges) + 2
    whole_digits = len(str(int(max(map(abs, edges)))))
    return max(0, min(wanted, _MAX_DECIMALS, MAX_DIGITS - whole_digits))


def weight(number: Number) -> int:
    """How much of a grammar its bounds take: the squares of their digits, but for those that leave
    every digit free."""
    if number.low is None or number.high is None:
        return 0
    total = 0
    for bound, is_outer in ((number.low, number.low < 0), (number.high, number.high > 0)):
        digits = str(abs(bound))
        free = set(digits) == {"9"} if is_outer else digits.strip("0") in ("", "1")
        total += 0 if free else len(digits) ** 2
    return total
