"""The only package that chooses implementations: it builds the object graph of one machine by hand."""

from forebay.wiring.ground import Ready
from forebay.wiring.machine import DirectoryBusy, Farewell, Stop, open_desk, serve
from forebay.wiring.models import describe_models, fetch_settings

__all__ = [
    "DirectoryBusy",
    "Farewell",
    "Ready",
    "Stop",
    "describe_models",
    "fetch_settings",
    "open_desk",
    "serve",
]
