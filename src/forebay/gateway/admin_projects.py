"""Projects of the admin API, with their keys, rate limits and service accounts.

Not here: what becomes of them (`forebay.pipeline`), their spend (`admin_spend.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from forebay.core.errors import InvalidRequest, NotFound
from forebay.gateway.admin import Asked, Operation, seconds
from forebay.gateway.admin_pages import page
from forebay.gateway.admin_schema import (
    MAX_RATE,
    AccountBody,
    AccountKeyBody,
    AccountUpdate,
    Deleted,
    KeyAccount,
    KeyListing,
    KeyOwner,
    Listing,
    Page,
    ProjectBody,
    ProjectListing,
    RateBody,
    RateListing,
    WireAccount,
    WireAccountKey,
    WireKey,
    WireNewAccount,
    WireProject,
    WireRate,
)
from forebay.pipeline.admin_projects import ModelLimits
from forebay.tenancy.contract import KeyInfo, ProjectInfo, ServiceAccount

PROJECTS = "/v1/organization/projects"
_PROJECT = PROJECTS + "/{project_id}"
_KEYS = _PROJECT + "/api_keys"
_KEY = _KEYS + "/{api_key_id}"
_RATES = _PROJECT + "/rate_limits"
# A model's id may have slashes.
_RATE = _RATES + "/{rate_limit_id:path}"
_ACCOUNTS = _PROJECT + "/service_accounts"
_ACCOUNT = _ACCOUNTS + "/{service_account_id}"
_RATE_PREFIX = "rl-"
_RATE_FIELDS = {
    "requests_per_minute": "max_requests_per_1_minute",
    "tokens_per_minute": "max_tokens_per_1_minute",
    "batch_input_tokens_per_day": "batch_1_day_max_input_tokens",
}


async def list_projects(asked: Asked) -> Page[WireProject]:
    found = await asked.administration.projects.list(archived=asked.query.include_archived)
    return page(found, asked.query, _project, lambda info: info.scopes.project_id)


async def create_project(asked: Asked) -> WireProject:
    return _project(await asked.administration.projects.create(asked.body.name))


async def get_project(asked: Asked) -> WireProject:
    return _project(await asked.administration.projects.one(asked.path["project_id"]))


async def rename_project(asked: Asked) -> WireProject:
    renamed = asked.administration.projects.rename(asked.path["project_id"], asked.body.name)
    return _project(await renamed)


async def archive_project(asked: Asked) -> WireProject:
    return _project(await asked.administration.projects.archive(asked.path["project_id"]))


async def list_keys(asked: Asked) -> Page[WireKey]:
    administration, project_id = asked.administration, asked.path["project_id"]
    project = await administration.projects.one(project_id)
    accounts = await administration.projects.accounts(project_id)
    found = await administration.keys.of_project(project_id)
    shown = found if asked.query.owner_project_access in ("any", _access(project)) else []
    return page(
        shown, asked.query, lambda info: _key(info, project, accounts), lambda info: info.id
    )


async def get_key(asked: Asked) -> WireKey:
    administration, project_id = asked.administration, asked.path["project_id"]
    info = await administration.keys.one(project_id, asked.path["api_key_id"])
    project = await administration.projects.one(project_id)
    return _key(info, project, await administration.projects.accounts(project_id))


async def delete_key(asked: Asked) -> Deleted:
    key_id = asked.path["api_key_id"]
    await asked.administration.keys.delete(asked.path["project_id"], key_id)
    return Deleted(key_id, "organization.project.api_key.deleted")


async def list_rates(asked: Asked) -> Page[WireRate]:
    found = await asked.administration.projects.limits(asked.path["project_id"])
    return page(found, asked.query, _rate, lambda row: _RATE_PREFIX + row.model)


async def update_rate(asked: Asked) -> WireRate:
    id_, body = asked.path["rate_limit_id"], asked.body
    projects = asked.administration.projects
    if not id_.startswith(_RATE_PREFIX):
        await projects.one(asked.path["project_id"])
        raise NotFound("There is no such rate limit.")
    wanted = {
        name: None if value == MAX_RATE else value
        for name, sent in _RATE_FIELDS.items()
        if (value := getattr(body, sent)) is not None
    }
    model = id_.removeprefix(_RATE_PREFIX)
    try:
        return _rate(await projects.limit(asked.path["project_id"], model, **wanted))
    except InvalidRequest as fault:
        if (sent := _RATE_FIELDS.get(fault.param or "")) is None:
            raise
        said = fault.message.replace(str(fault.param), sent, 1)
        raise InvalidRequest(said, param=sent, code="integer_above_max_value") from None


async def list_accounts(asked: Asked) -> Page[WireAccount]:
    found = await asked.administration.projects.accounts(asked.path["project_id"])
    return page(found, asked.query, _account, lambda account: account.id)


async def create_account(asked: Asked) -> WireNewAccount:
    projects, project_id, body = (
        asked.administration.projects,
        asked.path["project_id"],
        asked.body,
    )
    account = await projects.create_account(project_id, body.name)
    key = None
    if not body.create_service_account_only:
        made = await projects.create_account_key(
            project_id, account.id, body.name, body.expires_in_seconds
        )
        key = _account_key(made)
    return WireNewAccount(account.id, account.name, int(account.created_at), key)


async def get_account(asked: Asked) -> WireAccount:
    return _account(await asked.administration.projects.account(*_account_path(asked)))


async def update_account(asked: Asked) -> WireAccount:
    projects = asked.administration.projects
    if asked.body.name is None:
        return await get_account(asked)
    return _account(await projects.rename_account(*_account_path(asked), asked.body.name))


async def delete_account(asked: Asked) -> Deleted:
    await asked.administration.projects.delete_account(*_account_path(asked))
    return Deleted(asked.path["service_account_id"], "organization.project.service_account.deleted")


async def create_account_key(asked: Asked) -> WireAccountKey:
    made = await asked.administration.projects.create_account_key(
        *_account_path(asked), asked.body.name or "", asked.body.expires_in_seconds
    )
    return _account_key(made)


OPERATIONS = (
    Operation("GET", PROJECTS, "List projects", Page[WireProject], list_projects,
              query=ProjectListing),
    Operation("POST", PROJECTS, "Create a project", WireProject, create_project, ProjectBody),
    Operation("GET", _PROJECT, "One project", WireProject, get_project),
    Operation("POST", _PROJECT, "Rename a project", WireProject, rename_project, ProjectBody),
    Operation("POST", _PROJECT + "/archive", "Archive a project", WireProject, archive_project),
    Operation("GET", _KEYS, "List the keys of a project", Page[WireKey], list_keys,
              query=KeyListing),
    Operation("GET", _KEY, "One key of a project", WireKey, get_key),
    Operation("DELETE", _KEY, "Revoke a key of a project", Deleted, delete_key),
    Operation("GET", _RATES, "List the rate limits of a project", Page[WireRate], list_rates,
              query=RateListing),
    Operation("POST", _RATE, "Change a rate limit of a project", WireRate, update_rate, RateBody),
    Operation("GET", _ACCOUNTS, "List service accounts", Page[WireAccount], list_accounts,
              query=Listing),
    Operation("POST", _ACCOUNTS, "Create a service account", WireNewAccount, create_account,
              AccountBody),
    Operation("GET", _ACCOUNT, "One service account", WireAccount, get_account),
    Operation("POST", _ACCOUNT, "Rename a service account", WireAccount, update_account,
              AccountUpdate),
    Operation("DELETE", _ACCOUNT, "Delete a service account", Deleted, delete_account),
    Operation("POST", _ACCOUNT + "/api_keys", "Create a key of a service account", WireAccountKey,
              create_account_key, AccountKeyBody),
)  # fmt: skip


def _account_path(asked: Asked) -> tuple[str, str]:
    return asked.path["project_id"], asked.path["service_account_id"]


def _project(info: ProjectInfo) -> WireProject:
    return WireProject(
        id=info.scopes.project_id,
        name=info.project,
        created_at=int(info.created_at),
        archived_at=seconds(info.archived_at),
        status="active" if info.archived_at is None else "archived",
    )


def _access(project: ProjectInfo) -> Literal["active", "inactive"]:
    return "active" if project.archived_at is None else "inactive"


def _key(info: KeyInfo, project: ProjectInfo, accounts: Sequence[ServiceAccount]) -> WireKey:
    owner = next((each for each in accounts if each.id == info.service_account_id), None)
    account = None if owner is None else KeyAccount(owner.id, owner.name, int(owner.created_at))
    return WireKey(
        id=info.id,
        name=info.name,
        redacted_value=info.redacted,
        created_at=int(info.created_at),
        expires_at=seconds(info.expires_at),
        owner=KeyOwner("user" if account is None else "service_account", account),
        owner_project_access=_access(project),
    )


def _rate(row: ModelLimits) -> WireRate:
    limits = row.effective
    return WireRate(
        id=_RATE_PREFIX + row.model,
        model=row.model,
        max_requests_per_1_minute=limits.requests_per_minute or MAX_RATE,
        max_tokens_per_1_minute=limits.tokens_per_minute or MAX_RATE,
        batch_1_day_max_input_tokens=limits.batch_input_tokens_per_day or MAX_RATE,
    )


def _account(account: ServiceAccount) -> WireAccount:
    return WireAccount(account.id, account.name, int(account.created_at))


def _account_key(made: dict[str, Any]) -> WireAccountKey:
    return WireAccountKey(
        id=made["id"],
        name=made["name"],
        value=made["key"],
        created_at=int(made["created_at"]),
        expires_at=seconds(made["expires_at"]),
    )
