"""What the gateway process itself costs: CPU per call, per KiB of new text, per token; memory; aborts.

The scripted engine runs behind the child's frames, so everything but the model is the real path:
authentication, exact count, hold, queue, settlement, SSE. CPU is that of the gateway process alone
(/proc, threads included, the engine's child and the client not). Prompts are distinct; the long ones
have the lengths of the Azure LLM inference trace 2023 (conversations, CC-BY-4.0), cut to the context.

Prints the figures beside the design's budgets; ok means that the floors hold. `--write` puts them
into docs/reference/performance.md.
"""

from __future__ import annotations

import csv
import gzip
import json
import random
import sys
import tempfile
import threading
from dataclasses import asdict
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
    where_and_when,
    write_section,
)

from forebay.catalog import SMOLLM2

MODEL = "scripted"
SHARED = HERE.parent.parent / "shared" / "traces" / "azure_llm_2023_conv.csv.gz"
CALLS, AT_A_TIME = 3000, 64
STREAMS, STREAM_TOKENS, STEP_SECONDS = 200, 250, 0.04
ABORTS = 200
# name: (unit, goal, floor); from the design's hot-path budgets.
BUDGETS = {
    "cpu_per_call_ms": ("ms", 0.40, 0.65),
    "cpu_per_new_kib_ms": ("ms", 0.6, 0.6),
    "cpu_per_token_us": ("µs", 40.0, 65.0),
    "rss_per_stream_kib": ("KiB", 20.0, 40.0),
    "abort_to_engine_p99_ms": ("ms", 10.0, 50.0),
}


def scripted_with_real_tokenizer() -> dict[str, Any]:
    """The scripted engine, wide enough for 256 calls, behind the default model's own tokenizer."""
    assert SMOLLM2.source is not None
    return {
        "id": MODEL,
        "source": asdict(SMOLLM2.source),
        "max_sequences": 256,
        "max_batched_tokens": 1_000_000,
        "kv_tokens": 4_194_304,
    }


def words(rng: random.Random, size: int) -> str:
    """Text of about this many characters that no other prompt shares a long piece with."""
    text: list[str] = []
    length = 0
    while length < size:
        word = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9)))
        text.append(word)
        length += len(word) + 1
    return " ".join(text)[:size]


def lengths(rng: random.Random, count: int) -> tuple[list[int], str]:
    """Prompt lengths in characters (4 a token), cut to the context (random words take 2 a token)."""
    if SHARED.exists():
        with gzip.open(SHARED, "rt") as file:
            tokens = [int(row["ContextTokens"]) for row in csv.DictReader(file)]
        source = "Azure LLM inference trace 2023, conversations"
    else:
        tokens = [int(rng.lognormvariate(6.7, 0.9)) for _ in range(10_000)]
        source = "made lengths (the Azure trace is not here)"
    return [min(4 * rng.choice(tokens), 12_000) for _ in range(count)], source


