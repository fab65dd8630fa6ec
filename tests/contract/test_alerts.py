"""The alerts contract on memory and on SQLite, and what only a store on disk can get wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from forebay.alerts import Alerts
from forebay.alerts.memory import MemoryAlerts
from forebay.alerts.sql import SqlAlerts
from forebay.migrations import open_database
from forebay.testing.clock import CountingIds
from forebay.testing.contracts.alerts import *  # noqa: F403
from forebay.testing.contracts.alerts import ALERT, MONTH, NOW, fired, spend


@pytest.fixture(params=["memory", "sql"])
async def alerts(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Alerts]:
    if request.param == "memory":
        yield MemoryAlerts(CountingIds())
        return
    database = open_database(tmp_path / "forebay.db")
    yield SqlAlerts(database, CountingIds())
    database.close()


async def test_sums_events_and_the_cursor_outlive_the_process(tmp_path: Path) -> None:
    database = open_database(tmp_path / "forebay.db")
    (event,) = await fired(SqlAlerts(database, CountingIds()), ALERT)
    database.close()

    database = open_database(tmp_path / "forebay.db")
    after = SqlAlerts(database, CountingIds(seed=1))
    assert await after.cursor() == 1
    assert [(each.event, each.alert) for each in await after.due(NOW, 10)] == [(event, ALERT)]
    assert await spend(after, 100, ("org", MONTH)) == []
    database.close()
