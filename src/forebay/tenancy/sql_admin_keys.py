"""Admin keys in forebay.db. Nothing is remembered: an operator's call may wait for a look-up.

Not here: what their owner may do (`forebay.pipeline`).
"""

from __future__ import annotations

from functools import partial

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from forebay.core.clock import Clock
from forebay.tenancy.contract import AdminKeyInfo, AdminKeys
from forebay.tenancy.keys import ADMIN_KEY, check, derive, digest, redact, refusal
from forebay.tenancy.settings import require_name
from forebay.tenancy.sql import Runner
from forebay.tenancy.sql_tables import ADMIN_KEYS, EVERY_ADMIN_KEY, admin_key_of


class SqlAdminKeys(AdminKeys):
    """One per process, called from the event loop."""

    def __init__(self, runner: Runner, *, clock: Clock, pepper: bytes) -> None:
        self._runner = runner
        self._clock = clock
        self._digest_key = derive(pepper, ADMIN_KEY.purpose)

    async def authenticate(self, secret: str) -> AdminKeyInfo:
        if not check(secret, ADMIN_KEY):
            raise refusal(secret, ADMIN_KEY)
        info = await self._runner.run(partial(_in_find, digest(secret, self._digest_key)))
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
        try:
            return await self._runner.run(partial(_in_create, info, key, redact(secret)))
        except IntegrityError as error:
            raise ValueError(f"the key {info.id} exists already") from error

    async def delete(self, key_id: str, *, at: float) -> AdminKeyInfo:
        return await self._runner.run(partial(_in_delete, key_id, at))

    async def keys(self) -> list[AdminKeyInfo]:
        return await self._runner.run(_in_keys)


def _in_find(key: bytes, connection: sa.Connection) -> AdminKeyInfo | None:
    row = connection.execute(EVERY_ADMIN_KEY.where(ADMIN_KEYS.c.digest == key)).one_or_none()
    return None if row is None else admin_key_of(row)


def _in_create(
    info: AdminKeyInfo, key: bytes, redacted: str, connection: sa.Connection
) -> AdminKeyInfo:
    connection.execute(
        sa.insert(ADMIN_KEYS).values(
            id=info.id,
            digest=key,
            organisation_id=info.organisation_id,
            name=info.name,
            redacted=redacted,
            created_at=info.created_at,
            expires_at=info.expires_at,
        )
    )
    return _one(connection, info.id)


def _in_delete(key_id: str, at: float, connection: sa.Connection) -> AdminKeyInfo:
    connection.execute(
        sa.update(ADMIN_KEYS)
        .where(ADMIN_KEYS.c.id == key_id, ADMIN_KEYS.c.deleted_at.is_(None))
        .values(deleted_at=at)
    )
    return _one(connection, key_id)


def _in_keys(connection: sa.Connection) -> list[AdminKeyInfo]:
    present = EVERY_ADMIN_KEY.where(ADMIN_KEYS.c.deleted_at.is_(None))
    return [admin_key_of(row) for row in connection.execute(present)]


def _one(connection: sa.Connection, key_id: str) -> AdminKeyInfo:
    row = connection.execute(EVERY_ADMIN_KEY.where(ADMIN_KEYS.c.id == key_id)).one_or_none()
    if row is None:
        raise KeyError(key_id)
    return admin_key_of(row)
