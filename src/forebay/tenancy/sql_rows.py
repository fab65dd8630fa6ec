"""Tenancy's statements: each function is one transaction of `sql.py`, or a part of one.

Not here: what is remembered between them, and the hashing of secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa

from forebay.core.clock import IdSource
from forebay.core.principal import UNLIMITED, RateLimits, Scopes
from forebay.tenancy.contract import (
    KeyInfo,
    KeySpec,
    Plan,
    ProjectInfo,
    ProjectLimits,
    ServiceAccount,
)
from forebay.tenancy.settings import (
    find_plan,
    granted_plan,
    limits_of,
    name_taken,
    no_organisation,
    no_project,
    require_account,
    require_limits,
    require_open,
    require_rotation,
    require_sound,
)
from forebay.tenancy.sql_tables import (
    EVERY_ACCOUNT,
    EVERY_KEY,
    EVERY_PROJECT,
    KEYS,
    MODEL_LIMITS,
    ORGANISATIONS,
    PROJECTS,
    ROTATED,
    SERVICE_ACCOUNTS,
    account_of,
    key_of,
    project_of,
    rate_values,
    rates_of,
)

_USABLE = EVERY_KEY.where(KEYS.c.revoked_at.is_(None), PROJECTS.c.archived_at.is_(None))


class Stored(NamedTuple):
    """What one secret stands for; `works_until` is its own end or its key's, the earlier one."""

    info: KeyInfo
    plan: str
    limits: ProjectLimits
    works_until: float | None


def look_up(asked: list[bytes], connection: sa.Connection) -> dict[bytes, Stored]:
    """Those of the digests that may be used, but for their expiry."""
    now = list(connection.execute(_USABLE.where(KEYS.c.digest.in_(asked))))
    before = list(
        connection.execute(
            _USABLE.add_columns(ROTATED.c.digest.label("old_digest"), ROTATED.c.works_until)
            .join(ROTATED, ROTATED.c.key_id == KEYS.c.id)
            .where(ROTATED.c.digest.in_(asked))
        )
    )
    models = _model_limits(connection, {row.project_id for row in (*now, *before)})
    found = {row.digest: _stored(row, models, row.expires_at) for row in now}
    for row in before:
        ends = [end for end in (row.works_until, row.expires_at) if end is not None]
        found[row.old_digest] = _stored(row, models, min(ends))
    return found


def look_up_id(key_id: str, connection: sa.Connection) -> Stored | None:
    """The secret that this key has now, if it may be used, but for its expiry."""
    row = connection.execute(_USABLE.where(KEYS.c.id == key_id)).one_or_none()
    if row is None:
        return None
    return _stored(row, _model_limits(connection, {row.project_id}), row.expires_at)


def ensure(
    organisation: str,
    project: str,
    plan: str,
    ids: IdSource,
    now: float,
    connection: sa.Connection,
) -> Scopes:
    """The ids of both, made if they are missing."""
    organisation_id = connection.scalar(
        sa.select(ORGANISATIONS.c.id).where(ORGANISATIONS.c.name == organisation)
    )
    if organisation_id is None:
        organisation_id = ids.new("org")
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
        project_id = ids.new("proj")
        connection.execute(
            sa.insert(PROJECTS).values(
                id=project_id, organisation_id=organisation_id, name=project, created_at=now
            )
        )
    return Scopes(organisation_id, project_id, "")


def plan_name(organisation: str, connection: sa.Connection) -> str:
    """The name of the plan of the organisation of this name."""
    found: str | None = connection.scalar(
        sa.select(ORGANISATIONS.c.plan).where(ORGANISATIONS.c.name == organisation)
    )
    if found is None:
        raise no_organisation(organisation)
    return found


def set_plan(organisation: str, plan: str, connection: sa.Connection) -> None:
    """What the organisation of this name may do from now on."""
    changed = connection.execute(
        sa.update(ORGANISATIONS).where(ORGANISATIONS.c.name == organisation).values(plan=plan)
    )
    if not changed.rowcount:
        raise no_organisation(organisation)


