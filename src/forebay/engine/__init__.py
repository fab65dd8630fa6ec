"""Engines: see `contract.py`."""

from forebay.engine.contract import Engine

__all__ = ["Engine"]
