"""Cheap refusals: see `contract.py`."""

from forebay.admission.contract import Admission, Allowance, Need, Permit, Place, Standing
from forebay.admission.scopes import BODY_BYTES_PER_TOKEN
from forebay.admission.wait import AdmissionSettings

__all__ = [
    "BODY_BYTES_PER_TOKEN",
    "Admission",
    "AdmissionSettings",
    "Allowance",
    "Need",
    "Permit",
    "Place",
    "Standing",
]