def create_key(
    spec: KeySpec,
    digest: bytes,
    redacted: str,
    plans: Mapping[str, Plan],
    connection: sa.Connection,
) -> KeyInfo:
    """Store a key. IntegrityError if its id or its secret is taken."""
    home = _home(connection, spec)
    require_open(project_of(home))
    if spec.service_account_id is not None:
        account = _find_account(connection, spec.service_account_id)
        require_account(account, project_of(home))
    require_sound(spec, find_plan(plans, home.plan))
    _require_unused(connection, digest, f"the key {spec.id} exists already")
    connection.execute(
        sa.insert(KEYS).values(
            id=spec.id,
            digest=digest,
            project_id=home.id,
            name=spec.name,
            redacted=redacted,
            created_at=spec.created_at,
            expires_at=spec.expires_at,
            models=None if spec.models is None else sorted(spec.models),
            lanes=None if spec.lanes is None else sorted(spec.lanes),
            max_output_tokens=spec.max_output_tokens,
            service_account_id=spec.service_account_id,
            **rate_values(spec.limits),
        )
    )
    return _key(connection, spec.id)


def rotate_key(
    key_id: str,
    digest: bytes,
    redacted: str,
    at: float,
    overlap_seconds: float,
    connection: sa.Connection,
) -> KeyInfo:
    """Another secret; the one before the present one goes."""
    require_rotation(_key(connection, key_id), at, overlap_seconds)
    _require_unused(connection, digest, "this secret is in use already")
    before = connection.scalar(sa.select(KEYS.c.digest).where(KEYS.c.id == key_id))
    connection.execute(sa.delete(ROTATED).where(ROTATED.c.key_id == key_id))
    connection.execute(
        sa.insert(ROTATED).values(digest=before, key_id=key_id, works_until=at + overlap_seconds)
    )
    connection.execute(
        sa.update(KEYS).where(KEYS.c.id == key_id).values(digest=digest, redacted=redacted)
    )
    return _key(connection, key_id)


def revoke_key(key_id: str, at: float, connection: sa.Connection) -> KeyInfo:
    """The first time stays."""
    connection.execute(
        sa.update(KEYS)
        .where(KEYS.c.id == key_id, KEYS.c.revoked_at.is_(None))
        .values(revoked_at=at)
    )
    return _key(connection, key_id)


def keys(connection: sa.Connection) -> list[KeyInfo]:
    return [key_of(row) for row in connection.execute(EVERY_KEY)]


def organisations(connection: sa.Connection) -> list[str]:
    names = sa.select(ORGANISATIONS.c.name).order_by(ORGANISATIONS.c.sequence)
    return list(connection.scalars(names))


def projects(connection: sa.Connection) -> list[ProjectInfo]:
    return [project_of(row) for row in connection.execute(EVERY_PROJECT)]


def rename_project(project_id: str, name: str, connection: sa.Connection) -> ProjectInfo:
    info = project_of(_project(connection, project_id))
    require_open(info)
    taken = connection.scalar(
        sa.select(PROJECTS.c.id).where(
            PROJECTS.c.organisation_id == info.scopes.organisation_id,
            PROJECTS.c.name == name,
            PROJECTS.c.id != project_id,
        )
    )
    if taken is not None:
        raise name_taken(name, info.organisation)
    connection.execute(sa.update(PROJECTS).where(PROJECTS.c.id == project_id).values(name=name))
    return project_of(_project(connection, project_id))


def archive_project(project_id: str, at: float, connection: sa.Connection) -> ProjectInfo:
    """The first time stays."""
    connection.execute(
        sa.update(PROJECTS)
        .where(PROJECTS.c.id == project_id, PROJECTS.c.archived_at.is_(None))
        .values(archived_at=at)
    )
    return project_of(_project(connection, project_id))


def project_limits(project_id: str, connection: sa.Connection) -> ProjectLimits:
    row = _project(connection, project_id)
    return ProjectLimits(rates_of(row), _model_limits(connection, {project_id})[project_id])


def set_limits(
    project_id: str,
    limits: RateLimits,
    model: str | None,
    plans: Mapping[str, Plan],
    connection: sa.Connection,
) -> ProjectLimits:
    row = _project(connection, project_id)
    require_open(project_of(row))
    before = limits_of(project_limits(project_id, connection), model)
    require_limits(limits, granted_plan(plans, row.plan), before)
    values = rate_values(limits)
    if model is None:
        connection.execute(sa.update(PROJECTS).where(PROJECTS.c.id == project_id).values(values))
        return project_limits(project_id, connection)
    connection.execute(
        sa.delete(MODEL_LIMITS).where(
            MODEL_LIMITS.c.project_id == project_id, MODEL_LIMITS.c.model == model
        )
    )
    if limits != UNLIMITED:
        connection.execute(
            sa.insert(MODEL_LIMITS).values(project_id=project_id, model=model, **values)
        )
    return project_limits(project_id, connection)


