"""What a mixed crowd asks for: streamed or not, several choices, JSON, the batch lane, and who leaves.

Pure: the same random source, the same wishes. For real servers under load (`tests/kill`,
`bench/soak.py`), which want every kind of call at every moment.

Not here: plans of the simulated world (`plans.py`), how a call is sent (`rawhttp.py`).
"""

from __future__ import annotations

import random
from typing import Any

from forebay.testing.rawhttp import Leave

LEAVING = 0.2
MOST_TOKENS = 60
_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "litres": {"type": "integer"}},
    "required": ["name", "litres"],
    "additionalProperties": False,
}


def wish(rng: random.Random, model: str) -> tuple[dict[str, Any], Leave]:
    """One call, and when its client leaves: a fifth do, at a random moment."""
    streamed = rng.random() < 0.6
    body: dict[str, Any] = {
        "model": model,
        "stream": streamed,
        "max_tokens": rng.randint(1, MOST_TOKENS),
        "ignore_eos": rng.random() < 0.7,
        "messages": [{"role": "user", "content": _prompt(rng)}],
    }
    kind = rng.random()
    if kind < 0.1:
        body |= {"n": 2, "temperature": 1}
    elif kind < 0.2:
        schema = {"name": "river", "schema": _SCHEMA, "strict": True}
        format_ = {"type": "json_schema", "json_schema": schema}
        body |= {"response_format": format_, "max_tokens": 2 * MOST_TOKENS, "ignore_eos": False}
    if rng.random() < 0.2:
        body["service_tier"] = "flex"
    if rng.random() >= LEAVING:
        return body, Leave()
    events = rng.randint(1, MOST_TOKENS // 2) if streamed and rng.random() < 0.7 else None
    return body, Leave(events=events, seconds=rng.random())


def _prompt(rng: random.Random) -> str:
    """Half of them have been asked before, so that caches are met full and empty."""
    if rng.random() < 0.5:
        return f"Tell me about river {rng.randrange(50)}."
    return f"Tell me about {rng.random()}. " + "It flows. " * rng.randrange(40)
