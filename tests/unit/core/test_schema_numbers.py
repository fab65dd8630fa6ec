from __future__ import annotations

import math
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from forebay.core.schema_numbers import LARGEST, Edge, between, weight

numbers = st.one_of(
    st.integers(-(10**17), 10**17),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(-1000, 1000, places=4).map(float),
)
edges = st.none() | st.builds(
    Edge, numbers.map(lambda number: Decimal(repr(number))), st.booleans()
)


@given(st.booleans(), edges, edges)
def test_what_is_generated_lies_between_the_bounds_as_decimals_and_as_doubles(integer, low, high):
    number = between(integer, low, high)
    if number is None or number.low is None:
        return
    assert number.decimals == 0 or not integer
    for scaled in (number.low, number.high, (number.low + number.high) // 2):
        value = Decimal(scaled).scaleb(-number.decimals)
        assert len(str(abs(scaled))) <= 15
        for edge, sign in ((low, 1), (high, -1)):
            if edge is None:
                continue
            assert sign * value >= sign * edge.value
            assert sign * float(value) >= sign * float(edge.value)
            if edge.excluded:
                assert float(value) != float(edge.value)


@given(st.integers(-LARGEST, LARGEST), st.integers(-LARGEST, LARGEST))
def test_between_two_integers_is_everything(low, high):
    number = between(True, Edge(Decimal(low), False), Edge(Decimal(high), False))
    if low > high:
        assert number is None
    else:
        assert number is not None
        assert (number.low, number.high) == (low, high)
        assert math.isfinite(weight(number))


def test_bounds_that_leave_every_digit_free_weigh_nothing():
    def of(low, high):
        number = between(True, Edge(Decimal(low), False), Edge(Decimal(high), False))
        assert number is not None
        return weight(number)

    assert of(0, 99) == of(1000, 9999) == of(-99, 0) == of(-9999, -1000) == 0
    assert of(0, 120) == 9
    assert of(-120, 120) == 18
    assert of(123, 456) == 18
