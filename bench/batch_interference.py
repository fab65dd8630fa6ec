"""What a batch job does to interactive calls, and what they leave of it.

With the real model and one organisation. An interactive call comes every EVERY_SECONDS: 100 input
tokens, new to the engine's prefix cache but for the template, and INTERACTIVE_TOKENS of output,
streamed. The batch has LINES small tasks of the usual kind: an instruction that all of them share
(66 tokens with the template, cached after the first), a text of each one's own (some 33) and
BATCH_TOKENS of output.

ROUNDS times, one after the other: the interactive calls alone, the same beside the batch, and, on a
second server that has no reserve, the batch alone.

- `ttft_p50_ratio`, `ttft_p99_ratio`: time to the first token beside the batch, over that of the same
  arrivals alone. At most 1.5 and 2.5.
- `batch_share`: output tokens a second of the batch lane beside the interactive calls, over those
  alone at its best. At least 0.6. They are the slope of the server's own counter, from RAMP_SECONDS
  after the batch began until its phase ends.

`others_cores` says whether the figures can be judged at all: how many CPU cores other programs used
meanwhile. Above a few hundredths they took them from the engines, now here, now there.

Ends with one JSON line; `--write` puts the figures into docs/reference/performance.md.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.request import urlopen

from machine import (
    Running,
    busy_seconds,
    chat,
    own_seconds,
    percentile,
    result,
    server,
    where_and_when,
    write_section,
)
from openai import AsyncOpenAI
from relay import text

from forebay.testing.rawhttp import RawClient

MODEL, ENDPOINT = "smollm2-135m-instruct", "/v1/chat/completions"
ROUNDS, ARRIVALS, EVERY_SECONDS = 3, 34, 2.0
INTERACTIVE_WORDS, INTERACTIVE_TOKENS = 66, 32
LINES, LINE_WORDS, BATCH_TOKENS = 1_000, 30, 64
RAMP_SECONDS, BEST_SECONDS, PAUSE_SECONDS = 3.0, 14.0, 1.5
INSTRUCTION = (
    "Read the customer's letter below. Name its subject in one short sentence, say whether the "
    "customer is content, and give the reason in the customer's own words. Letter: "
)
BEST = {"FOREBAY_QUEUE__BATCH_RESERVE_PERCENT": "0", "FOREBAY_QUEUE__BATCH_STARTS": "32"}
TOKENS = re.compile(r'forebay_tokens_total\{lane="batch",.*type="output"\} (\S+)')
GOAL = {"ttft_p50_ratio": "<= 1.5", "ttft_p99_ratio": "<= 2.5", "batch_share": ">= 0.6"}


class Round(NamedTuple):
    """Times to the first token, in milliseconds, output tokens a second of the batch lane, and the
    cores that other programs used."""

    alone_ms: list[float]
    beside_ms: list[float]
    beside_per_second: float
    best_per_second: float
    others_cores: float


async def interactive(running: Running, first: int) -> list[float]:
    """An open loop of calls that have numbers from `first` on; the times to their first tokens."""
    began_at = time.monotonic()
    calls = []
    for number in range(ARRIVALS):
        await asyncio.sleep(began_at + number * EVERY_SECONDS - time.monotonic())
        calls.append(
            asyncio.create_task(_first_token_ms(running, text(first + number, INTERACTIVE_WORDS)))
        )
    times = await asyncio.gather(*calls)
    await asyncio.sleep(began_at + ARRIVALS * EVERY_SECONDS - time.monotonic())
    return times


async def _first_token_ms(running: Running, prompt: str) -> float:
    async with RawClient(running.host, running.port, running.key, keep=False) as client:
        await client.connect()
        answer = await client.post(chat(MODEL, prompt, max_tokens=INTERACTIVE_TOKENS))
    assert answer.complete, answer.status
    assert answer.first_at is not None, answer.status
    return (answer.first_at - answer.started_at) * 1000


@asynccontextmanager
async def batch(running: Running, first: int) -> AsyncIterator[list[tuple[float, float]]]:
    """A batch whose lines have numbers from `first` on is under way; it is cancelled at the end.

    Yields the samples that are taken meanwhile of the output tokens of the lane.
    """
    samples: list[tuple[float, float]] = []
    base_url = f"http://{running.host}:{running.port}/v1"
    async with AsyncOpenAI(base_url=base_url, api_key=running.key) as client:
        lines = b"".join(line(first + number) for number in range(LINES))
        file = await client.files.create(file=("lines.jsonl", lines), purpose="batch")
        made = await client.batches.create(
            input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h"
        )
        sampling = asyncio.create_task(_sample(running, samples))
        yield samples
        sampling.cancel()
        state = (await client.batches.cancel(made.id)).status
        assert state == "cancelling", "the batch had too few lines"
        while state != "cancelled":
            await asyncio.sleep(0.1)
            state = (await client.batches.retrieve(made.id)).status
    await asyncio.sleep(PAUSE_SECONDS)


def line(number: int) -> bytes:
    body = chat(
        MODEL, INSTRUCTION + text(number, LINE_WORDS), max_tokens=BATCH_TOKENS, stream=False
    )
    asked = {"custom_id": f"line-{number}", "method": "POST", "url": ENDPOINT, "body": body}
    return json.dumps(asked).encode() + b"\n"


async def _sample(running: Running, samples: list[tuple[float, float]]) -> None:
    """Every second, the time and the output tokens of the batch lane until then."""
    await asyncio.sleep(RAMP_SECONDS)
    while True:
        page = await asyncio.to_thread(_metrics, running)
        found = TOKENS.search(page)
        samples.append((time.monotonic(), float(found[1]) if found else 0.0))
        await asyncio.sleep(1.0)


def _metrics(running: Running) -> str:
    with urlopen(f"{running.admin_url}/metrics") as answer:
        page: str = answer.read().decode()
    return page


def per_second(samples: list[tuple[float, float]]) -> float:
    """The slope: it hardly minds that calls end, and are counted, in waves."""
    times, tokens = zip(*samples, strict=True)
    return statistics.linear_regression(times, tokens).slope


async def measure(product: Running, best: Running, number: int) -> Round:
    """One round; every text in it has a number that no other has."""
    first = 10_000 * (number + 1)
    began_at, others = time.monotonic(), busy_seconds() - own_seconds()
    alone = await interactive(product, first)
    async with batch(product, first + 1_000) as samples:
        await asyncio.sleep(RAMP_SECONDS)
        beside = await interactive(product, first + 100)
        rate = per_second(samples)
    async with batch(best, first + 1_000) as samples:
        await asyncio.sleep(RAMP_SECONDS + BEST_SECONDS)
        best_rate = per_second(samples)
    others = (busy_seconds() - own_seconds() - others) / (time.monotonic() - began_at)
    found = Round(alone, beside, rate, best_rate, others)
    print(f"round {number + 1}: {shown(found)}", flush=True)
    return found


def shown(found: Round) -> str:
    alone, beside = found.alone_ms, found.beside_ms
    return (
        f"first token alone p50 {percentile(alone, 0.5):.0f} ms, p99 {percentile(alone, 0.99):.0f}; "
        f"beside the batch {percentile(beside, 0.5):.0f} and {percentile(beside, 0.99):.0f}; batch "
        f"{found.beside_per_second:.0f} tokens/s, alone {found.best_per_second:.0f}; other programs "
        f"{found.others_cores:.2f} cores"
    )


def figures_of(rounds: list[Round]) -> dict[str, Any]:
    alone = [ms for each in rounds for ms in each.alone_ms]
    beside = [ms for each in rounds for ms in each.beside_ms]
    rate = statistics.mean(each.beside_per_second for each in rounds)
    best = statistics.mean(each.best_per_second for each in rounds)
    times = {
        f"ttft_{name}_p{percent}_ms": round(percentile(values, percent / 100), 1)
        for name, values in (("alone", alone), ("beside", beside))
        for percent in (50, 99)
    }
    return {
        **times,
        "ttft_p50_ratio": round(percentile(beside, 0.5) / percentile(alone, 0.5), 2),
        "ttft_p99_ratio": round(percentile(beside, 0.99) / percentile(alone, 0.99), 2),
        "batch_tokens_per_second": round(rate),
        "batch_best_tokens_per_second": round(best),
        "batch_share": round(rate / best, 2),
        "others_cores": round(statistics.mean(each.others_cores for each in rounds), 2),
    }


def write_page(figures: dict[str, Any]) -> None:
    """The measured table of docs/reference/performance.md."""
    write_section(
        "batch_interference",
        [
            f"Measured {where_and_when()}, of which other programs used {figures['others_cores']}; "
            f"{ROUNDS * ARRIVALS} interactive calls alone, and as many beside the batch.",
            "",
            "| | alone | both | ratio | goal |",
            "|---|---|---|---|---|",
            *(
                f"| first token of interactive calls, p{p}, ms | {figures[f'ttft_alone_p{p}_ms']} | "
                f"{figures[f'ttft_beside_p{p}_ms']} | {figures[f'ttft_p{p}_ratio']} | "
                f"{GOAL[f'ttft_p{p}_ratio']} |"
                for p in (50, 99)
            ),
            f"| batch, tokens/s | {figures['batch_best_tokens_per_second']} | "
            f"{figures['batch_tokens_per_second']} | {figures['batch_share']} | "
            f"{GOAL['batch_share']} |",
        ],
    )


async def run() -> list[Round]:
    with server(MODEL) as product, server(MODEL, BEST) as best:
        return [await measure(product, best, number) for number in range(ROUNDS)]


def main() -> None:
    figures = figures_of(asyncio.run(run()))
    ok = (
        figures["ttft_p50_ratio"] <= 1.5
        and figures["ttft_p99_ratio"] <= 2.5
        and figures["batch_share"] >= 0.6
    )
    if "--write" in sys.argv:
        write_page(figures)
    result("batch_interference", figures, GOAL, ok)


if __name__ == "__main__":
    main()
