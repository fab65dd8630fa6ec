"""Tenancy in forebay.db through SQLAlchemy Core.

Authentication is on the path of every call, so what was looked up stays in memory: live keys by
digest, and apart from them (a flood of invented keys must not push out real ones) digests that are
refused. Both are bounded. Keys that wait to be looked up share one query, so a flood of well-formed
unknown keys costs a query at a time, not one each.

Why the memory is never wrong: this process is the only one that writes the file, a revoked key
leaves the memory before `revoke_key` returns, expiry is compared with the clock at every call, and
a look-up that was under way while a key was made or revoked (`_era` moved) is not remembered.

Not here: the schema's steps (`forebay.migrations.versions`; a test compares them with the tables).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from forebay.core.clock import Clock, IdSource
from forebay.core.errors import InvalidRequest
from forebay.core.job import Lane
from forebay.core.principal import Principal, Scopes
from forebay.tenancy.contract import KeyInfo, KeySpec, Plan, ProjectInfo, Tenancy
from forebay.tenancy.keys import DIGEST_PURPOSE, check, derive, digest, redact, refusal
from forebay.tenancy.settings import find_plan, grant, require_name, require_sound

T = TypeVar("T")

# About 1 KB for a live key and 130 B for a refused digest: 16 MB and 2 MB when full.
REMEMBERED_KEYS = 16_384
REMEMBERED_REFUSALS = 16_384
LOOKUP_BATCH = 500  # SQLite before 3.32 takes 999 parameters

METADATA = sa.MetaData()
ORGANISATIONS = sa.Table(
    "organisations",
    METADATA,
    sa.Column("sequence", sa.Integer, primary_key=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    sa.Column("plan", sa.Text, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
)
PROJECTS = sa.Table(
    "projects",
    METADATA,
    sa.Column("sequence", sa.Integer, primary_key=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("organisation_id", sa.Text, sa.ForeignKey("organisations.id"), nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.UniqueConstraint("organisation_id", "name"),
)
KEYS = sa.Table(
    "api_keys",
    METADATA,
    sa.Column("sequence", sa.Integer, primary_key=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("digest", sa.LargeBinary, nullable=False, unique=True),
    sa.Column("project_id", sa.Text, sa.ForeignKey("projects.id"), nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("redacted", sa.Text, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("expires_at", sa.Double),
    sa.Column("revoked_at", sa.Double),
    sa.Column("models", sa.JSON(none_as_null=True)),
    sa.Column("lanes", sa.JSON(none_as_null=True)),
    sa.Column("calls_per_minute", sa.Integer),
    sa.Column("max_output_tokens", sa.Integer),
)
_EVERY_KEY = (
    sa.select(
        KEYS,
        PROJECTS.c.name.label("project"),
        PROJECTS.c.organisation_id,
        ORGANISATIONS.c.name.label("organisation"),
        ORGANISATIONS.c.plan,
    )
    .join(PROJECTS, PROJECTS.c.id == KEYS.c.project_id)
    .join(ORGANISATIONS, ORGANISATIONS.c.id == PROJECTS.c.organisation_id)
    .order_by(KEYS.c.sequence)
)


class Runner(Protocol):
    """The open database: runs a function in a transaction of its own, off the event loop."""

    async def run(self, work: Callable[[sa.Connection], T]) -> T: ...


class _Stored(NamedTuple):
    info: KeyInfo
    plan: str


class SqlTenancy(Tenancy):
    """One per process. Called from the event loop; its functions named `_in_…` run in `Runner`."""

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
        self._digest_key = derive(pepper, DIGEST_PURPOSE)
        self._live: dict[bytes, _Stored] = {}
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
        if stored is None:
            raise refusal(secret)
        expires_at = stored.info.expires_at
        if expires_at is not None and expires_at <= self._clock.now():
            raise refusal(secret)
        return grant(stored.info, stored.plan, self._plans)

    async def ensure(self, organisation: str, project: str, *, plan: str) -> Scopes:
        require_name(organisation, param="organisation")
        require_name(project, param="project")
        find_plan(self._plans, plan)
        return await self._runner.run(partial(self._in_ensure, organisation, project, plan))

    async def create_key(self, spec: KeySpec, secret: str) -> KeyInfo:
        if not check(secret):
            raise ValueError("a key's secret is made by make_key")
        key = digest(secret, self._digest_key)
        try:
            return await self._runner.run(partial(self._in_create, spec, key, redact(secret)))
        except IntegrityError as error:
            raise ValueError(f"the key {spec.id} exists already") from error
        finally:  # also when cancelled: the transaction may still come about
            self._era += 1
            self._refused.pop(key, None)

    async def revoke_key(self, key_id: str, *, at: float) -> KeyInfo:
        try:
            return await self._runner.run(partial(_in_revoke, key_id, at))
        finally:
            self._era += 1
            for key in [key for key, stored in self._live.items() if stored.info.id == key_id]:
                del self._live[key]

    async def keys(self) -> list[KeyInfo]:
        return await self._runner.run(_in_keys)

    async def organisations(self) -> list[str]:
        return await self._runner.run(_in_organisations)

    async def projects(self) -> list[ProjectInfo]:
        return await self._runner.run(_in_projects)

    async def _look_up(self, key: bytes) -> _Stored | None:
        """Whoever gets the lock first asks for everyone who waits behind it."""
        self._wanted.add(key)
        try:
            async with self._looking:
                if key in self._live or key in self._refused:
                    return self._live.get(key)
                self._wanted.discard(key)
                asked = [key, *islice(self._wanted, LOOKUP_BATCH - 1)]
                era = self._era
                found = await self._runner.run(partial(_in_look_up, asked))
                if era == self._era:
                    self._remember(asked, found)
                return found.get(key)
        finally:
            self._wanted.discard(key)

    def _remember(self, asked: Iterable[bytes], found: Mapping[bytes, _Stored]) -> None:
        self._wanted.difference_update(asked)
        for key in asked:
            if (stored := found.get(key)) is not None:
                self._live[key] = stored
            else:
                self._refused[key] = None
        while len(self._live) > REMEMBERED_KEYS:  # dicts keep order: the oldest goes
            del self._live[next(iter(self._live))]
        while len(self._refused) > REMEMBERED_REFUSALS:
            del self._refused[next(iter(self._refused))]

    def _in_ensure(
        self, organisation: str, project: str, plan: str, connection: sa.Connection
    ) -> Scopes:
        now = self._clock.now()
        organisation_id = connection.scalar(
            sa.select(ORGANISATIONS.c.id).where(ORGANISATIONS.c.name == organisation)
        )
        if organisation_id is None:
            organisation_id = self._ids.new("org")
            connection.execute(
                sa.insert(ORGANISATIONS).values(
                    id=organisation_id, name=organisation, plan=plan, created_at=now
                )
            )
        project_id = connection.scalar(
            sa.select(PROJECTS.c.id).where(
                PROJECTS.c.organisation_id == organisation_id, PROJECTS.c.name == project
            )
        )
        if project_id is None:
            project_id = self._ids.new("proj")
            connection.execute(
                sa.insert(PROJECTS).values(
                    id=project_id, organisation_id=organisation_id, name=project, created_at=now
                )
            )
        return Scopes(organisation_id, project_id, "")

    def _in_create(
        self, spec: KeySpec, key: bytes, redacted: str, connection: sa.Connection
    ) -> KeyInfo:
        home = connection.execute(
            sa.select(PROJECTS.c.id, ORGANISATIONS.c.plan)
            .join(ORGANISATIONS, ORGANISATIONS.c.id == PROJECTS.c.organisation_id)
            .where(ORGANISATIONS.c.name == spec.organisation, PROJECTS.c.name == spec.project)
        ).one_or_none()
        if home is None:
            raise InvalidRequest(
                f"There is no project {spec.project!r} in an organisation {spec.organisation!r}.",
                param="project",
            )
        require_sound(spec, find_plan(self._plans, home.plan))
        connection.execute(
            sa.insert(KEYS).values(
                id=spec.id,
                digest=key,
                project_id=home.id,
                name=spec.name,
                redacted=redacted,
                created_at=spec.created_at,
                expires_at=spec.expires_at,
                models=None if spec.models is None else sorted(spec.models),
                lanes=None if spec.lanes is None else sorted(spec.lanes),
                calls_per_minute=spec.calls_per_minute,
                max_output_tokens=spec.max_output_tokens,
            )
        )
        return _one_key(connection, spec.id)


def _in_revoke(key_id: str, at: float, connection: sa.Connection) -> KeyInfo:
    connection.execute(
        sa.update(KEYS)
        .where(KEYS.c.id == key_id, KEYS.c.revoked_at.is_(None))
        .values(revoked_at=at)
    )
    return _one_key(connection, key_id)


def _in_keys(connection: sa.Connection) -> list[KeyInfo]:
    return [_info(row) for row in connection.execute(_EVERY_KEY)]


def _in_organisations(connection: sa.Connection) -> list[str]:
    names = sa.select(ORGANISATIONS.c.name).order_by(ORGANISATIONS.c.sequence)
    return list(connection.scalars(names))


def _in_projects(connection: sa.Connection) -> list[ProjectInfo]:
    rows = connection.execute(
        sa.select(PROJECTS, ORGANISATIONS.c.name.label("organisation"))
        .join(ORGANISATIONS, ORGANISATIONS.c.id == PROJECTS.c.organisation_id)
        .order_by(PROJECTS.c.sequence)
    )
    return [
        ProjectInfo(row.organisation, row.name, Scopes(row.organisation_id, row.id, ""))
        for row in rows
    ]


def _in_look_up(asked: list[bytes], connection: sa.Connection) -> dict[bytes, _Stored]:
    """Those of the digests that may be used, but for their expiry."""
    rows = connection.execute(
        _EVERY_KEY.where(KEYS.c.digest.in_(asked), KEYS.c.revoked_at.is_(None))
    )
    return {row.digest: _Stored(_info(row), row.plan) for row in rows}


def _one_key(connection: sa.Connection, key_id: str) -> KeyInfo:
    row = connection.execute(_EVERY_KEY.where(KEYS.c.id == key_id)).one_or_none()
    if row is None:
        raise KeyError(key_id)
    return _info(row)


def _info(row: sa.Row[Any]) -> KeyInfo:
    return KeyInfo(
        id=row.id,
        name=row.name,
        redacted=row.redacted,
        organisation=row.organisation,
        project=row.project,
        scopes=Scopes(row.organisation_id, row.project_id, row.id),
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        models=None if row.models is None else frozenset(row.models),
        lanes=None if row.lanes is None else frozenset(map(Lane, row.lanes)),
        calls_per_minute=row.calls_per_minute,
        max_output_tokens=row.max_output_tokens,
    )
