"""Events from worker to reader: see `contract.py`."""

from forebay.stream.contract import TokenStream

__all__ = ["TokenStream"]
