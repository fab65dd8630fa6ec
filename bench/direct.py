"""The embedded engine without Forebay around it: a driver that speaks the child's frames.

`direct.py`: reads one JSON line per round from stdin, {"prompts": [[ids]…], "max_tokens": n}, submits
all prompts at once, and answers {"seconds": s, "tokens": t, "ttft_s": […]}. A process of its own, so
that it competes for the machine exactly as the gateway does.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import uvloop

from forebay.core.delta import EngineRequest
from forebay.core.job import Sampling
from forebay.engine.process import ChildEngine
from forebay.engine.settings import EngineSettings
from forebay.observe import configure
from forebay.system import SystemIds, Tasks


async def one(
    engine: ChildEngine, number: int, ids: list[int], max_tokens: int
) -> tuple[int, float]:
    sampling = Sampling(temperature=0, ignore_eos=True)
    generation = engine.generate(EngineRequest(f"d{number}", tuple(ids), max_tokens, sampling))
    start, first, tokens = time.monotonic(), 0.0, 0
    try:
        async for delta in generation:
            first = first or time.monotonic()
            tokens += len(delta.token_ids)
    finally:
        await generation.aclose()
    return tokens, first - start


async def main() -> None:
    configure("warning", as_json=False)
    engine = ChildEngine(EngineSettings(), weights=sys.argv[1], ids=SystemIds(), spawn=Tasks())
    await engine.start()
    print(json.dumps({"ready": True}), flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order: dict[str, Any] = json.loads(line)
        start = time.monotonic()
        answers = await asyncio.gather(
            *(one(engine, n, ids, order["max_tokens"]) for n, ids in enumerate(order["prompts"]))
        )
        seconds = time.monotonic() - start
        tokens = sum(tokens for tokens, _ in answers)
        print(
            json.dumps({"seconds": seconds, "tokens": tokens, "ttft_s": [t for _, t in answers]}),
            flush=True,
        )
    await engine.close()


if __name__ == "__main__":
    uvloop.run(main())
