"""Admission's contract on every backend.

A3 is kept by not counting here at all: concurrency is the ledger's open holds (L15), and its
contract suite proves that they are exact.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from forebay.admission import Admission
from forebay.admission.memory import MemoryAdmission
from forebay.core.principal import Scopes
from forebay.testing.clock import CountingIds, FakeClock
from forebay.testing.contracts.admission import *  # noqa: F403
from forebay.testing.contracts.admission import KEY, SETTINGS

BACKENDS = {"memory": MemoryAdmission}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=BACKENDS)
def admission(request: pytest.FixtureRequest, clock: FakeClock) -> Admission:
    return BACKENDS[request.param](SETTINGS, clock, CountingIds())


async def test_keys_that_are_at_rest_are_forgotten() -> None:
    clock = FakeClock()
    admission = MemoryAdmission(SETTINGS, clock, CountingIds())
    for n in range(100):
        await admission.knock(replace(KEY, scopes=Scopes("org", "proj", f"key_{n}")))
        clock.advance(1.0)
    assert len(admission._buckets) <= 21, "one permit of three a minute is back after 20 s"
