"""The admin API's route table.

Not here: what serves a row (`admin.py`).
"""

from __future__ import annotations

from forebay.gateway import admin_audit, admin_projects, admin_spend, admin_usage

ADMIN_OPERATIONS = (
    *admin_projects.OPERATIONS,
    *admin_spend.OPERATIONS,
    *admin_usage.OPERATIONS,
    *admin_audit.OPERATIONS,
)
