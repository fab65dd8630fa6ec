"""Organisations, projects and API keys."""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade(op: Operations) -> None:
    op.create_table(
        "organisations",
        sa.Column("sequence", sa.Integer, primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("name", sa.Text, nullable=False, unique=True),
        sa.Column("plan", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
    )
    op.create_table(
        "projects",
        sa.Column("sequence", sa.Integer, primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("organisation_id", sa.Text, sa.ForeignKey("organisations.id"), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.UniqueConstraint("organisation_id", "name"),
    )
    op.create_table(
        "api_keys",
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
        sa.Column("calls_per_minute", sa.Integer),
        sa.Column("max_output_tokens", sa.Integer),
    )
