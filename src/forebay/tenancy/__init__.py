"""Organisations, projects, API keys: see `contract.py`."""

from forebay.tenancy.contract import KeyInfo, KeySpec, Plan, ProjectInfo, Tenancy
from forebay.tenancy.keys import check, derive, make_key, open_pepper, redact
from forebay.tenancy.settings import STANDARD, PlanSettings, plans_by_name

__all__ = [
    "STANDARD",
    "KeyInfo",
    "KeySpec",
    "Plan",
    "PlanSettings",
    "ProjectInfo",
    "Tenancy",
    "check",
    "derive",
    "make_key",
    "open_pepper",
    "plans_by_name",
    "redact",
]
