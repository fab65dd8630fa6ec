"""Tenancy in forebay.db through SQLAlchemy Core.

Authentication is on the path of every call, so what was looked up stays in memory: live secrets by
digest, keys that ordered something by id, and apart from them (a flood of invented keys must not push
out real ones) digests that are refused. All are bounded. Keys that wait to be looked up share one query,
so a flood of well-formed unknown keys costs a query at a time, not one each.

Why the memory is never wrong: this process is the only one that writes the file, whoever a change
is about leaves the memory before the verb returns, expiry is compared with the clock at every call,
and a look-up that was under way during a change (`_era` moved) is not remembered.

Not here: the statements (`sql_rows.py`), the tables (`sql_tables.py`), admin keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import Any, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from forebay.core.clock import Clock, IdSource
from forebay.core.principal import Principal, RateLimits, Scopes
from forebay.tenancy import sql_rows as rows
from forebay.tenancy.contract import (
    Directory,
    KeyInfo,
    KeySpec,
    Plan,
    ProjectInfo,
    ProjectLimits,
    ServiceAccount,
    Tenancy,
)
from forebay.tenancy.keys import API_KEY, check, derive, digest, outlived, redact, refusal
from forebay.tenancy.settings import find_plan, grant, granted_plan, require_name

T = TypeVar("T")

# About 1 KB for a live key, by digest or by id, and 130 B for a refused digest: 34 MB when full.
REMEMBERED_KEYS = 16_384
REMEMBERED_REFUSALS = 16_384
LOOKUP_BATCH = 500  # SQLite before 3.32 takes 999 parameters


class Runner(Protocol):
    """The open database: runs a function in a transaction of its own, off the event loop."""

    async def run(self, work: Callable[[sa.Connection], T]) -> T: ...


class SqlTenancy(Tenancy, Directory):
    """One per process, called from the event loop."""

    def __init__(
        self,
        runner: Runner,
        *,
        clock: Clock,
        ids: IdSource,
        plans: Mapping[str, Plan],
        pepper: bytes,
    ) -> None:
        self._runner = runner
        self._clock = clock
        self._ids = ids
        self._plans = plans
        self._digest_key = derive(pepper, API_KEY.purpose)
        self._live: dict[bytes, rows.Stored] = {}
        self._ordering: dict[str, rows.Stored] = {}
        self._refused: dict[bytes, None] = {}
        self._era = 0
        self._wanted: set[bytes] = set()
        self._looking = asyncio.Lock()

    async def authenticate(self, secret: str) -> Principal:
        if not check(secret):
            raise refusal(secret)
        key = digest(secret, self._digest_key)
        stored = self._live.get(key)
        if stored is None and key not in self._refused:
            stored = await self._look_up(key)
        if stored is None or not self._works(stored):
            raise refusal(secret)
        return self._granted(stored)

    async def principal(self, key_id: str) -> Principal:
        stored = self._ordering.get(key_id)
        if stored is None:
            era = self._era
            stored = await self._runner.run(partial(rows.look_up_id, key_id))
            if stored is not None and era == self._era:
                self._ordering[key_id] = stored
                _bound(self._ordering, REMEMBERED_KEYS)
        if stored is None or not self._works(stored):
            raise outlived(key_id)
        return self._granted(stored)

    def _works(self, stored: rows.Stored) -> bool:
        return stored.works_until is None or stored.works_until > self._clock.now()

    def _granted(self, stored: rows.Stored) -> Principal:
        return grant(stored.info, granted_plan(self._plans, stored.plan), stored.limits)

    async def ensure(self, organisation: str, project: str, *, plan: str) -> Scopes:
        require_name(organisation, param="organisation")
        require_name(project, param="project")
        find_plan(self._plans, plan)
        return await self._runner.run(
            partial(rows.ensure, organisation, project, plan, self._ids, self._clock.now())
        )

    async def plan(self, organisation: str) -> Plan:
        name = await self._runner.run(partial(rows.plan_name, organisation))
        return granted_plan(self._plans, name)

    async def create_key(self, spec: KeySpec, secret: str) -> KeyInfo:
        if not check(secret):
            raise ValueError("a key's secret is made by make_key")
        key = digest(secret, self._digest_key)
        work = partial(rows.create_key, spec, key, redact(secret), self._plans)
        try:
            return await self._change(work, lambda _: False)
        except IntegrityError as error:
            raise ValueError(f"the key {spec.id} exists already") from error
        finally:
            self._refused.pop(key, None)

    async def rotate_key(
        self, key_id: str, secret: str, *, at: float, overlap_seconds: float
    ) -> KeyInfo:
        if not check(secret):
            raise ValueError("a key's secret is made by make_key")
        key = digest(secret, self._digest_key)
        work = partial(rows.rotate_key, key_id, key, redact(secret), at, overlap_seconds)
        try:
            return await self._change(work, lambda info: info.id == key_id)
        except IntegrityError as error:
            raise ValueError("this secret is in use already") from error
        finally:
            self._refused.pop(key, None)

    async def revoke_key(self, key_id: str, *, at: float) -> KeyInfo:
        work = partial(rows.revoke_key, key_id, at)
        return await self._change(work, lambda info: info.id == key_id)

    async def keys(self) -> list[KeyInfo]:
        return await self._runner.run(rows.keys)

    async def organisations(self) -> list[str]:
        return await self._runner.run(rows.organisations)

    async def projects(self) -> list[ProjectInfo]:
        return await self._runner.run(rows.projects)

    async def set_plan(self, organisation: str, plan: str) -> Plan:
        found = find_plan(self._plans, plan)
        work = partial(rows.set_plan, organisation, plan)
        await self._change(work, lambda info: info.organisation == organisation)
        return found

    async def rename_project(self, project_id: str, name: str) -> ProjectInfo:
        require_name(name, param="name")
        return await self._change_project(
            project_id, partial(rows.rename_project, project_id, name)
        )

    async def archive_project(self, project_id: str, *, at: float) -> ProjectInfo:
        return await self._change_project(project_id, partial(rows.archive_project, project_id, at))

    async def project_limits(self, project_id: str) -> ProjectLimits:
        return await self._runner.run(partial(rows.project_limits, project_id))

    async def set_limits(
        self, project_id: str, limits: RateLimits, *, model: str | None = None
    ) -> ProjectLimits:
        return await self._change_project(
            project_id, partial(rows.set_limits, project_id, limits, model, self._plans)
        )

    async def create_service_account(
        self, account_id: str, project_id: str, name: str, *, at: float
    ) -> ServiceAccount:
        require_name(name, param="name")
        try:
            return await self._runner.run(
                partial(rows.create_account, account_id, project_id, name, at)
            )
        except IntegrityError as error:
            raise ValueError(f"the service account {account_id} exists already") from error

    async def rename_service_account(self, account_id: str, name: str) -> ServiceAccount:
        require_name(name, param="name")
        return await self._runner.run(partial(rows.rename_account, account_id, name))

    async def delete_service_account(self, account_id: str, *, at: float) -> ServiceAccount:
        work = partial(rows.delete_account, account_id, at)
        return await self._change(work, lambda info: info.service_account_id == account_id)

    async def service_accounts(self) -> list[ServiceAccount]:
        return await self._runner.run(rows.accounts)

    async def _change_project(self, project_id: str, work: Callable[[sa.Connection], T]) -> T:
        return await self._change(work, lambda info: info.scopes.project_id == project_id)

    async def _change(
        self, work: Callable[[sa.Connection], T], concerns: Callable[[KeyInfo], bool]
    ) -> T:
        """Run this and forget the keys that it concerns."""
        try:
            return await self._runner.run(work)
        finally:  # also when cancelled: the transaction may still come about
            self._era += 1
            _forget(self._live, concerns)
            _forget(self._ordering, concerns)

    async def _look_up(self, key: bytes) -> rows.Stored | None:
        """Whoever gets the lock first asks for everyone who waits behind it."""
        self._wanted.add(key)
        try:
            async with self._looking:
                if key in self._live or key in self._refused:
                    return self._live.get(key)
                self._wanted.discard(key)
                asked = [key, *islice(self._wanted, LOOKUP_BATCH - 1)]
                era = self._era
                found = await self._runner.run(partial(rows.look_up, asked))
                if era == self._era:
                    self._remember(asked, found)
                return found.get(key)
        finally:
            self._wanted.discard(key)

    def _remember(self, asked: Iterable[bytes], found: Mapping[bytes, rows.Stored]) -> None:
        self._wanted.difference_update(asked)
        for key in asked:
            if (stored := found.get(key)) is not None:
                self._live[key] = stored
            else:
                self._refused[key] = None
        _bound(self._live, REMEMBERED_KEYS)
        _bound(self._refused, REMEMBERED_REFUSALS)


def _forget(memory: dict[Any, rows.Stored], concerns: Callable[[KeyInfo], bool]) -> None:
    for key in [key for key, stored in memory.items() if concerns(stored.info)]:
        del memory[key]


def _bound(memory: dict[Any, Any], most: int) -> None:
    """Dicts keep order: the oldest goes."""
    while len(memory) > most:
        del memory[next(iter(memory))]
