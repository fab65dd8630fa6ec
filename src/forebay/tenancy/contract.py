"""Organisations, projects and their keys: who is calling, and who administers.

A key is a prefix + 32 random characters + a 6-character checksum; only its HMAC-SHA-256 under this
installation's pepper is stored, so a key is shown once, at its creation.

                create               rotate: a new secret, the old one works on for the overlap
    API key   ──────────▶ live ──┬──▶ live
                                 └──▶ refused for good: revoked, expired, its project archived

Invariants
- A key that fails its checksum is refused without touching the store.
- Missing, malformed, unknown, expired and revoked keys get the same error.
- An API key (`fbk_live_…`) is never taken for an admin key (`fba_live_…`), nor the other way round.
- No limit of a key or a project is set above its organisation's plan. One that a lowered plan has
  left above itself stays as it is, and the plan's own limit holds all the same.
- What a verb changed holds for the next call that is authenticated.
- L14 What is read for organisation A never belongs to B.

Not here: money and caps (`forebay.ledger`; an account exists before its key is visible), counting
calls and tokens (`forebay.admission`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from forebay.core.job import Lane
from forebay.core.principal import UNLIMITED, Principal, RateLimits, Scopes


@dataclass(frozen=True, slots=True)
class Plan:
    """What an organisation may do, and its weight in the fair queue.

    `key_budget_nanos` is the monthly budget of a new key that is made without one of its own.
    """

    name: str
    weight: int
    lanes: frozenset[Lane]
    limits: RateLimits = UNLIMITED
    concurrent_calls: int | None = None
    max_output_tokens: int | None = None
    key_budget_nanos: int | None = None


@dataclass(frozen=True, slots=True)
class KeySpec:
    """A key to create. None in `models` and `lanes`: all that the plan allows.

    With a `project_id` the names say nothing: a project may be renamed at any time.
    """

    id: str
    name: str
    organisation: str
    project: str
    created_at: float
    expires_at: float | None = None
    models: frozenset[str] | None = None
    lanes: frozenset[Lane] | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    batch_input_tokens_per_day: int | None = None
    max_output_tokens: int | None = None
    service_account_id: str | None = None
    project_id: str | None = None

    @property
    def limits(self) -> RateLimits:
        return RateLimits(
            self.requests_per_minute, self.tokens_per_minute, self.batch_input_tokens_per_day
        )


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """A stored key; `redacted` is its visible start and end, never the secret."""

    id: str
    name: str
    redacted: str
    organisation: str
    project: str
    scopes: Scopes
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    models: frozenset[str] | None
    lanes: frozenset[Lane] | None
    limits: RateLimits
    max_output_tokens: int | None
    service_account_id: str | None
    rotated_until: float | None = None  # when the secret before the present one stops


@dataclass(frozen=True, slots=True)
class ProjectInfo:
    """A project of an organisation, with the name of its plan; `scopes.key_id` is empty. The keys
    of an archived one are refused."""

    organisation: str
    project: str
    scopes: Scopes
    created_at: float
    plan: str
    archived_at: float | None = None


@dataclass(frozen=True, slots=True)
class ProjectLimits:
    """What a project may use: in all, and of one model (by model id)."""

    own: RateLimits = UNLIMITED
    models: Mapping[str, RateLimits] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    """A named owner of keys within a project; `scopes.key_id` is empty."""

    id: str
    name: str
    scopes: Scopes
    created_at: float
    deleted_at: float | None = None


@dataclass(frozen=True, slots=True)
class AdminKeyInfo:
    """A key that administers one organisation."""

    id: str
    name: str
    redacted: str
    organisation: str
    organisation_id: str
    created_at: float
    expires_at: float | None = None
    deleted_at: float | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """What administration did. `actor_id` is the admin key's, or empty: the operator at the
    machine. `type` is OpenAI's name of the event; `details` is what was asked for."""

    id: str
    at: float
    organisation_id: str
    project_id: str | None
    actor_id: str
    type: str
    subject_id: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChangeQuery:
    """Which changes of one organisation; None means all. Times are half-open [since, until)."""

    organisation_id: str
    types: tuple[str, ...] | None = None
    project_ids: tuple[str, ...] | None = None
    actor_ids: tuple[str, ...] | None = None
    subject_ids: tuple[str, ...] | None = None
    since: float | None = None
    until: float | None = None
    after: str | None = None
    limit: int = 100


