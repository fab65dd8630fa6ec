"""Files and batches: see `contract.py`."""

from forebay.batch.contract import (
    Batches,
    Blobs,
    FileInUse,
    Files,
    Learnt,
    Listing,
    Upload,
    WrongWay,
)
from forebay.batch.jsonl import Line, lines
from forebay.batch.settings import BatchSettings, window_seconds

__all__ = [
    "BatchSettings",
    "Batches",
    "Blobs",
    "FileInUse",
    "Files",
    "Learnt",
    "Line",
    "Listing",
    "Upload",
    "WrongWay",
    "lines",
    "window_seconds",
]
