from __future__ import annotations

from dataclasses import replace

import pytest

from forebay.core.errors import InvalidKey, RateLimited
from forebay.gateway import GatewaySettings, guesses
from forebay.gateway.guesses import Guesses
from forebay.testing.clock import FakeClock


def scope(host="192.0.2.7"):
    return {"client": (host, 1), "headers": []}


def wrongs(counter, count, host="192.0.2.7"):
    """How many of so many wrong keys were answered as such."""
    answers = [counter.refuse(scope(host), InvalidKey()) for _ in range(count)]
    return sum(isinstance(answer, InvalidKey) for answer in answers)


@pytest.mark.parametrize("most", [1, 2, 60, 1000])
def test_a_minutes_worth_passes_at_once_then_at_the_minutes_pace(most):
    clock = FakeClock()
    counter = Guesses(replace(GatewaySettings(), max_bad_keys_per_minute=most), clock)
    assert wrongs(counter, 3 * most) == most
    clock.advance(30)
    assert wrongs(counter, 3 * most) == most // 2
    clock.advance(61)
    assert wrongs(counter, 3 * most) == most


def test_the_wait_is_said_and_is_exact():
    clock = FakeClock()
    counter = Guesses(replace(GatewaySettings(), max_bad_keys_per_minute=6), clock)
    assert wrongs(counter, 6) == 6
    clock.advance(4)
    refused = counter.refuse(scope(), InvalidKey())
    assert isinstance(refused, RateLimited)
    assert refused.retry_after_seconds == pytest.approx(6)
    clock.advance(refused.retry_after_seconds)
    assert wrongs(counter, 2) == 1


def test_addresses_have_buckets_of_their_own():
    counter = Guesses(GatewaySettings(), FakeClock())
    assert wrongs(counter, 100) == 60
    assert wrongs(counter, 100, "192.0.2.8") == 60
    assert wrongs(counter, 100, "2001:db8::1") == 60
    assert wrongs(counter, 100, "2001:db8::2") == 0, "one client has the whole /64"


def test_what_is_remembered_is_bounded_and_who_goes_on_is_not_forgotten(monkeypatch):
    monkeypatch.setattr(guesses, "MOST_ADDRESSES", 100)
    counter = Guesses(GatewaySettings(), FakeClock())
    for number in range(1000):
        wrongs(counter, 1, f"10.0.{number // 250}.{number % 250}")
        wrongs(counter, 1)
    assert len(counter) == 100
    assert wrongs(counter, 10) == 0


def test_the_operator_is_told_once_of_a_row(capsys):
    clock = FakeClock()
    counter = Guesses(GatewaySettings(), clock)
    for _ in range(2):
        wrongs(counter, 500)
        clock.advance(10)
    assert capsys.readouterr().out.count("bad_keys") == 1
    clock.advance(100)
    wrongs(counter, 500)
    assert capsys.readouterr().out.count("bad_keys") == 1
