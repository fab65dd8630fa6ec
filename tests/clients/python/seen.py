"""What the scenarios share: where the server is, what was seen, one JSON line at the end.

A scenario runs in its client's own environment, where Forebay is not installed. What its client
needs to be told stands between `# configuration` and `# end`; docs/reference/clients.md shows it.
"""

from __future__ import annotations

import json
import os
from importlib.metadata import version

URL, KEY = os.environ["SCENARIO_URL"], os.environ["SCENARIO_KEY"]
MODEL = "small"
UNKNOWN = "no-such-model"
QUESTION = "What is the capital of France?"
ASK = [{"role": "user", "content": QUESTION}]
# What the server says of UNKNOWN; a client must let its user read it.
REFUSAL = "no-such-model"


class Seen:
    """Checks that held, by name. Raises AssertionError at the first that does not."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.checks: list[str] = []

    def check(self, name: str, held: object, *, value: object) -> None:
        """Note that this held; several checks of one name count once."""
        assert held, f"{self.package}, {name}: {value!r}"
        if name not in self.checks:
            self.checks.append(name)

    def end(self) -> None:
        """The line that the test reads."""
        print(
            json.dumps(
                {
                    "client": self.package,
                    "version": version(self.package),
                    "checks": sorted(self.checks),
                }
            )
        )
