"""Organisations, projects, API keys: see `contract.py`."""

from forebay.tenancy.contract import KeyInfo, KeySpec, Plan, Tenancy

__all__ = ["KeyInfo", "KeySpec", "Plan", "Tenancy"]
