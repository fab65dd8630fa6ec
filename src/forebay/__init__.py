"""Forebay: an OpenAI-compatible LLM API service for people who own their inference.

Read `pipeline/interactive.py` and `pipeline/worker.py` first: they are the walk of a call.
"""

__version__ = "0.1.0"
