"""Loaded by schemathesis, in its own environment; imports nothing of ours.

A made-up name of a model is answered 404 and nothing else is looked at, so most bodies are made to
name the one that is served; and a stream is rarely asked for by chance. What becomes of a body
depends on its size alone, so that a failure that was found is found again.
"""

from __future__ import annotations

from typing import Any

import schemathesis


@schemathesis.hook
def map_body(_context: Any, body: Any) -> Any:
    """Called with each body that is made up; negative ones too."""
    if isinstance(body, dict) and isinstance(body.get("model"), str):
        lot = len(str(body)) % 16
        if lot > 0:
            body["model"] = "scripted"
        if lot > 12:
            body["stream"] = True
    return body
