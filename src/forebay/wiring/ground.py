"""What stands before anything runs, and what whoever starts a server wants to hear.

Not here: how it is built (`machine.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from forebay.alerts.sql import SqlAlerts
from forebay.catalog.download import Progress
from forebay.core.money import Price
from forebay.ledger.sqlite import SqliteLedger
from forebay.migrations import Database
from forebay.observe import Metrics
from forebay.pipeline.alerting import Webhooks
from forebay.system import SystemClock, SystemIds, Tasks
from forebay.tenancy.sql import SqlTenancy
from forebay.tenancy.sql_admin_keys import SqlAdminKeys
from forebay.tenancy.sql_records import SqlJournal


@dataclass(frozen=True, slots=True)
class Ready:
    """What `serve` has to say once calls are accepted. `api_key` only when it was made now."""

    base_url: str
    admin_url: str
    api_key: str | None
    models: tuple[str, ...]


class Watcher(Protocol):
    """Whoever wants to know how the start goes (a terminal)."""

    def fetching(self, model: str, progress: Progress) -> None: ...
    def starting(self, model: str) -> None: ...
    def ready(self, ready: Ready) -> None: ...


@dataclass(frozen=True, slots=True)
class Ground:
    """What stands before anything runs: the open stores, the clock, ids, task creation, metrics."""

    ledger: SqliteLedger
    database: Database
    tenancy: SqlTenancy
    admin_keys: SqlAdminKeys
    journal: SqlJournal
    alerts: SqlAlerts
    webhooks: Webhooks
    prices: Sequence[Price]
    clock: SystemClock
    ids: SystemIds
    spawn: Tasks
    metrics: Metrics
