"""Both ledgers keep the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from forebay.ledger.memory import MemoryLedger
from forebay.ledger.sqlite import SqliteLedger
from forebay.testing.clock import FakeClock
from forebay.testing.contracts.ledger import *  # noqa: F403
from forebay.testing.contracts.ledger_books import *  # noqa: F403
from forebay.testing.contracts.ledger_caps import *  # noqa: F403
from forebay.testing.contracts.ledger_claims import *  # noqa: F403
from forebay.testing.contracts.ledger_claims import ANSWERS_BYTES
from forebay.testing.contracts.ledger_records import *  # noqa: F403
from forebay.testing.contracts.ledger_sweep import *  # noqa: F403


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite"])
async def ledger(
    request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path
) -> AsyncIterator[MemoryLedger | SqliteLedger]:
    opened: MemoryLedger | SqliteLedger = (
        MemoryLedger(clock, answers_bytes=ANSWERS_BYTES)
        if request.param == "memory"
        else await SqliteLedger.open(tmp_path / "ledger.db", clock, answers_bytes=ANSWERS_BYTES)
    )
    yield opened
    await opened.close()
