"""The tables of tenancy in forebay.db, and what their rows mean.

Not here: the schema's steps (`forebay.migrations.versions`; a test compares them with the tables).
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from forebay.core.job import Lane
from forebay.core.principal import RateLimits, Scopes
from forebay.tenancy.contract import AdminKeyInfo, KeyInfo, ProjectInfo, ServiceAccount

METADATA = sa.MetaData()


def _rates() -> list[sa.Column[Any]]:
    return [
        sa.Column("requests_per_minute", sa.Integer),
        sa.Column("tokens_per_minute", sa.Integer),
        sa.Column("batch_input_tokens_per_day", sa.Integer),
    ]


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
    sa.Column("archived_at", sa.Double),
    *_rates(),
    sa.UniqueConstraint("organisation_id", "name"),
)
MODEL_LIMITS = sa.Table(
    "model_limits",
    METADATA,
    sa.Column("project_id", sa.Text, sa.ForeignKey("projects.id"), primary_key=True),
    sa.Column("model", sa.Text, primary_key=True),
    *_rates(),
)
SERVICE_ACCOUNTS = sa.Table(
    "service_accounts",
    METADATA,
    sa.Column("sequence", sa.Integer, primary_key=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("project_id", sa.Text, sa.ForeignKey("projects.id"), nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("deleted_at", sa.Double),
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
    *_rates(),
    sa.Column("max_output_tokens", sa.Integer),
    # No foreign key: SQLite cannot add one to a table that exists.
    sa.Column("service_account_id", sa.Text),
    sa.Index("api_keys_service_account", "service_account_id"),
)
# The secret that a key had before its last rotation.
ROTATED = sa.Table(
    "rotated_secrets",
    METADATA,
    sa.Column("digest", sa.LargeBinary, primary_key=True),
    sa.Column("key_id", sa.Text, sa.ForeignKey("api_keys.id"), nullable=False, unique=True),
    sa.Column("works_until", sa.Double, nullable=False),
)
ADMIN_KEYS = sa.Table(
    "admin_keys",
    METADATA,
    sa.Column("sequence", sa.Integer, primary_key=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("digest", sa.LargeBinary, nullable=False, unique=True),
    sa.Column("organisation_id", sa.Text, sa.ForeignKey("organisations.id"), nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("redacted", sa.Text, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("expires_at", sa.Double),
    sa.Column("deleted_at", sa.Double),
)
CHANGES = sa.Table(
    "changes",
    METADATA,
    sa.Column("sequence", sa.Integer, primary_key=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("organisation_id", sa.Text, nullable=False),
    sa.Column("project_id", sa.Text),
    sa.Column("actor_id", sa.Text, nullable=False),
    sa.Column("type", sa.Text, nullable=False),
    sa.Column("subject_id", sa.Text, nullable=False),
    sa.Column("details", sa.JSON, nullable=False),
    sa.Index("changes_of_organisation", "organisation_id", "sequence"),
)

EVERY_PROJECT = (
    sa.select(
        PROJECTS, ORGANISATIONS.c.name.label("organisation"), ORGANISATIONS.c.plan.label("plan")
    )
    .join(ORGANISATIONS, ORGANISATIONS.c.id == PROJECTS.c.organisation_id)
    .order_by(PROJECTS.c.sequence)
)
EVERY_KEY = (
    sa.select(
        KEYS,
        PROJECTS.c.name.label("project"),
        PROJECTS.c.organisation_id,
        *(PROJECTS.c[rate.name].label(f"project_{rate.name}") for rate in _rates()),
        ORGANISATIONS.c.name.label("organisation"),
        ORGANISATIONS.c.plan,
        sa.select(ROTATED.c.works_until)
        .where(ROTATED.c.key_id == KEYS.c.id)
        .correlate(KEYS)
        .scalar_subquery()
        .label("rotated_until"),
    )
    .join(PROJECTS, PROJECTS.c.id == KEYS.c.project_id)
    .join(ORGANISATIONS, ORGANISATIONS.c.id == PROJECTS.c.organisation_id)
    .order_by(KEYS.c.sequence)
)
EVERY_ACCOUNT = (
    sa.select(SERVICE_ACCOUNTS, PROJECTS.c.organisation_id)
    .join(PROJECTS, PROJECTS.c.id == SERVICE_ACCOUNTS.c.project_id)
    .order_by(SERVICE_ACCOUNTS.c.sequence)
)
EVERY_ADMIN_KEY = (
    sa.select(ADMIN_KEYS, ORGANISATIONS.c.name.label("organisation"))
    .join(ORGANISATIONS, ORGANISATIONS.c.id == ADMIN_KEYS.c.organisation_id)
    .order_by(ADMIN_KEYS.c.sequence)
)


def rates_of(row: sa.Row[Any], prefix: str = "") -> RateLimits:
    """The limits that stand in a row's columns."""
    found = row._mapping
    return RateLimits(*(found[f"{prefix}{rate.name}"] for rate in _rates()))


def rate_values(limits: RateLimits) -> dict[str, int | None]:
    """The columns that these limits are stored in."""
    return {rate.name: getattr(limits, rate.name) for rate in _rates()}


def key_of(row: sa.Row[Any]) -> KeyInfo:
    """A row of EVERY_KEY."""
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
        limits=rates_of(row),
        max_output_tokens=row.max_output_tokens,
        service_account_id=row.service_account_id,
        rotated_until=row.rotated_until,
    )


def project_of(row: sa.Row[Any]) -> ProjectInfo:
    """A row of EVERY_PROJECT."""
    scopes = Scopes(row.organisation_id, row.id, "")
    return ProjectInfo(
        row.organisation, row.name, scopes, row.created_at, row.plan, row.archived_at
    )


def account_of(row: sa.Row[Any]) -> ServiceAccount:
    """A row of EVERY_ACCOUNT."""
    scopes = Scopes(row.organisation_id, row.project_id, "")
    return ServiceAccount(row.id, row.name, scopes, row.created_at, row.deleted_at)


def admin_key_of(row: sa.Row[Any]) -> AdminKeyInfo:
    """A row of EVERY_ADMIN_KEY."""
    return AdminKeyInfo(
        id=row.id,
        name=row.name,
        redacted=row.redacted,
        organisation=row.organisation,
        organisation_id=row.organisation_id,
        created_at=row.created_at,
        expires_at=row.expires_at,
        deleted_at=row.deleted_at,
    )
