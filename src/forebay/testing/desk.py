"""A desk on the rooms in memory, for tests of administration: nothing runs, everything is counted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from forebay.alerts import AlertSettings
from forebay.alerts.memory import MemoryAlerts
from forebay.ledger.memory import MemoryLedger
from forebay.pipeline.alerting import Webhooks
from forebay.pipeline.desk import Desk
from forebay.tenancy import PlanSettings, plans_by_name
from forebay.tenancy.memory import MemoryAdminKeys, MemoryTenancy
from forebay.tenancy.memory_records import MemoryJournal
from forebay.testing.clock import CountingIds, FakeClock
from forebay.testing.receivers import ScriptedReceivers

MODELS = [
    {"id": "smollm2", "aliases": ["small", "default"]},
    {"id": "scripted", "aliases": []},
]
PEPPER = bytes(32)


def memory_desk(clock: FakeClock, plans: Iterable[PlanSettings] = ()) -> Desk:
    """Its models are MODELS; one call runs in every project there is."""
    ids = CountingIds()
    ledger = MemoryLedger(clock)
    tenancy = MemoryTenancy(clock=clock, ids=ids, plans=plans_by_name(plans), pepper=PEPPER)

    async def status() -> dict[str, Any]:
        return {}

    async def activity() -> dict[str, Any]:
        projects = [info.scopes.project_id for info in await tenancy.projects()]
        return {"calls": [{"project_id": each} for each in projects], "nanos_per_hour": 1_500_000}

    return Desk(
        tenancy=tenancy,
        directory=tenancy,
        admin_keys=MemoryAdminKeys(clock=clock, pepper=PEPPER),
        journal=MemoryJournal(),
        alerts=MemoryAlerts(ids),
        webhooks=Webhooks(ScriptedReceivers(), PEPPER, clock, AlertSettings()),
        ledger=ledger,
        books=ledger,
        records=ledger.records,
        engines=(),
        models=lambda: MODELS,
        status=status,
        activity=activity,
        clock=clock,
        ids=ids,
    )
