"""Receivers of webhooks that answer as a test says, in the test's own time.

Not here: the real ones, over HTTP (`forebay.alerts.http`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from forebay.alerts import Courier, Reply

TIMEOUT_SECONDS = 10.0


@dataclass
class Got:
    """A request, and when (loop time) it came."""

    url: str
    headers: Mapping[str, str]
    body: bytes
    at: float

    @property
    def event(self) -> dict[str, Any]:
        """Its body, read."""
        message: dict[str, Any] = json.loads(self.body)
        return message


@dataclass
class ScriptedReceivers(Courier):
    """Answers each URL with the next of its statuses, then 200; None hangs until the time-out."""

    statuses: dict[str, list[int | None]] = field(default_factory=dict)
    got: list[Got] = field(default_factory=list)
    open: dict[str, int] = field(default_factory=dict)
    most_open: dict[str, int] = field(default_factory=dict)

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Reply:
        self.got.append(Got(url, dict(headers), body, asyncio.get_running_loop().time()))
        self.open[url] = self.open.get(url, 0) + 1
        self.most_open[url] = max(self.most_open.get(url, 0), self.open[url])
        left = self.statuses.get(url, [])
        status = left.pop(0) if left else 200
        await asyncio.sleep(TIMEOUT_SECONDS if status is None else 0)
        self.open[url] -= 1
        return Reply(status, "no answer" if status is None else "")

    async def close(self) -> None:
        pass
