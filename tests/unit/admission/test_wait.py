"""Predicted wait: cost ahead over the measured pace."""

from __future__ import annotations

import pytest

from forebay.admission.wait import (
    AdmissionSettings,
    ServiceRate,
    predicted_wait_seconds,
)


def test_the_wait_is_zero_while_the_pace_is_unknown() -> None:
    assert predicted_wait_seconds(10**9, None) == 0
    assert predicted_wait_seconds(500, 100.0) == 5


def test_the_pace_is_cost_over_saturated_time() -> None:
    rate = ServiceRate()
    for second in range(11):
        rate.served(70, float(second), busy=True)
        rate.served(30, float(second), busy=True)
    assert rate.cost_per_second == pytest.approx(100, rel=0.05)


def test_calls_that_end_together_all_count_although_the_last_leaves_nobody_waiting() -> None:
    rate = ServiceRate()
    for second in range(0, 100, 2):
        rate.served(100, float(second), busy=True)
        rate.served(100, second + 1.0, busy=True)
        rate.served(100, second + 1.0, busy=False)
    assert rate.cost_per_second == pytest.approx(200)


def test_the_pace_is_unknown_before_a_second_of_saturation() -> None:
    rate = ServiceRate()
    rate.served(100, 0.0, busy=True)
    rate.served(100, 0.9, busy=True)
    assert rate.cost_per_second is None
    rate.served(100, 1.2, busy=True)
    assert rate.cost_per_second is not None


@pytest.mark.parametrize("how", ["not busy", "seen empty"])
def test_time_in_which_nobody_waited_does_not_count(how: str) -> None:
    rate = ServiceRate()
    for second in range(11):
        rate.served(100, float(second), busy=True)
    if how == "seen empty":
        rate.saw_empty_queue()
    else:
        rate.served(100, 11.0, busy=False)
    rate.served(100, 1000.0, busy=True)
    assert rate.cost_per_second == pytest.approx(100, rel=0.05)


def test_the_pace_follows_an_engine_that_slowed_down() -> None:
    rate = ServiceRate()
    for second in range(100):
        rate.served(1000, float(second), busy=True)
    for second in range(100, 300):
        rate.served(10, float(second), busy=True)
    assert rate.cost_per_second is not None
    assert rate.cost_per_second < 30


def test_a_pool_that_serves_nothing_has_no_pace() -> None:
    rate = ServiceRate()
    for second in range(10):
        rate.served(0, float(second), busy=True)
    assert rate.cost_per_second is None


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_a_deadline_that_is_not_above_zero_is_refused_by_name(seconds: float) -> None:
    with pytest.raises(ValueError, match="interactive_deadline_seconds"):
        AdmissionSettings(interactive_deadline_seconds=seconds)


def test_every_setting_has_a_help_sentence() -> None:
    for name, each in AdmissionSettings.__dataclass_fields__.items():
        assert each.metadata["help"].endswith("."), name
