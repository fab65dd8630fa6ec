"""Spend alerts, their events, and the sums that fire them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade(op: Operations) -> None:
    op.create_table(
        "spend_alerts",
        sa.Column("sequence", sa.Integer, primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("scope", sa.Text, nullable=False, index=True),
        sa.Column("organisation_id", sa.Text, nullable=False),
        sa.Column("project_id", sa.Text),
        sa.Column("threshold_nanos", sa.BigInteger, nullable=False),
        sa.Column("webhook_url", sa.Text, nullable=False),
        sa.Column("recipients", sa.JSON, nullable=False),
        sa.Column("subject_prefix", sa.Text),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("interval", sa.Text, nullable=False),
        sa.Column("since_period", sa.Text, nullable=False),
        sa.Column("enabled", sa.Boolean, nullable=False),
    )
    op.create_table(
        "alert_events",
        sa.Column("sequence", sa.Integer, primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("alert_id", sa.Text, sa.ForeignKey("spend_alerts.id"), nullable=False),
        sa.Column("period_id", sa.Text, nullable=False),
        sa.Column("threshold_nanos", sa.BigInteger, nullable=False),
        sa.Column("spent_nanos", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("next_at", sa.Double, index=True),
        sa.UniqueConstraint("alert_id", "period_id", "threshold_nanos"),
    )
    op.create_table(
        "alert_sums",
        sa.Column("scope", sa.Text, primary_key=True),
        sa.Column("period_id", sa.Text, primary_key=True),
        sa.Column("posted_nanos", sa.BigInteger, nullable=False),
    )
    op.create_table("alert_cursor", sa.Column("sequence", sa.BigInteger, nullable=False))
    op.execute("INSERT INTO alert_cursor (sequence) VALUES (0)")
