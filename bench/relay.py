"""What standing between client and engine costs, with the real model.

32 streams of the same 32 prompts, 128 tokens each, through the public listener (a raw-socket client in
a process of its own) and directly at the engine's child process (`direct.py`), in five alternating
pairs. Then the time to the first token when idle, with a cached prefix and without, and the longest
time that one callback keeps the gateway's loop (`stalls.py`, on asyncio's own loop).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from machine import (
    HERE,
    Running,
    chat,
    percentile,
    result,
    run_client,
    server,
    wait_until,
    where_and_when,
    write_section,
)

from forebay.core.call import Message
from forebay.system import SystemIds
from forebay.tokens.hf import HuggingFaceTokens
from forebay.tokens.model import ModelTokens

MODEL = "smollm2-135m-instruct"
STREAMS, TOKENS, PAIRS = 32, 128, 5
WORDS = (
    *("river", "stone", "morning", "window", "garden", "answer", "letter", "summer", "bread"),
    *("table", "cloud", "number", "silver", "orange", "forest", "harbour", "lantern", "mountain"),
    *("valley", "bridge", "signal", "current", "spring", "paper", "light"),
)


def text(number: int, words: int) -> str:
    """A prompt that no other number has, from its first word on."""
    picked = [WORDS[(number * 7 + i * (number % 11 + 1)) % len(WORDS)] for i in range(words)]
    return f"{number} " + " ".join(picked)


def weights() -> Path:
    from forebay.catalog import SMOLLM2, FetchSettings
    from forebay.catalog.fetch import fetch
    from forebay.config import load_from_process

    settings = load_from_process({})
    return asyncio.run(fetch(SMOLLM2.source, FetchSettings(settings.cache_dir))).path  # type: ignore[arg-type]


def tokens_of(gguf: Path, prompts: list[str]) -> list[list[int]]:
    """The ids that the gateway makes of these prompts."""
    tokens = ModelTokens.load(Path(f"{gguf}.tokens"), ids=SystemIds(), context_tokens=8192)
    room = HuggingFaceTokens({MODEL: tokens})

    async def render() -> list[list[int]]:
        return [list((await room.render(MODEL, [Message("user", p)])).ids) for p in prompts]

    return asyncio.run(render())


class Direct:
    """The driver process."""

    def __init__(self, gguf: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "direct.py"), str(gguf)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())  # type: ignore[no-any-return]

    def round(self, prompts: list[list[int]]) -> float:
        """Tokens a second."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": prompts, "max_tokens": TOKENS}) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        assert answer["tokens"] == len(prompts) * TOKENS
        return float(answer["tokens"] / answer["seconds"])

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=20)


def through(running: Running, prompts: list[str]) -> float:
    """Tokens a second through the gateway; every token is an event or shares one."""
    calls = [{"body": chat(MODEL, prompt, max_tokens=TOKENS)} for prompt in prompts]
    [phase] = run_client(running, [{"name": "relay", "at_a_time": len(calls), "calls": calls}])
    assert all(call["complete"] for call in phase["calls"])
    return len(prompts) * TOKENS / float(phase["seconds"])


def first_tokens(running: Running, prompts: list[str]) -> list[float]:
    calls = [{"body": chat(MODEL, prompt, max_tokens=8)} for prompt in prompts]
    [phase] = run_client(running, [{"name": "ttft", "at_a_time": 1, "calls": calls}])
    return [call["first_at"] - call["started_at"] for call in phase["calls"]]


def longest_stall(prompts: list[str]) -> tuple[float, str]:
    """CPU seconds of the longest callback under the same 32 streams."""
    launcher = [sys.executable, str(HERE / "stalls.py")]
    with server(MODEL, launcher=launcher) as running:
        through(running, prompts)
        directory = running.directory
        os.kill(running.pid, signal.SIGINT)
        wait_until((directory / "stalls.json").exists)
        stalls = json.loads((directory / "stalls.json").read_text())
    return (stalls[0][0], stalls[0][1]) if stalls else (0.0, "none above 1 ms")


def write_page(figures: dict[str, Any]) -> None:
    """The measured table of docs/reference/performance.md."""
    pairs = zip(
        figures["gateway_tokens_per_second"],
        figures["direct_tokens_per_second"],
        figures["ratios"],
        strict=True,
    )
    idle, cold = figures["idle_ttft_p50_ms"], figures["cold_ttft_p50_ms"]
    warm, share = figures["warm_ttft_p50_ms"], figures["warm_to_cold"]
    write_section(
        "relay",
        [
            f"Measured {where_and_when()}.",
            "",
            "| pair | gateway, tokens/s | direct, tokens/s | ratio |",
            "|---|---|---|---|",
            *(f"| {n} | {here} | {there} | {r} |" for n, (here, there, r) in enumerate(pairs, 1)),
            "",
            f"Median ratio {figures['median_ratio']}. First token of an idle server, 30 distinct "
            f"100-token prompts: p50 {idle} ms. A 1,200-token prompt: {cold} ms at first, {warm} ms "
            f"when repeated ({share} of it). Longest CPU time of one callback of the gateway's loop "
            f"under the 32 streams: {figures['longest_callback_cpu_ms']} ms.",
        ],
    )


def main() -> None:
    gguf = weights()
    prompts = [text(n, 24) for n in range(STREAMS)]
    with server(MODEL) as running:
        ids = tokens_of(gguf, prompts)
        direct = Direct(gguf)
        through(running, prompts)
        direct.round(ids)  # both warm
        pairs = []
        for number in range(PAIRS):
            sides = [lambda: through(running, prompts), lambda: direct.round(ids)]
            if number % 2:
                there, here = sides[1](), sides[0]()
            else:
                here, there = sides[0](), sides[1]()
            pairs.append((here, there))
            print(
                f"pair {number}: gateway {here:.0f} tokens/s, direct {there:.0f}, ratio {here / there:.3f}"
            )
        direct.close()
        idle = first_tokens(running, [text(1000 + n, 88) for n in range(30)])
        long = [text(2000 + n, 1150) for n in range(10)]
        cold_warm = first_tokens(running, [prompt for prompt in long for _ in range(2)])
    cold, warm = cold_warm[0::2], cold_warm[1::2]
    stall, where = longest_stall(prompts)
    ratios = [here / there for here, there in pairs]
    figures = {
        "ratios": [round(ratio, 3) for ratio in ratios],
        "median_ratio": round(statistics.median(ratios), 3),
        "gateway_tokens_per_second": [round(here) for here, _ in pairs],
        "direct_tokens_per_second": [round(there) for _, there in pairs],
        "idle_ttft_p50_ms": round(percentile(idle, 0.5) * 1000, 1),
        "cold_ttft_p50_ms": round(statistics.median(cold) * 1000, 1),
        "warm_ttft_p50_ms": round(statistics.median(warm) * 1000, 1),
        "warm_to_cold": round(statistics.median(warm) / statistics.median(cold), 4),
        "longest_callback_cpu_ms": round(stall * 1000, 1),
        "longest_callback": where[:120],
    }
    goal = {
        "median_ratio": ">= 0.85",
        "idle_ttft_p50_ms": "< 500",
        "warm_to_cold": "<= 0.2",
        "longest_callback_cpu_ms": "<= 50",
    }
    ok = (
        figures["median_ratio"] >= 0.85
        and figures["idle_ttft_p50_ms"] < 500
        and figures["warm_to_cold"] <= 0.2
        and figures["longest_callback_cpu_ms"] <= 50
    )
    if "--write" in sys.argv:
        write_page(figures)
    result("relay", figures, goal, ok)


if __name__ == "__main__":
    main()
