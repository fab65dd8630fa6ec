"""A plugin of pytest for openai_python.py, in the suite's own environment; imports nothing of ours.

It gives the suite's fixtures a real API key in place of their literal one, and writes how each
test ended into the file OUTCOMES as a JSON object, test id to passed, failed or skipped.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

LITERAL = "My API Key"
outcomes: dict[str, str] = {}


def pytest_sessionstart(session: Any) -> None:
    """Find the suite's conftest, which is a plugin like any other."""
    found = [
        plugin
        for plugin in session.config.pluginmanager.get_plugins()
        if getattr(plugin, "api_key", None) == LITERAL
    ]
    assert len(found) == 1, "the suite's conftest.py has changed: where is its API key?"
    found[0].api_key = os.environ["CONFORMANCE_KEY"]


def pytest_runtest_logreport(report: Any) -> None:
    """A test passed if all of its phases did."""
    if report.when == "call" or report.outcome != "passed":
        outcomes[report.nodeid] = report.outcome


def pytest_sessionfinish() -> None:
    """Written at once: there is one process."""
    Path(os.environ["OUTCOMES"]).write_text(json.dumps(outcomes))
