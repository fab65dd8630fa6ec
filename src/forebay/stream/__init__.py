"""Events from worker to reader: see `contract.py`; kept for many readers: `log.py`."""

from forebay.stream.contract import Reader, TokenStream
from forebay.stream.log import EventLog

__all__ = ["EventLog", "Reader", "TokenStream"]
