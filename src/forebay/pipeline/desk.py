"""What administration works on, who sits at it, and what its sections have in common.

Every change is recorded in the journal once it is made (a crash between the two loses the record,
never the change). What is read, decided upon and written is so under the desk's lock `changing`.
An actor that administers one organisation sees nothing of another: an id of theirs is answered
exactly as one that does not exist.

Not here: what can be done (`admin_*.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from forebay.alerts import Alerts
from forebay.core.clock import Clock, IdSource
from forebay.core.errors import NotFound
from forebay.core.hold import Account, Period
from forebay.engine import Engine
from forebay.ledger import Books, Ledger, Records
from forebay.pipeline.alerting import Webhooks
from forebay.tenancy import (
    AdminKeys,
    Change,
    Directory,
    Journal,
    KeyInfo,
    ProjectInfo,
    Tenancy,
)


@dataclass(frozen=True, slots=True)
class Desk:
    """The rooms and what else there is to know."""

    tenancy: Tenancy
    directory: Directory
    admin_keys: AdminKeys
    journal: Journal
    alerts: Alerts
    webhooks: Webhooks
    ledger: Ledger
    books: Books
    records: Records
    engines: Sequence[Engine]
    models: Callable[[], list[dict[str, Any]]]
    status: Callable[[], Awaitable[dict[str, Any]]]
    activity: Callable[[], Awaitable[dict[str, Any]]]
    clock: Clock
    ids: IdSource
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts: the holder of an admin key of one organisation, or the operator of all."""

    key_id: str = ""
    organisation_id: str | None = None


OPERATOR = Actor()


class Section:
    """A part of administration, for one actor."""

    def __init__(self, desk: Desk, actor: Actor) -> None:
        self._desk = desk
        self._actor = actor

    async def _record(
        self, type: str, subject_id: str, home: ProjectInfo | str, **details: Any
    ) -> None:
        """`home` is the project of what changed, or an organisation's id."""
        organisation, project = (home, None) if isinstance(home, str) else _ids(home)
        await self._desk.journal.record(
            Change(
                id=self._desk.ids.new("audit_log"),
                at=self._desk.clock.now(),
                organisation_id=organisation,
                project_id=project,
                actor_id=self._actor.key_id,
                type=type,
                subject_id=subject_id,
                details=details,
            )
        )

    async def _projects(self) -> list[ProjectInfo]:
        """Those that the actor may see, archived ones too, oldest first."""
        mine = self._actor.organisation_id
        found = await self._desk.tenancy.projects()
        return [info for info in found if mine in (None, info.scopes.organisation_id)]

    async def _project(self, project_id: str) -> ProjectInfo:
        for info in await self._projects():
            if info.scopes.project_id == project_id:
                return info
        raise NotFound("There is no such project.")

    async def _keys(self) -> list[KeyInfo]:
        mine = self._actor.organisation_id
        found = await self._desk.tenancy.keys()
        return [info for info in found if mine in (None, info.scopes.organisation_id)]

    async def _home(self) -> ProjectInfo:
        """Any project of the actor's organisation: every organisation has one."""
        return (await self._projects())[0]


def budgeted(scope: str, max_open_holds: int | None = None) -> Account:
    """An account whose budget, once it has one, is a month's."""
    return Account(scope, None, Period.MONTH, max_open_holds)


def _ids(project: ProjectInfo) -> tuple[str, str]:
    return project.scopes.organisation_id, project.scopes.project_id