def create_account(
    account_id: str, project_id: str, name: str, at: float, connection: sa.Connection
) -> ServiceAccount:
    """IntegrityError if the id is taken."""
    require_open(project_of(_project(connection, project_id)))
    connection.execute(
        sa.insert(SERVICE_ACCOUNTS).values(
            id=account_id, project_id=project_id, name=name, created_at=at
        )
    )
    return _account(connection, account_id)


def rename_account(account_id: str, name: str, connection: sa.Connection) -> ServiceAccount:
    if _account(connection, account_id).deleted_at is not None:
        raise KeyError(account_id)
    mine = SERVICE_ACCOUNTS.c.id == account_id
    connection.execute(sa.update(SERVICE_ACCOUNTS).where(mine).values(name=name))
    return _account(connection, account_id)


def delete_account(account_id: str, at: float, connection: sa.Connection) -> ServiceAccount:
    """The first time stays."""
    connection.execute(
        sa.update(SERVICE_ACCOUNTS)
        .where(SERVICE_ACCOUNTS.c.id == account_id, SERVICE_ACCOUNTS.c.deleted_at.is_(None))
        .values(deleted_at=at)
    )
    account = _account(connection, account_id)
    connection.execute(
        sa.update(KEYS)
        .where(KEYS.c.service_account_id == account_id, KEYS.c.revoked_at.is_(None))
        .values(revoked_at=at)
    )
    return account


def accounts(connection: sa.Connection) -> list[ServiceAccount]:
    present = EVERY_ACCOUNT.where(SERVICE_ACCOUNTS.c.deleted_at.is_(None))
    return [account_of(row) for row in connection.execute(present)]


def _stored(
    row: sa.Row[Any], models: Mapping[str, Mapping[str, RateLimits]], works_until: float | None
) -> Stored:
    limits = ProjectLimits(rates_of(row, "project_"), models[row.project_id])
    return Stored(key_of(row), row.plan, limits, works_until)


def _model_limits(
    connection: sa.Connection, project_ids: set[str]
) -> dict[str, dict[str, RateLimits]]:
    """By project and model; every project is there."""
    found: dict[str, dict[str, RateLimits]] = {project_id: {} for project_id in project_ids}
    asked = sa.select(MODEL_LIMITS).where(MODEL_LIMITS.c.project_id.in_(sorted(project_ids)))
    for row in connection.execute(asked) if project_ids else ():
        found[row.project_id][row.model] = rates_of(row)
    return found


def _require_unused(connection: sa.Connection, digest: bytes, message: str) -> None:
    """A secret that was rotated out must not come back as another key's."""
    if connection.scalar(sa.select(ROTATED.c.key_id).where(ROTATED.c.digest == digest)):
        raise ValueError(message)


def _key(connection: sa.Connection, key_id: str) -> KeyInfo:
    row = connection.execute(EVERY_KEY.where(KEYS.c.id == key_id)).one_or_none()
    if row is None:
        raise KeyError(key_id)
    return key_of(row)


def _project(connection: sa.Connection, project_id: str) -> sa.Row[Any]:
    row = connection.execute(EVERY_PROJECT.where(PROJECTS.c.id == project_id)).one_or_none()
    if row is None:
        raise KeyError(project_id)
    return row


def _home(connection: sa.Connection, spec: KeySpec) -> sa.Row[Any]:
    """The project of a key that is to be made."""
    asked = EVERY_PROJECT.where(PROJECTS.c.id == spec.project_id)
    if spec.project_id is None:
        asked = EVERY_PROJECT.where(
            ORGANISATIONS.c.name == spec.organisation, PROJECTS.c.name == spec.project
        )
    row = connection.execute(asked).one_or_none()
    if row is None:
        raise no_project(spec)
    return row


def _find_account(connection: sa.Connection, account_id: str) -> ServiceAccount | None:
    asked = EVERY_ACCOUNT.where(SERVICE_ACCOUNTS.c.id == account_id)
    row = connection.execute(asked).one_or_none()
    return None if row is None else account_of(row)


def _account(connection: sa.Connection, account_id: str) -> ServiceAccount:
    account = _find_account(connection, account_id)
    if account is None:
        raise KeyError(account_id)
    return account
