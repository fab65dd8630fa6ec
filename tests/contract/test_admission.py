"""Admission's contract on every backend.

A3 is kept by not counting here at all: concurrency is the ledger's open holds (L15), and its
contract suite proves that they are exact.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from forebay.admission import Admission
from forebay.admission.memory import MemoryAdmission
from forebay.core.principal import RateLimits, Scopes
from forebay.testing.clock import CountingIds, FakeClock
from forebay.testing.contracts.admission import *  # noqa: F403
from forebay.testing.contracts.admission import BATCH, KEY, SETTINGS, admitted

BACKENDS = {"memory": MemoryAdmission}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=BACKENDS)
def admission(request: pytest.FixtureRequest, clock: FakeClock) -> Admission:
    return BACKENDS[request.param](SETTINGS, clock, CountingIds())


async def test_keys_that_are_at_rest_are_forgotten() -> None:
    """Also while a limit of a day is remembered, and open permits of calls that never end."""
    clock = FakeClock()
    admission = MemoryAdmission(SETTINGS, clock, CountingIds())
    limits = RateLimits(3, 300, 86_400)
    for n in range(100):
        scopes = Scopes("org", "proj", f"key_{n}")
        principal = replace(KEY, scopes=scopes, key_limits=limits)
        await admission.knock(principal)
        await admitted(admission, principal, 100, BATCH)
        admission.standing(replace(principal, scopes=Scopes("org", "proj", f"idle_{n}")))
        clock.advance(1.0)
    kept = {label: len(buckets) for label, buckets in admission._buckets.items()}
    assert kept == {"requests": 20, "tokens": 20, "batch_input": 10}, (
        "a third of a minute's permits is back after 20 s, 10 of a day's 86,400 after 10"
    )


async def test_open_permits_are_remembered_only_while_they_can_return_something() -> None:
    clock = FakeClock()
    admission = MemoryAdmission(SETTINGS, clock, CountingIds())
    principal = replace(KEY, key_limits=RateLimits(tokens_per_minute=600))
    for _ in range(50):
        await admitted(admission, principal, 20)
        clock.advance(2.0)
    (bucket,) = admission._buckets["tokens"].values()
    assert (len(bucket._open), len(bucket._steps)) == (1, 1)
