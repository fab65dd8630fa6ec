"""Calls at a given rate, whatever the server does, as a process of its own: `flood.py PLAN.json`.

An open loop: a call leaves when it is due, not when an earlier one has been answered. A plan names
host, port, keys, body, seed, how often a refused call is tried again (after what `retry-after-ms`
says) and phases of {name, per_second, seconds} that follow each other without a pause. When all
calls have ended it prints one JSON line per phase:

    {"phase", "began_at", "ended_at", "lag_ms": […], "tries": [[number, status, sent_at, first_at,
     ended_at, complete], …]}

Every try of a call is an entry, in order, under the call's number.

Times are monotonic seconds. `lag_ms` is how late calls left: if it is large, the client is the
bottleneck. Connections are kept and used again.

Not here: what the figures mean (`overload.py`).
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import uvloop

from forebay.testing.rawhttp import Answer, RawClient

REFUSED = (429, 503)


class Flood:
    """All connections, by key, and what is under way."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._plan = plan
        self._rng = random.Random(plan["seed"])
        self._idle: dict[str, list[RawClient]] = defaultdict(list)
        self._running: set[asyncio.Task[None]] = set()

    async def phase(self, what: dict[str, Any], began_at: float) -> tuple[dict[str, Any], float]:
        """Start the phase's calls as they are due; answers its record, which fills until `ended`."""
        ends_at = began_at + what["seconds"]
        record: dict[str, Any] = {"phase": what["name"], "began_at": began_at, "ended_at": ends_at}
        record.update(lag_ms=[], tries=[])
        due = began_at
        while True:
            due += self._rng.expovariate(what["per_second"])
            if due >= ends_at:
                return record, ends_at
            # A loop that is late catches up without turning for every call.
            if (early := due - time.monotonic()) > 0:
                await asyncio.sleep(early)
            record["lag_ms"].append(round((time.monotonic() - due) * 1000, 2))
            task = asyncio.create_task(self._call(len(record["lag_ms"]), record["tries"]))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def ended(self) -> None:
        """Wait for all calls, then hang up."""
        while self._running:
            await asyncio.wait(self._running)
        for client in (each for idle in self._idle.values() for each in idle):
            await client.close()

    async def _call(self, number: int, tries: list[Any]) -> None:
        """One call of one client, and what it tries again."""
        key = self._rng.choice(self._plan["keys"])
        for _ in range(self._plan["retries"] + 1):
            answer = await self._post(key)
            times = (answer.started_at, answer.first_at, answer.ended_at)
            tries.append([number, answer.status, *times, answer.complete])
            if answer.status not in REFUSED or answer.headers.get("x-should-retry") == "false":
                return
            await asyncio.sleep(float(answer.headers["retry-after-ms"]) / 1000)

    async def _post(self, key: str) -> Answer:
        idle = self._idle[key]
        plan = self._plan
        client = idle.pop() if idle else RawClient(plan["host"], plan["port"], key, keep=False)
        try:
            return await client.post(plan["body"])
        finally:
            idle.append(client)


async def run(plan: dict[str, Any]) -> None:
    flood = Flood(plan)
    began_at = time.monotonic()
    records = []
    for what in plan["phases"]:
        record, began_at = await flood.phase(what, began_at)
        records.append(record)
    await flood.ended()
    for record in records:
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    uvloop.run(run(json.loads(Path(sys.argv[1]).read_text())))
