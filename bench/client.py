"""Runs calls as a process of its own: `client.py PLAN.json`, one JSON line per phase.

A plan names host, port, key and phases; a phase has calls ({"body": …, "leave_events": n,
"leave_seconds": s}) and how many connections run them, each taking the next call.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

from forebay.testing.rawhttp import Answer, Leave, RawClient


async def phase(plan: dict[str, Any], what: dict[str, Any]) -> dict[str, Any]:
    calls = list(reversed(what["calls"]))
    answers: list[Answer] = []

    async def lane() -> None:
        client = RawClient(plan["host"], plan["port"], plan["key"], keep=False)
        while calls:
            call = calls.pop()
            leave = Leave(call.get("leave_events"), call.get("leave_seconds"))
            answer = await client.post(call["body"], leave)
            if answer.status not in (0, 200):
                raise SystemExit(f"status {answer.status}: {bytes(answer.body)!r}")
            answers.append(answer)
        await client.close()

    start = time.monotonic()
    await asyncio.gather(*(lane() for _ in range(what.get("at_a_time", 1))))
    return {
        "phase": what["name"],
        "seconds": time.monotonic() - start,
        "calls": [
            {
                "request_id": answer.request_id,
                "started_at": answer.started_at,
                "first_at": answer.first_at,
                "left_at": answer.left_at,
                "ended_at": answer.ended_at,
                "events": answer.events,
                "complete": answer.complete,
            }
            for answer in answers
        ],
    }


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    for what in plan["phases"]:
        print(json.dumps(uvloop.run(phase(plan, what))), flush=True)


if __name__ == "__main__":
    main()
