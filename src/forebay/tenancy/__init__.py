"""Organisations, projects, API keys: see `contract.py`."""

from forebay.tenancy.contract import (
    AdminKeyInfo,
    AdminKeys,
    Change,
    ChangeQuery,
    Directory,
    Journal,
    KeyInfo,
    KeySpec,
    Plan,
    ProjectInfo,
    ProjectLimits,
    ServiceAccount,
    Tenancy,
)
from forebay.tenancy.keys import (
    ADMIN_KEY,
    check,
    derive,
    make_key,
    open_pepper,
    redact,
)
from forebay.tenancy.settings import (
    STANDARD,
    PlanSettings,
    plans_by_name,
    require_name,
    require_open,
)

__all__ = [
    "ADMIN_KEY",
    "STANDARD",
    "AdminKeyInfo",
    "AdminKeys",
    "Change",
    "ChangeQuery",
    "Directory",
    "Journal",
    "KeyInfo",
    "KeySpec",
    "Plan",
    "PlanSettings",
    "ProjectInfo",
    "ProjectLimits",
    "ServiceAccount",
    "Tenancy",
    "check",
    "derive",
    "make_key",
    "open_pepper",
    "plans_by_name",
    "redact",
    "require_name",
    "require_open",
]
