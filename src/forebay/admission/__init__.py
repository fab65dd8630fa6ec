"""Cheap refusals: see `contract.py`."""

from forebay.admission.contract import Admission, Allowance, Need, Permit, Place, Standing
from forebay.admission.wait import AdmissionSettings

__all__ = [
    "Admission",
    "AdmissionSettings",
    "Allowance",
    "Need",
    "Permit",
    "Place",
    "Standing",
]
