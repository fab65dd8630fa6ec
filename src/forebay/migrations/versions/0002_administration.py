"""Limits of keys and projects, rotation, archived projects, service accounts, admin keys, and what
administration has done."""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

RATES = ("requests_per_minute", "tokens_per_minute", "batch_input_tokens_per_day")


def upgrade(op: Operations) -> None:
    op.alter_column("api_keys", "calls_per_minute", new_column_name="requests_per_minute")
    for rate in RATES[1:]:
        op.add_column("api_keys", sa.Column(rate, sa.Integer))
    op.add_column("api_keys", sa.Column("service_account_id", sa.Text))
    op.create_index("api_keys_service_account", "api_keys", ["service_account_id"])
    op.add_column("projects", sa.Column("archived_at", sa.Double))
    for rate in RATES:
        op.add_column("projects", sa.Column(rate, sa.Integer))
    op.create_table(
        "rotated_secrets",
        sa.Column("digest", sa.LargeBinary, primary_key=True),
        sa.Column("key_id", sa.Text, sa.ForeignKey("api_keys.id"), nullable=False, unique=True),
        sa.Column("works_until", sa.Double, nullable=False),
    )
    op.create_table(
        "model_limits",
        sa.Column("project_id", sa.Text, sa.ForeignKey("projects.id"), primary_key=True),
        sa.Column("model", sa.Text, primary_key=True),
        *(sa.Column(rate, sa.Integer) for rate in RATES),
    )
    op.create_table(
        "service_accounts",
        sa.Column("sequence", sa.Integer, primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("project_id", sa.Text, sa.ForeignKey("projects.id"), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("deleted_at", sa.Double),
    )
    op.create_table(
        "admin_keys",
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
    _records(op)


def _records(op: Operations) -> None:
    op.create_table(
        "changes",
        sa.Column("sequence", sa.Integer, primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("organisation_id", sa.Text, nullable=False),
        sa.Column("project_id", sa.Text),
        sa.Column("actor_id", sa.Text, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("subject_id", sa.Text, nullable=False),
        sa.Column("details", sa.JSON, nullable=False),
    )
    op.create_index("changes_of_organisation", "changes", ["organisation_id", "sequence"])
    for event in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER changes_are_kept_on_{event.lower()} BEFORE {event} ON changes "
            "BEGIN SELECT RAISE(ABORT, 'what administration did is never rewritten'); END"
        )