def cpu_of(running: Running, phase: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """CPU seconds of the gateway while the phase ran, and what the client saw."""
    before = running.cpu_seconds()
    [seen] = run_client(running, [phase])
    return running.cpu_seconds() - before, seen


def short_calls(running: Running, rng: random.Random, sizes: list[int]) -> tuple[float, float]:
    """CPU milliseconds per call at these prompt sizes, and calls a second."""
    calls = [{"body": chat(MODEL, words(rng, n), max_tokens=4, stream=False)} for n in sizes]
    cpu, seen = cpu_of(running, {"name": "calls", "at_a_time": AT_A_TIME, "calls": calls})
    assert all(call["complete"] for call in seen["calls"])
    return cpu / len(calls) * 1000, len(calls) / seen["seconds"]


def streams(running: Running, rng: random.Random) -> tuple[float, float]:
    """CPU microseconds per token at 200 streams of 25 tokens a second; KiB of memory per stream."""
    body = [chat(MODEL, words(rng, 64), max_tokens=STREAM_TOKENS) for _ in range(STREAMS)]
    before = running.rss_bytes()
    peak = before

    def phase(calls: list[dict[str, Any]]) -> dict[str, Any]:
        return {"name": "streams", "at_a_time": len(calls), "calls": [{"body": c} for c in calls]}

    over = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not over.wait(0.1):
            peak = max(peak, running.rss_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    cpu, seen = cpu_of(running, phase(body))
    over.set()
    watcher.join()
    assert all(call["complete"] for call in seen["calls"])
    return cpu / (STREAMS * STREAM_TOKENS) * 1e6, (peak - before) / STREAMS / 1024


def aborts(running: Running, rng: random.Random, log: Path) -> list[float]:
    """Seconds from hanging up to the cancel at the engine, of streams in full flow."""
    calls = [
        {
            "body": chat(MODEL, words(rng, 64), max_tokens=1000),
            "leave_events": rng.randint(5, 40),
        }
        for _ in range(ABORTS)
    ]
    [seen] = run_client(running, [{"name": "aborts", "at_a_time": 50, "calls": calls}])
    left = {call["request_id"]: call["left_at"] for call in seen["calls"]}
    started: dict[int, str] = {}
    delays = []
    for line in log.read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "submit":
            started[event["sequence"]] = event["id"].split(".")[0]
        elif event["event"] == "cancel" and started[event["sequence"]] in left:
            delays.append(event["at"] - left[started[event["sequence"]]])
    assert len(delays) == ABORTS, f"{len(delays)} of {ABORTS} aborts reached the engine"
    return delays


def write_page(figures: dict[str, Any], source: str) -> None:
    """The measured table of docs/reference/performance.md."""
    rows = [
        f"| {name} | {figures[name]} {unit} | {goal:g} {unit} | {floor:g} {unit} |"
        for name, (unit, goal, floor) in BUDGETS.items()
    ]
    rates = f"{figures['calls_per_second']} with short prompts"
    rates += f", {figures['long_calls_per_second']} with the trace's"
    write_section(
        "gateway_cost",
        [
            f"Measured {where_and_when()}; prompts: {source}.",
            "",
            "| figure | measured | goal | floor |",
            "|---|---|---|---|",
            *rows,
            "",
            f"Calls a second at 64 connections, the client and the engine on the same cores: {rates}. "
            f"Memory of the gateway process before load: {figures['rss_idle_mib']} MiB.",
        ],
    )


def main() -> None:
    rng = random.Random(1)
    env = {
        "FOREBAY_SCRIPTED__STEP_SECONDS": "0.002",
        "FOREBAY_ADMISSION__INTERACTIVE_DEADLINE_SECONDS": "3600",
        "FOREBAY_MODELS": json.dumps([scripted_with_real_tokenizer()]),
    }
    with server(MODEL, env) as running:
        rss_idle = running.rss_bytes()
        short_calls(running, rng, [50] * 500)  # warm
        small, small_rate = short_calls(running, rng, [50] * CALLS)
        sizes, source = lengths(rng, CALLS // 2)
        long, long_rate = short_calls(running, rng, sizes)
    kib = sum(sizes) / len(sizes) / 1024
    with server(MODEL, {**env, "FOREBAY_SCRIPTED__STEP_SECONDS": str(STEP_SECONDS)}) as running:
        streams(running, rng)  # warm: the second wave shows what a stream costs, not what code does
        token_us, stream_kib = streams(running, rng)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "engine.jsonl")
        log_env = {"FOREBAY_SCRIPTED__LOG_PATH": str(log)}
        slow = {"FOREBAY_SCRIPTED__STEP_SECONDS": str(STEP_SECONDS)}
        with server(MODEL, {**env, **slow, **log_env}) as running:
            delays = aborts(running, rng, log)
    figures = {
        "cpu_per_call_ms": round(small, 3),
        "cpu_per_new_kib_ms": round((long - small) / kib, 3),
        "cpu_per_token_us": round(token_us, 1),
        "rss_per_stream_kib": round(stream_kib, 1),
        "abort_to_engine_p99_ms": round(percentile(delays, 0.99) * 1000, 2),
        "abort_to_engine_p50_ms": round(percentile(delays, 0.5) * 1000, 2),
        "rss_idle_mib": round(rss_idle / 2**20),
        "calls_per_second": round(small_rate),
        "long_calls_per_second": round(long_rate),
        "mean_prompt_kib": round(kib, 2),
        "prompts": source,
    }
    for name, (unit, goal, floor) in BUDGETS.items():
        print(f"{name:26} {figures[name]:>9} {unit:3}  goal {goal:g}, floor {floor:g}")
    goal = {name: f"<= {floor:g} {unit}" for name, (unit, _, floor) in BUDGETS.items()}
    ok = all(figures[name] <= floor for name, (_, _, floor) in BUDGETS.items())
    if "--write" in sys.argv:
        write_page(figures, source)
    result("gateway_cost", figures, goal, ok)


if __name__ == "__main__":
    main()
