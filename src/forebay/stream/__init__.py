"""Events from worker to reader: see `contract.py`."""

from forebay.stream.contract import Reader, TokenStream

__all__ = ["Reader", "TokenStream"]
