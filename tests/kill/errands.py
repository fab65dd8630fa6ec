"""Responses in the background of a server that is killed over and over.

Whoever was told that one had begun finds it ended at last: once in the books, and with the same events
however often it is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sqlite3
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from forebay.core.usage import Outcome, UsageRow
from tests.e2e.running import Server

_PENDING = "SELECT count(*) FROM turns WHERE state IN ('open', 'kept')"
_STATES = {
    "completed": Outcome.COMPLETED,
    "incomplete": Outcome.COMPLETED,
    "failed": Outcome.FAILED,
    "cancelled": Outcome.CANCELLED,
}


@dataclass
class Errands:
    """What clients know of them: whose each is, and the events that were read of it."""

    rng: random.Random
    keys: dict[str, str] = field(default_factory=dict)
    told: dict[str, list[str]] = field(default_factory=dict)

    async def run(self, server: Server, key: str) -> None:
        """Begin some, read them for a while, go on with old ones, cancel a few; until it is killed."""
        headers = {"authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(
            base_url=server.base_url, headers=headers, timeout=60
        ) as client:
            with contextlib.suppress(httpx.TransportError, httpx.RemoteProtocolError):
                while server.process.poll() is None:
                    await self._one(client, key)

    async def _one(self, client: httpx.AsyncClient, key: str) -> None:
        dice = self.rng.random()
        mine = [id for id, owner in self.keys.items() if owner == key]
        if mine and dice < 0.3:
            await self.read(client, self.rng.choice(mine), self.rng.randint(1, 60))
        elif mine and dice < 0.4:
            await client.post(f"/responses/{self.rng.choice(mine)}/cancel")
        else:
            await self._begin(client, key)
        await asyncio.sleep(self.rng.random() / 5)

    async def _begin(self, client: httpx.AsyncClient, key: str) -> None:
        body: dict[str, Any] = {
            "model": "scripted",
            "input": f"Go {self.rng.random()}.",
            "background": True,
            "stream": self.rng.random() < 0.6,
            "max_output_tokens": self.rng.randint(1, 120),
            "ignore_eos": True,
        }
        if not body["stream"]:
            answer = await client.post("/responses", json=body)
            if answer.status_code == 200:
                self.keys[answer.json()["id"]] = key
            return
        async with client.stream("POST", "/responses", json=body) as answer:
            if answer.status_code == 200:
                await self._take(answer, self.rng.randint(1, 60), key)

    async def read(self, client: httpx.AsyncClient, id: str, most: int) -> None:
        """Its events from the first on, or so many of them."""
        async with client.stream("GET", f"/responses/{id}", params={"stream": "true"}) as answer:
            if answer.status_code == 200:
                await self._take(answer, most, self.keys[id])

    async def _take(self, answer: httpx.Response, most: int, key: str) -> None:
        """Whatever was told before is told again, word for word."""
        events: list[str] = []
        told: list[str] = events
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            events.append(line)
            if len(events) == 1:
                id = json.loads(line[6:])["response"]["id"]
                self.keys[id] = key
                told = self.told.setdefault(id, events)
            if told is not events:
                place = len(events) - 1
                if place == len(told):
                    told.append(line)
                assert told[place] == line, "told otherwise before"
            if len(events) >= most:
                return

    def pending(self, data_dir: Path) -> int:
        """How many turns the next start may go on with."""
        path = f"file:{data_dir / 'forebay.db'}?mode=ro"
        with closing(sqlite3.connect(path, uri=True)) as database:
            return int(database.execute(_PENDING).fetchone()[0])

    async def finish(self, server: Server) -> Counter[str]:
        """Wait for the ends of all of them, and read those that can be read to their ends."""
        states: Counter[str] = Counter()
        for id, key in self.keys.items():
            headers = {"authorization": f"Bearer {key}"}
            async with httpx.AsyncClient(
                base_url=server.base_url, headers=headers, timeout=60
            ) as client:
                while True:
                    answer = await client.get(f"/responses/{id}")
                    assert answer.status_code == 200, f"{id} is lost: {answer.text}"
                    state = answer.json()["status"]
                    if state not in ("queued", "in_progress"):
                        break
                    await asyncio.sleep(0.05)
                await self.read(client, id, 10_000)
            states[state] += 1
            self._states[id] = state
        return states

    _states: dict[str, str] = field(default_factory=dict)

    def check(self, rows: Mapping[str, UsageRow]) -> None:
        """The books say of each what its client was told."""
        for id, state in self._states.items():
            row = rows[id.replace("resp_", "req_")]
            assert row.outcome is _STATES[state], row
            assert state != "failed" or row.amount_nanos == 0, row
