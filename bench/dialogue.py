"""What a conversation costs, and what it saves: the time to the first token, and of a whole turn.

With the real model: a conversation of TURNS turns with a system prompt of some 400 tokens. After each
turn but the first, the same prompt is sent as plain messages, cold: its system prompt begins with a
word that no other has, so that the engine's prefix cache has nothing of it.

- `ttft_ratio`: of turn and cold prompt, the median and the largest of all turns. At most a third.

With the scripted engine, one call at a time, alternately as a turn of a conversation and as plain
messages: what the first turn of one costs beside its call (a read and three commits on the disk).

Ends with one JSON line.
"""

from __future__ import annotations

import asyncio
import statistics
from typing import Any

from machine import Running, percentile, result, server
from openai import AsyncOpenAI

from forebay.testing.rawhttp import RawClient

MODEL, SCRIPTED = "smollm2-135m-instruct", "scripted"
TURNS, OUTPUT = 16, 24
CALLS = 60
RULES = "Answer in one or two short and friendly sentences, and never in a list. " * 24
GOAL = {"ttft_ratio_max": "<= 0.333"}


def body(model: str, messages: list[dict[str, str]], **more: Any) -> dict[str, Any]:
    return {
        "model": model, "stream": True, "temperature": 0, "ignore_eos": True,
        "max_tokens": OUTPUT, "messages": messages, **more,
    }  # fmt: skip


async def ttft_ms(client: RawClient, asked: dict[str, Any]) -> float:
    answer = await client.post(asked)
    assert answer.complete, answer.status
    assert answer.first_at is not None, answer.body
    return (answer.first_at - answer.started_at) * 1000


async def turns(running: Running) -> list[tuple[float, float]]:
    """Time to the first token of each turn but the first, in the conversation and cold."""
    pairs = []
    url = f"http://{running.host}:{running.port}/v1"
    async with (
        AsyncOpenAI(base_url=url, api_key=running.key) as sdk,
        RawClient(running.host, running.port, running.key) as raw,
    ):
        system = {"type": "message", "role": "system", "content": RULES}
        id_ = (await sdk.conversations.create(items=[system])).id  # type: ignore[list-item]
        for number in range(TURNS):
            new = [{"role": "user", "content": f"Tell me fact number {number} about rivers."}]
            warm = await ttft_ms(raw, body(MODEL, new, conversation=id_))
            items = (await sdk.conversations.items.list(id_, order="asc", limit=100)).data
            said = [{"role": i.role, "content": i.content[0].text} for i in items]  # type: ignore
            cold = [{**said[0], "content": f"{number}{number}. {RULES}"}, *said[1:-1]]
            if number:
                pairs.append((warm, await ttft_ms(raw, body(MODEL, cold))))
                print(f"turn {number + 1}: {warm:.0f} ms, cold {pairs[-1][1]:.0f} ms", flush=True)
    return pairs


async def overhead(running: Running) -> tuple[float, float]:
    """Median milliseconds of a whole call, as a turn and plain, one call at a time."""
    took: dict[bool, list[float]] = {True: [], False: []}
    url = f"http://{running.host}:{running.port}/v1"
    async with (
        AsyncOpenAI(base_url=url, api_key=running.key) as sdk,
        RawClient(running.host, running.port, running.key) as raw,
    ):
        said = [{"role": "user", "content": "Hello [[script length=4]]"}]
        for number in range(2 * CALLS):
            turn = number % 2 == 0
            id_ = (await sdk.conversations.create()).id
            asked = body(SCRIPTED, said, **({"conversation": id_} if turn else {}))
            asked["max_tokens"] = 4
            answer = await raw.post(asked)
            assert answer.complete, answer.status
            took[turn].append((answer.ended_at - answer.started_at) * 1000)
    return statistics.median(took[True]), statistics.median(took[False])


def main() -> None:
    with server(MODEL) as running:
        pairs = asyncio.run(turns(running))
    with server(SCRIPTED) as running:
        turn, plain = asyncio.run(overhead(running))
    ratios = [warm / cold for warm, cold in pairs]
    figures = {
        "ttft_ratio_p50": round(percentile(ratios, 0.5), 3),
        "ttft_ratio_max": round(max(ratios), 3),
        "ttft_turn_p50_ms": round(percentile([warm for warm, _ in pairs], 0.5), 1),
        "ttft_cold_p50_ms": round(percentile([cold for _, cold in pairs], 0.5), 1),
        "turn_p50_ms": round(turn, 1),
        "plain_p50_ms": round(plain, 1),
        "turn_costs_ms": round(turn - plain, 1),
    }
    result("dialogue", figures, GOAL, max(ratios) <= 1 / 3)


if __name__ == "__main__":
    main()
