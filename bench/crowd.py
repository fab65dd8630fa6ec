"""Mixed clients for a while, as a process of its own: `crowd.py PLAN.json`.

A plan names host, port, keys, model, seed, how many clients and for how many seconds. Each client
calls, pauses, and calls again on the same connection; a fifth of the calls are left at a random
moment (`forebay.testing.wishes`). One JSON line in the end: calls by what became of them,
{"served", "left", "refused", "failed", "lost"}, and "ids" of those that were served.

A lost answer is one whose client waited and that did not end as it should: a connection that broke,
a stream without its [DONE].

Not here: what is left on the server afterwards (`soak.py`).
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import uvloop

from forebay.testing.rawhttp import Answer, RawClient
from forebay.testing.wishes import wish

PAUSE_SECONDS = 0.3  # on average


async def run(plan: dict[str, Any]) -> dict[str, Any]:
    rng = random.Random(plan["seed"])
    ends_at = time.monotonic() + plan["seconds"]
    counts: Counter[str] = Counter()
    ids: list[str] = []

    async def client(number: int) -> None:
        key = plan["keys"][number % len(plan["keys"])]
        async with RawClient(plan["host"], plan["port"], key) as connection:
            while time.monotonic() < ends_at:
                body, leave = wish(rng, plan["model"])
                answer = await connection.post(body, leave)
                became = ending(answer)
                counts[became] += 1
                if became == "served":
                    ids.append(answer.request_id)
                await asyncio.sleep(rng.expovariate(1 / PAUSE_SECONDS))

    await asyncio.gather(*(client(number) for number in range(plan["clients"])))
    return {**counts, "ids": ids}


def ending(answer: Answer) -> str:
    """What became of a call."""
    if not answer.complete:
        return "lost" if answer.left_at is None else "left"
    if answer.status != 200:
        return "refused" if answer.status in (429, 503) else "failed"
    if answer.events and not answer.body.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
        return "lost"
    return "failed" if b'"error":' in answer.body else "served"


if __name__ == "__main__":
    print(json.dumps(uvloop.run(run(json.loads(Path(sys.argv[1]).read_text())))))
