"""Engines: see `contract.py`."""

from forebay.engine.contract import Engine, Generation
from forebay.engine.settings import EngineSettings, ScriptedSettings

__all__ = ["Engine", "EngineSettings", "Generation", "ScriptedSettings"]