class Tenancy(ABC):
    """One per process; `authenticate` and `principal` are on the hot path and must not wait for a store
    when warm."""

    @abstractmethod
    async def authenticate(self, secret: str) -> Principal:
        """Who presents this key. Raises InvalidKey, saying no more than the key's redacted form."""

    @abstractmethod
    async def principal(self, key_id: str) -> Principal:
        """Who the key of this id is, for calls that run long after they were ordered. Raises InvalidKey
        exactly when `authenticate` would refuse the secret that the key has now."""

    @abstractmethod
    async def ensure(self, organisation: str, project: str, *, plan: str) -> Scopes:
        """Create the organisation and project if missing; their ids (`key_id` is empty)."""

    @abstractmethod
    async def plan(self, organisation: str) -> Plan:
        """What this organisation may do. Raises InvalidRequest if there is none of this name,
        NotAllowed if its plan is not configured any more."""

    @abstractmethod
    async def create_key(self, spec: KeySpec, secret: str) -> KeyInfo:
        """Store the key's digest; it works when this returns.

        Raises NotFound unless its service account is one of the project's, and not deleted.
        """

    @abstractmethod
    async def rotate_key(
        self, key_id: str, secret: str, *, at: float, overlap_seconds: float
    ) -> KeyInfo:
        """Give the key another secret; the one it had works on until the overlap ends.

        Id, limits and budget stay. A secret that was on its way out before is refused at once: a
        key has two at most. KeyError for an unknown id.
        """

    @abstractmethod
    async def revoke_key(self, key_id: str, *, at: float) -> KeyInfo:
        """From now on the key is refused. Idempotent; KeyError for an unknown id."""

    @abstractmethod
    async def keys(self) -> list[KeyInfo]:
        """All keys, oldest first."""

    @abstractmethod
    async def organisations(self) -> list[str]:
        """Names of all organisations, oldest first."""

    @abstractmethod
    async def projects(self) -> list[ProjectInfo]:
        """All projects, oldest first. Every organisation has at least one."""


class Directory(ABC):
    """Projects and who works in them: the administrator's side of the same store.

    An id that is not known is a KeyError.
    """

    @abstractmethod
    async def set_plan(self, organisation: str, plan: str) -> Plan:
        """Give the organisation of this name another plan. Raises InvalidRequest if there is no
        such organisation, or no such plan."""

    @abstractmethod
    async def rename_project(self, project_id: str, name: str) -> ProjectInfo:
        """Call it something else; another project of the organisation must not have the name."""

    @abstractmethod
    async def archive_project(self, project_id: str, *, at: float) -> ProjectInfo:
        """From now on its keys are refused, and it gets no new ones. For good; idempotent."""

    @abstractmethod
    async def project_limits(self, project_id: str) -> ProjectLimits:
        """What it may use."""

    @abstractmethod
    async def set_limits(
        self, project_id: str, limits: RateLimits, *, model: str | None = None
    ) -> ProjectLimits:
        """Limit a project, or its use of one model (by id).

        Raises InvalidRequest for what is changed and above the plan.
        """

    @abstractmethod
    async def create_service_account(
        self, account_id: str, project_id: str, name: str, *, at: float
    ) -> ServiceAccount:
        """A new owner of keys."""

    @abstractmethod
    async def rename_service_account(self, account_id: str, name: str) -> ServiceAccount:
        """Call it something else."""

    @abstractmethod
    async def delete_service_account(self, account_id: str, *, at: float) -> ServiceAccount:
        """It is listed no more, and its keys are revoked. Idempotent."""

    @abstractmethod
    async def service_accounts(self) -> list[ServiceAccount]:
        """All that are not deleted, oldest first."""


class AdminKeys(ABC):
    """Who administers an organisation. Few, and never on the path of a call."""

    @abstractmethod
    async def authenticate(self, secret: str) -> AdminKeyInfo:
        """Whose key this is. Raises InvalidKey, saying no more than its redacted form."""

    @abstractmethod
    async def create(self, info: AdminKeyInfo, secret: str) -> AdminKeyInfo:
        """Store its digest. KeyError for an unknown organisation; `redacted` is filled in here."""

    @abstractmethod
    async def delete(self, key_id: str, *, at: float) -> AdminKeyInfo:
        """From now on it is refused. Idempotent; KeyError for an unknown id."""

    @abstractmethod
    async def keys(self) -> list[AdminKeyInfo]:
        """All that are not deleted, oldest first."""


class Journal(ABC):
    """What administration did, by whom. Nothing is ever changed or taken out."""

    @abstractmethod
    async def record(self, change: Change) -> None:
        """Append it."""

    @abstractmethod
    async def changes(self, query: ChangeQuery) -> list[Change]:
        """Newest first; those after `query.after`. Where no change of this organisation's has that
        id, those with lower ids."""
