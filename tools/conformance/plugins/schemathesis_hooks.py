"""Loaded by schemathesis, in its own environment; imports nothing of ours.

A made-up name of a model is answered 404 and nothing else is looked at, so most bodies are made to
name the one that is served; and a stream is rarely asked for by chance. So are made-up ids: in three
of four paths they become ids that exist. What becomes of a body or a path depends on its size alone,
so that a failure that was found is found again.
"""

from __future__ import annotations

import json
import os
from typing import Any

import schemathesis

IDS: dict[str, str] = json.loads(os.environ.get("CONFORMANCE_IDS", "{}"))


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


@schemathesis.hook
def map_path_parameters(context: Any, path_parameters: Any) -> Any:
    """Called with the names in each path. What would end all others is not done to what exists."""
    operation = getattr(context, "operation", None)
    ends = operation is not None and (
        operation.path.endswith("/archive") or operation.method.upper() == "DELETE"
    )
    if isinstance(path_parameters, dict) and not ends and len(str(path_parameters)) % 4:
        path_parameters.update({name: IDS[name] for name in IDS if name in path_parameters})
    return path_parameters
