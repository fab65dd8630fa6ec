"""Audit logs and admin keys of the admin API: who may change things, and who did.

Not here: what is written down (`forebay.pipeline` does, with each change).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from forebay.core.errors import NotFound
from forebay.gateway.admin import Asked, Operation, seconds
from forebay.gateway.admin_pages import page, require_id
from forebay.gateway.admin_schema import (
    AdminKeyBody,
    AdminKeyListing,
    AdminKeyOwner,
    Body,
    Deleted,
    Limit,
    Page,
    WireAdminKey,
)
from forebay.tenancy.contract import AdminKeyInfo, Change

_ADMIN_KEYS = "/v1/organization/admin_api_keys"
_ADMIN_KEY = _ADMIN_KEYS + "/{key_id}"

Second = Annotated[int, Meta(ge=0, le=100_000_000_000)]
# Those of OpenAI's events that happen here.
Event = Literal[
    "api_key.created",
    "api_key.updated",
    "api_key.deleted",
    "organization.updated",
    "project.created",
    "project.updated",
    "project.archived",
    "rate_limit.updated",
    "service_account.created",
    "service_account.updated",
    "service_account.deleted",
]


class AuditListing(Body, frozen=True):
    """Which entries, newest first."""

    after: str | None = None
    limit: Limit = 20
    event_types: list[Event] | None = None
    project_ids: list[str] | None = None
    actor_ids: list[str] | None = None
    resource_ids: list[str] | None = None
    gt: Second | None = field(default=None, name="effective_at[gt]")
    gte: Second | None = field(default=None, name="effective_at[gte]")
    lt: Second | None = field(default=None, name="effective_at[lt]")
    lte: Second | None = field(default=None, name="effective_at[lte]")


class Detail(msgspec.Struct, frozen=True):
    """What was changed, and what was asked for."""

    id: str
    data: dict[str, Any] | UnsetType = UNSET
    changes_requested: dict[str, Any] | UnsetType = UNSET


class ActorKey(msgspec.Struct, frozen=True):
    """The admin key that was used."""

    id: str
    type: Literal["user"] = "user"


class ActorUser(msgspec.Struct, frozen=True):
    """The operator, at the machine that Forebay runs on."""

    id: Literal["operator"] = "operator"


class ActorSession(msgspec.Struct, frozen=True):
    """The command line."""

    user: ActorUser = ActorUser()


class Actor(msgspec.Struct, frozen=True):
    """Who did it."""

    type: Literal["api_key", "session"]
    api_key: ActorKey | None = None
    session: ActorSession | None = None


class AuditProject(msgspec.Struct, frozen=True):
    """Where."""

    id: str
    name: str


class AuditLog(msgspec.Struct, frozen=True):
    """One thing that administration did. The details are under its type's name."""

    id: str
    type: Event
    effective_at: int
    actor: Actor
    project: AuditProject | UnsetType = UNSET
    api_key_created: Detail | UnsetType = field(default=UNSET, name="api_key.created")
    api_key_updated: Detail | UnsetType = field(default=UNSET, name="api_key.updated")
    api_key_deleted: Detail | UnsetType = field(default=UNSET, name="api_key.deleted")
    organization_updated: Detail | UnsetType = field(default=UNSET, name="organization.updated")
    project_created: Detail | UnsetType = field(default=UNSET, name="project.created")
    project_updated: Detail | UnsetType = field(default=UNSET, name="project.updated")
    project_archived: Detail | UnsetType = field(default=UNSET, name="project.archived")
    rate_limit_updated: Detail | UnsetType = field(default=UNSET, name="rate_limit.updated")
    account_created: Detail | UnsetType = field(default=UNSET, name="service_account.created")
    account_updated: Detail | UnsetType = field(default=UNSET, name="service_account.updated")
    account_deleted: Detail | UnsetType = field(default=UNSET, name="service_account.deleted")


_DETAILS = {each.encode_name: each.name for each in msgspec.structs.fields(AuditLog)}


async def list_changes(asked: Asked) -> Page[AuditLog]:
    query: AuditListing = asked.query
    if query.after is not None:
        require_id(query.after, "after")
    starts = [
        at for at in (query.gte, None if query.gt is None else query.gt + 1) if at is not None
    ]
    ends = [at for at in (query.lt, None if query.lte is None else query.lte + 1) if at is not None]
    reports = asked.administration.reports
    found = await reports.changes(
        types=_several(query.event_types),
        project_ids=_several(query.project_ids),
        actor_ids=_several(query.actor_ids),
        subject_ids=_several(query.resource_ids),
        since=max(starts, default=None),
        until=min(ends, default=None),
        after=query.after,
        limit=query.limit + 1,
    )
    projects = await asked.administration.projects.list(archived=True)
    names = {info.scopes.project_id: info.project for info in projects}
    shown = [_log(change, names) for change in found[: query.limit]]
    return Page(
        data=shown,
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
        has_more=len(found) > query.limit,
    )


async def list_keys(asked: Asked) -> Page[WireAdminKey]:
    found = await asked.administration.keys.admin_keys()
    return page(found, asked.query, _key, lambda info: info.id)


async def create_key(asked: Asked) -> WireAdminKey:
    made = await asked.administration.keys.create_own_admin(
        asked.body.name, asked.body.expires_in_seconds
    )
    secret = made.pop("key")
    return msgspec.structs.replace(_key(AdminKeyInfo(**made)), value=secret)


async def get_key(asked: Asked) -> WireAdminKey:
    for info in await asked.administration.keys.admin_keys():
        if info.id == asked.path["key_id"]:
            return _key(info)
    raise NotFound("There is no such admin key.")


async def delete_key(asked: Asked) -> Deleted:
    await asked.administration.keys.revoke_admin(asked.path["key_id"])
    return Deleted(asked.path["key_id"], "organization.admin_api_key.deleted")


OPERATIONS = (
    Operation("GET", "/v1/organization/audit_logs", "List what administration did",
              Page[AuditLog], list_changes, query=AuditListing),
    Operation("GET", _ADMIN_KEYS, "List admin keys", Page[WireAdminKey], list_keys,
              query=AdminKeyListing),
    Operation("POST", _ADMIN_KEYS, "Create an admin key", WireAdminKey, create_key, AdminKeyBody),
    Operation("GET", _ADMIN_KEY, "One admin key", WireAdminKey, get_key),
    Operation("DELETE", _ADMIN_KEY, "Revoke an admin key", Deleted, delete_key),
)  # fmt: skip


def _several(values: list[Any] | None) -> tuple[str, ...] | None:
    return None if values is None else tuple(values)


def _log(change: Change, names: dict[str, str]) -> AuditLog:
    if change.actor_id:
        actor = Actor("api_key", api_key=ActorKey(change.actor_id))
    else:
        actor = Actor("session", session=ActorSession())
    project_id = change.project_id
    detail = Detail(change.subject_id, **change.details)
    return AuditLog(
        id=change.id,
        type=change.type,  # type: ignore[arg-type]
        effective_at=int(change.at),
        actor=actor,
        project=UNSET if project_id is None else AuditProject(project_id, names[project_id]),
        **{_DETAILS[change.type]: detail},
    )


def _key(info: AdminKeyInfo) -> WireAdminKey:
    return WireAdminKey(
        id=info.id,
        name=info.name,
        redacted_value=info.redacted,
        created_at=int(info.created_at),
        expires_at=seconds(info.expires_at),
        owner=AdminKeyOwner(info.organisation_id, info.organisation),
    )
