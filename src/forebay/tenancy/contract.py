"""Organisations, projects and API keys: who is calling.

A key is `fbk_live_` + 32 random characters + a 6-character checksum; only its HMAC-SHA-256 under
this installation's pepper is stored, so a key is shown once, at its creation.

Invariants
- A key that fails its checksum is refused without touching the store.
- Missing, malformed, unknown, expired and revoked keys get the same error.
- L14 What is read for organisation A never belongs to B.

Not here: money and caps (`forebay.ledger`; an account exists before its key is visible), calls per
minute (`forebay.admission`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from forebay.core.job import Lane
from forebay.core.principal import Principal, Scopes


@dataclass(frozen=True, slots=True)
class Plan:
    """What an organisation may do, and its weight in the fair queue."""

    name: str
    weight: int
    lanes: frozenset[Lane]


@dataclass(frozen=True, slots=True)
class KeySpec:
    """A key to create. None in `models` and `lanes`: all that the plan allows."""

    id: str
    name: str
    organisation: str
    project: str
    created_at: float
    expires_at: float | None = None
    models: frozenset[str] | None = None
    lanes: frozenset[Lane] | None = None
    calls_per_minute: int | None = None
    max_output_tokens: int | None = None


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
    calls_per_minute: int | None
    max_output_tokens: int | None


@dataclass(frozen=True, slots=True)
class ProjectInfo:
    """A project of an organisation; `scopes.key_id` is empty."""

    organisation: str
    project: str
    scopes: Scopes


class Tenancy(ABC):
    """One per process; `authenticate` is on the hot path and must not wait for a store when warm."""

    @abstractmethod
    async def authenticate(self, secret: str) -> Principal:
        """Who presents this key. Raises InvalidKey, saying no more than the key's redacted form."""

    @abstractmethod
    async def ensure(self, organisation: str, project: str, *, plan: str) -> Scopes:
        """Create the organisation and project if missing; their ids (`key_id` is empty)."""

    @abstractmethod
    async def create_key(self, spec: KeySpec, secret: str) -> KeyInfo:
        """Store the key's digest; it works when this returns."""

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
