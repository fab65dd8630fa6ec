"""Tenancy in memory: the specification that other implementations are compared with.

No verb awaits, so each runs to completion on the event loop: that is its atomicity. What a process
forgets at its end is gone, keys too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from forebay.core.clock import Clock, IdSource
from forebay.core.principal import Principal, RateLimits, Scopes
from forebay.tenancy.contract import (
    AdminKeyInfo,
    AdminKeys,
    Directory,
    KeyInfo,
    KeySpec,
    Plan,
    ProjectInfo,
    ProjectLimits,
    ServiceAccount,
    Tenancy,
)
from forebay.tenancy.keys import (
    ADMIN_KEY,
    API_KEY,
    check,
    derive,
    digest,
    outlived,
    redact,
    refusal,
)
from forebay.tenancy.settings import (
    describe,
    find_plan,
    grant,
    granted_plan,
    limits_of,
    name_taken,
    no_organisation,
    no_project,
    require_account,
    require_limits,
    require_name,
    require_open,
    require_rotation,
    require_sound,
    with_limits,
)


@dataclass(slots=True)
class _Organisation:
    id: str
    plan: str
    projects: dict[str, str] = field(default_factory=dict)  # name → id


@dataclass(slots=True)
class _Secret:
    key_id: str
    until: float | None = None  # a rotated one's end


class MemoryTenancy(Tenancy, Directory):
    """Organisations by name in the order of their making, all else by id, secrets by digest."""

    def __init__(
        self, *, clock: Clock, ids: IdSource, plans: Mapping[str, Plan], pepper: bytes
    ) -> None:
        self._clock = clock
        self._ids = ids
        self._plans = plans
        self._digest_key = derive(pepper, API_KEY.purpose)
        self._organisations: dict[str, _Organisation] = {}
        self._projects: dict[str, ProjectInfo] = {}
        self._limits: dict[str, ProjectLimits] = {}
        self._keys: dict[str, KeyInfo] = {}
        self._secrets: dict[bytes, _Secret] = {}
        self._accounts: dict[str, ServiceAccount] = {}

    async def authenticate(self, secret: str) -> Principal:
        if not check(secret):
            raise refusal(secret)
        now = self._clock.now()
        known = self._secrets.get(digest(secret, self._digest_key))
        if known is None or (known.until is not None and known.until <= now):
            raise refusal(secret)
        if not self._works(known.key_id):
            raise refusal(secret)
        return self._granted(known.key_id)

    async def principal(self, key_id: str) -> Principal:
        if not self._works(key_id):
            raise outlived(key_id)
        return self._granted(key_id)

    def _works(self, key_id: str) -> bool:
        info = self._keys.get(key_id)
        if info is None or info.revoked_at is not None:
            return False
        if info.expires_at is not None and info.expires_at <= self._clock.now():
            return False
        return self._projects[info.scopes.project_id].archived_at is None

    def _granted(self, key_id: str) -> Principal:
        info = self._keys[key_id]
        plan = granted_plan(self._plans, self._organisations[info.organisation].plan)
        return grant(info, plan, self._limits[info.scopes.project_id])

    async def ensure(self, organisation: str, project: str, *, plan: str) -> Scopes:
        require_name(organisation, param="organisation")
        require_name(project, param="project")
        find_plan(self._plans, plan)
        if organisation not in self._organisations:
            self._organisations[organisation] = _Organisation(self._ids.new("org"), plan)
        owner = self._organisations[organisation]
        if project not in owner.projects:
            project_id = self._ids.new("proj")
            owner.projects[project] = project_id
            scopes = Scopes(owner.id, project_id, "")
            self._projects[project_id] = ProjectInfo(
                organisation, project, scopes, self._clock.now(), owner.plan
            )
            self._limits[project_id] = ProjectLimits()
        return Scopes(owner.id, owner.projects[project], "")

    async def plan(self, organisation: str) -> Plan:
        if organisation not in self._organisations:
            raise no_organisation(organisation)
        return granted_plan(self._plans, self._organisations[organisation].plan)

    async def create_key(self, spec: KeySpec, secret: str) -> KeyInfo:
        if not check(secret):
            raise ValueError("a key's secret is made by make_key")
        home = self._home(spec)
        require_open(home)
        if spec.service_account_id is not None:
            require_account(self._accounts.get(spec.service_account_id), home)
        plan = self._organisations[home.organisation].plan
        require_sound(spec, find_plan(self._plans, plan))
        key = digest(secret, self._digest_key)
        if key in self._secrets or spec.id in self._keys:
            raise ValueError(f"the key {spec.id} exists already")
        self._secrets[key] = _Secret(spec.id)
        self._keys[spec.id] = describe(spec, home, redact(secret))
        return self._keys[spec.id]

    def _home(self, spec: KeySpec) -> ProjectInfo:
        owner = self._organisations.get(spec.organisation)
        project_id = spec.project_id
        if project_id is None and owner is not None:
            project_id = owner.projects.get(spec.project)
        if project_id not in self._projects:
            raise no_project(spec)
        return self._projects[project_id]

    async def rotate_key(
        self, key_id: str, secret: str, *, at: float, overlap_seconds: float
    ) -> KeyInfo:
        if not check(secret):
            raise ValueError("a key's secret is made by make_key")
        require_rotation(self._keys[key_id], at, overlap_seconds)
        key = digest(secret, self._digest_key)
        if key in self._secrets:
            raise ValueError("this secret is in use already")
        mine = {old: each for old, each in self._secrets.items() if each.key_id == key_id}
        for old, each in mine.items():
            if each.until is not None:
                del self._secrets[old]
            else:
                self._secrets[old] = _Secret(key_id, until=at + overlap_seconds)
        self._secrets[key] = _Secret(key_id)
        self._keys[key_id] = replace(
            self._keys[key_id], redacted=redact(secret), rotated_until=at + overlap_seconds
        )
        return self._keys[key_id]

    async def revoke_key(self, key_id: str, *, at: float) -> KeyInfo:
        info = self._keys[key_id]
        if info.revoked_at is None:
            self._keys[key_id] = replace(info, revoked_at=at)
        return self._keys[key_id]

    async def keys(self) -> list[KeyInfo]:
        return list(self._keys.values())

    async def organisations(self) -> list[str]:
        return list(self._organisations)

    async def projects(self) -> list[ProjectInfo]:
        return list(self._projects.values())

    async def set_plan(self, organisation: str, plan: str) -> Plan:
        found = find_plan(self._plans, plan)
        if organisation not in self._organisations:
            raise no_organisation(organisation)
        self._organisations[organisation].plan = plan
        for project_id in self._organisations[organisation].projects.values():
            self._projects[project_id] = replace(self._projects[project_id], plan=plan)
        return found

    async def rename_project(self, project_id: str, name: str) -> ProjectInfo:
        require_name(name, param="name")
        info = self._projects[project_id]
        require_open(info)
        named = self._organisations[info.organisation].projects
        if named.get(name, project_id) != project_id:
            raise name_taken(name, info.organisation)
        del named[info.project]
        named[name] = project_id
        self._projects[project_id] = replace(info, project=name)
        for key in self._keys.values():
            if key.scopes.project_id == project_id:
                self._keys[key.id] = replace(key, project=name)
        return self._projects[project_id]

    async def archive_project(self, project_id: str, *, at: float) -> ProjectInfo:
        info = self._projects[project_id]
        if info.archived_at is None:
            self._projects[project_id] = replace(info, archived_at=at)
        return self._projects[project_id]

    async def project_limits(self, project_id: str) -> ProjectLimits:
        return self._limits[project_id]

    async def set_limits(
        self, project_id: str, limits: RateLimits, *, model: str | None = None
    ) -> ProjectLimits:
        info = self._projects[project_id]
        require_open(info)
        before = self._limits[project_id]
        plan = granted_plan(self._plans, self._organisations[info.organisation].plan)
        require_limits(limits, plan, limits_of(before, model))
        self._limits[project_id] = with_limits(before, limits, model)
        return self._limits[project_id]

    async def create_service_account(
        self, account_id: str, project_id: str, name: str, *, at: float
    ) -> ServiceAccount:
        require_name(name, param="name")
        info = self._projects[project_id]
        require_open(info)
        if account_id in self._accounts:
            raise ValueError(f"the service account {account_id} exists already")
        self._accounts[account_id] = ServiceAccount(account_id, name, info.scopes, at)
        return self._accounts[account_id]

    async def rename_service_account(self, account_id: str, name: str) -> ServiceAccount:
        require_name(name, param="name")
        account = self._accounts[account_id]
        if account.deleted_at is not None:
            raise KeyError(account_id)
        self._accounts[account_id] = replace(account, name=name)
        return self._accounts[account_id]

    async def delete_service_account(self, account_id: str, *, at: float) -> ServiceAccount:
        account = self._accounts[account_id]
        if account.deleted_at is None:
            self._accounts[account_id] = replace(account, deleted_at=at)
        for key in list(self._keys.values()):
            if key.service_account_id == account_id:
                await self.revoke_key(key.id, at=at)
        return self._accounts[account_id]

    async def service_accounts(self) -> list[ServiceAccount]:
        return [each for each in self._accounts.values() if each.deleted_at is None]


class MemoryAdminKeys(AdminKeys):
    """Admin keys by digest, in the order of their making."""

    def __init__(self, *, clock: Clock, pepper: bytes) -> None:
        self._clock = clock
        self._digest_key = derive(pepper, ADMIN_KEY.purpose)
        self._keys: dict[bytes, AdminKeyInfo] = {}

    async def authenticate(self, secret: str) -> AdminKeyInfo:
        if not check(secret, ADMIN_KEY):
            raise refusal(secret, ADMIN_KEY)
        info = self._keys.get(digest(secret, self._digest_key))
        if info is None or info.deleted_at is not None:
            raise refusal(secret, ADMIN_KEY)
        if info.expires_at is not None and info.expires_at <= self._clock.now():
            raise refusal(secret, ADMIN_KEY)
        return info

    async def create(self, info: AdminKeyInfo, secret: str) -> AdminKeyInfo:
        if not check(secret, ADMIN_KEY):
            raise ValueError("a key's secret is made by make_key")
        require_name(info.name, param="name")
        key = digest(secret, self._digest_key)
        if key in self._keys or any(each.id == info.id for each in self._keys.values()):
            raise ValueError(f"the key {info.id} exists already")
        self._keys[key] = replace(info, redacted=redact(secret))
        return self._keys[key]

    async def delete(self, key_id: str, *, at: float) -> AdminKeyInfo:
        for key, info in self._keys.items():
            if info.id == key_id:
                if info.deleted_at is None:
                    self._keys[key] = replace(info, deleted_at=at)
                return self._keys[key]
        raise KeyError(key_id)

    async def keys(self) -> list[AdminKeyInfo]:
        return [info for info in self._keys.values() if info.deleted_at is None]
