"""A raw-socket HTTP client for measurements, run as a process of its own: `client.py PLAN.json`.

The plan names host, port, key and a list of *phases*; each phase is a list of calls and how many run
at a time. No SDK and no JSON parsing per chunk: events are counted by their bytes, so that the client
costs little beside what it measures. Prints one JSON line per phase.

Times come from CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvloop


@dataclass
class Seen:
    """What one call looked like from outside."""

    started_at: float = 0.0
    first_at: float | None = None
    ended_at: float = 0.0
    events: int = 0
    status: int = 0
    request_id: str = ""
    done: bool = False
    cost_usd: str = ""


class Client:
    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan

    def _request(self, body: dict[str, Any]) -> bytes:
        data = json.dumps(body).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {self.plan['host']}\r\n"
            f"Authorization: Bearer {self.plan['key']}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n"
        )
        return head.encode() + data

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.plan["host"], self.plan["port"], limit=1 << 22)

    async def call(
        self, call: dict[str, Any], link: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    ) -> Seen:
        """Send one call; `leave_after` events (or seconds, `leave_after_s`) hangs up."""
        reader, writer = link
        seen = Seen(started_at=time.monotonic())
        writer.write(self._request(call["body"]))
        try:
            async with asyncio.timeout(call.get("leave_after_s")):
                await self._head(reader, seen)
                if call["body"].get("stream"):
                    await self._events(reader, seen, call.get("leave_after"))
                else:
                    await reader.readexactly(self._length)
                    seen.done = True
        except TimeoutError:
            pass
        seen.ended_at = time.monotonic()
        if not seen.done:
            writer.transport.abort()
        return seen

    async def _head(self, reader: asyncio.StreamReader, seen: Seen) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        seen.status = int(head[0].split()[1])
        fields = dict(line.split(": ", 1) for line in head[1:] if ": " in line)
        seen.request_id = fields.get("x-request-id", "")
        seen.cost_usd = fields.get("x-forebay-cost-usd", "")
        self._length = int(fields.get("content-length", 0))
        if seen.status != 200:
            raise RuntimeError((await reader.read(4096)).decode(errors="replace"))

    async def _events(
        self, reader: asyncio.StreamReader, seen: Seen, leave_after: int | None
    ) -> None:
        """Count content events until the terminal chunk of the chunked body."""
        while True:
            data = await reader.read(1 << 16)
            if not data:
                return
            fresh = data.count(b'"content":"') - data.count(b'"content":"","refusal"')
            if fresh and seen.first_at is None:
                seen.first_at = time.monotonic()
            seen.events += fresh
            if leave_after is not None and seen.events >= leave_after:
                return
            if data.endswith(b"0\r\n\r\n"):
                seen.done = True
                return

    async def phase(self, phase: dict[str, Any]) -> dict[str, Any]:
        """Run a phase's calls, `at_a_time` connections each taking the next one."""
        calls = list(reversed(phase["calls"]))
        seen: list[Seen] = []

        async def lane() -> None:
            link = await self.connect()
            while calls:
                one = await self.call(calls.pop(), link)
                seen.append(one)
                if not one.done:
                    link = await self.connect()
            link[1].close()

        start = time.monotonic()
        await asyncio.gather(*(lane() for _ in range(phase.get("at_a_time", 1))))
        return {
            "phase": phase["name"],
            "seconds": time.monotonic() - start,
            "calls": [asdict(one) for one in seen],
        }


async def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    client = Client(plan)
    for phase in plan["phases"]:
        print(json.dumps(await client.phase(phase)), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
