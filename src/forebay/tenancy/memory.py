"""Tenancy in memory: the specification that other implementations are compared with.

No verb awaits, so each runs to completion on the event loop: that is its atomicity. What a process
forgets at its end is gone, keys too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from forebay.core.clock import Clock, IdSource
from forebay.core.errors import InvalidRequest
from forebay.core.principal import Principal, Scopes
from forebay.tenancy.contract import KeyInfo, KeySpec, Plan, ProjectInfo, Tenancy
from forebay.tenancy.keys import DIGEST_PURPOSE, check, derive, digest, redact, refusal
from forebay.tenancy.settings import find_plan, grant, require_name, require_sound


@dataclass(slots=True)
class _Organisation:
    id: str
    plan: str
    projects: dict[str, str]  # name → id


class MemoryTenancy(Tenancy):
    """Organisations by name in the order of their making, keys by digest."""

    def __init__(
        self, *, clock: Clock, ids: IdSource, plans: Mapping[str, Plan], pepper: bytes
    ) -> None:
        self._clock = clock
        self._ids = ids
        self._plans = plans
        self._digest_key = derive(pepper, DIGEST_PURPOSE)
        self._organisations: dict[str, _Organisation] = {}
        self._projects: list[ProjectInfo] = []
        self._keys: dict[bytes, KeyInfo] = {}

    async def authenticate(self, secret: str) -> Principal:
        if not check(secret):
            raise refusal(secret)
        info = self._keys.get(digest(secret, self._digest_key))
        if info is None or info.revoked_at is not None:
            raise refusal(secret)
        if info.expires_at is not None and info.expires_at <= self._clock.now():
            raise refusal(secret)
        return grant(info, self._organisations[info.organisation].plan, self._plans)

    async def ensure(self, organisation: str, project: str, *, plan: str) -> Scopes:
        require_name(organisation, param="organisation")
        require_name(project, param="project")
        find_plan(self._plans, plan)
        if organisation not in self._organisations:
            self._organisations[organisation] = _Organisation(self._ids.new("org"), plan, {})
        owner = self._organisations[organisation]
        if project not in owner.projects:
            owner.projects[project] = self._ids.new("proj")
            scopes = Scopes(owner.id, owner.projects[project], "")
            self._projects.append(ProjectInfo(organisation, project, scopes))
        return Scopes(owner.id, owner.projects[project], "")

    async def create_key(self, spec: KeySpec, secret: str) -> KeyInfo:
        if not check(secret):
            raise ValueError("a key's secret is made by make_key")
        owner = self._organisations.get(spec.organisation)
        if owner is None or spec.project not in owner.projects:
            raise InvalidRequest(
                f"There is no project {spec.project!r} in an organisation {spec.organisation!r}.",
                param="project",
            )
        require_sound(spec, find_plan(self._plans, owner.plan))
        key = digest(secret, self._digest_key)
        if key in self._keys or any(info.id == spec.id for info in self._keys.values()):
            raise ValueError(f"the key {spec.id} exists already")
        scopes = Scopes(owner.id, owner.projects[spec.project], spec.id)
        self._keys[key] = _describe(spec, scopes, redact(secret))
        return self._keys[key]

    async def revoke_key(self, key_id: str, *, at: float) -> KeyInfo:
        for key, info in self._keys.items():
            if info.id == key_id:
                if info.revoked_at is None:
                    self._keys[key] = replace(info, revoked_at=at)
                return self._keys[key]
        raise KeyError(key_id)

    async def keys(self) -> list[KeyInfo]:
        return list(self._keys.values())

    async def organisations(self) -> list[str]:
        return list(self._organisations)

    async def projects(self) -> list[ProjectInfo]:
        return list(self._projects)


def _describe(spec: KeySpec, scopes: Scopes, redacted: str) -> KeyInfo:
    """A key just made to this specification."""
    return KeyInfo(
        id=spec.id,
        name=spec.name,
        redacted=redacted,
        organisation=spec.organisation,
        project=spec.project,
        scopes=scopes,
        created_at=spec.created_at,
        expires_at=spec.expires_at,
        revoked_at=None,
        models=spec.models,
        lanes=spec.lanes,
        calls_per_minute=spec.calls_per_minute,
        max_output_tokens=spec.max_output_tokens,
    )
