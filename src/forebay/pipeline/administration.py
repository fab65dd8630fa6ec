"""What may be administered, by whom: the sections of it, for one actor.

The control socket of a running server, the command line when no server runs, and the admin API
call the same functions. What the control socket offers takes and answers plain data (JSON), so that
both of its ends stay dumb.

Not here: how a verb travels (`forebay.gateway.control`, `forebay.gateway.admin`), its wording on a
terminal (`forebay.cli`), what it does (`admin_*.py`).
"""

from __future__ import annotations

from forebay.core.clock import Clock
from forebay.pipeline.admin_alert_names import NamedAlerts
from forebay.pipeline.admin_alerts import SpendAlerts
from forebay.pipeline.admin_budgets import Budgets
from forebay.pipeline.admin_keys import Keys
from forebay.pipeline.admin_projects import Projects
from forebay.pipeline.admin_reports import Reports
from forebay.pipeline.bookkeeping import Bookkeeping
from forebay.pipeline.desk import OPERATOR, Actor, Desk


class Administration:
    """By the operator, unless it says otherwise; of one data directory, by who holds its lock."""

    def __init__(self, desk: Desk, actor: Actor = OPERATOR) -> None:
        self._desk = desk
        self.keys = Keys(desk, actor)
        self.budgets = Budgets(desk, actor)
        self.projects = Projects(desk, actor)
        self.alerts = SpendAlerts(desk, actor)
        self.named_alerts = NamedAlerts(desk, actor)
        self.reports = Reports(desk, actor)
        self.bookkeeping = Bookkeeping(desk.records, desk.clock)

    @property
    def clock(self) -> Clock:
        return self._desk.clock

    async def by(self, secret: str) -> Administration:
        """The same for the holder of this admin key. Raises InvalidKey."""
        info = await self._desk.admin_keys.authenticate(secret)
        return Administration(self._desk, Actor(info.id, info.organisation_id))
