"""Cheap refusals: see `contract.py`."""

from forebay.admission.contract import Admission
from forebay.admission.wait import AdmissionSettings

__all__ = ["Admission", "AdmissionSettings"]
