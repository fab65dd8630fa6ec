"""Cheap refusals: see `contract.py`."""

from forebay.admission.contract import Admission

__all__ = ["Admission"]
