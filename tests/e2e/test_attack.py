"""One key with three limits, attacked by five hundred connections at once.

Sixty requests a minute, ten thousand tokens a minute and four calls at once. What passed is read
from three sides, the client's answers, the engine's own log and the bill, and compared with the
bounds in every window between two events, not only from the start. Times are monotonic seconds that
all processes share, and each is taken on the safe side: a permit was taken between the moment its
request was sent and the moment its call reached the engine or its answer the client.

`--attack 60` is the long form (15 s).
"""

from __future__ import annotations

import asyncio
import bisect
import random
import re
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from forebay.testing.rawhttp import Answer, RawClient
from tests.e2e import enginelog
from tests.e2e.running import Server

REQUESTS, TOKENS, CALLS = 60, 10_000, 4
ATTACKERS, OUTPUT, MADE = 500, 900, 300
BODY: dict[str, Any] = {
    "model": "scripted",
    "max_tokens": OUTPUT,
    "messages": [{"role": "user", "content": f"[[script length={MADE}]]"}],
}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class Seen:
    """One answer. `limited` is what refused it: requests, tokens, calls; empty if it ran."""

    id: str
    sent_at: float
    ended_at: float
    limited: str
    headers: dict[str, str]

    def remaining(self, what: str) -> int:
        return int(self.headers[f"x-ratelimit-remaining-{what}"])


def seen(answer: Answer) -> Seen:
    told = {
        name: value
        for name, value in answer.headers.items()
        if name.startswith(("x-ratelimit", "retry-after", "x-should-retry"))
    }
    return Seen(answer.request_id, answer.started_at, answer.ended_at, limited(answer), told)


def limited(answer: Answer) -> str:
    if answer.status == 200:
        return ""
    error = answer.json()["error"]
    assert (answer.status, error["code"]) == (429, "rate_limit_exceeded"), error
    if "calls open" in error["message"]:
        return "calls"
    return "tokens" if "token" in error["message"] else "requests"


async def attack(server: Server, secret: str, seconds: float) -> list[Seen]:
    """Whoever is answered asks again, after a moment."""
    ends_at = time.monotonic() + seconds
    rng = random.Random(5)
    answers: list[Seen] = []

    async def attacker() -> None:
        async with RawClient(server.host, server.port, secret) as client:
            await client.connect()
            while time.monotonic() < ends_at:
                answer = await client.post(BODY)
                assert answer.complete
                answers.append(seen(answer))
                await asyncio.sleep(rng.random() * 0.6)

    await asyncio.gather(*(attacker() for _ in range(ATTACKERS)))
    return answers


def requests_stay_within(answers: list[Seen]) -> None:
    """A2: whoever was not refused for its requests took one."""
    passed = [each for each in answers if each.limited != "requests"]
    assert len(passed) >= REQUESTS
    for since in (each.sent_at for each in passed):
        ends = sorted(each.ended_at for each in passed if each.sent_at >= since)
        for count, until in enumerate(ends, start=1):
            assert count <= REQUESTS * (1 + (until - since) / 60)


def tokens_stay_within(
    answers: list[Seen], spans: list[enginelog.Span], rows: dict[str, dict[str, Any]]
) -> None:
    """A2, A4: P + M of each call in the engine, P and what was made of each that has left it."""
    sent = {each.id: each.sent_at for each in answers}
    for since in sent.values():
        mine = [each for each in spans if sent[each.call_id] >= since]
        for until in (each.begun_at for each in mine):
            taken = sum(
                rows[each.call_id]["input_tokens"]
                + (OUTPUT if until <= each.ended_at else rows[each.call_id]["output_tokens"])
                for each in mine
                if each.begun_at <= until
            )
            assert taken <= TOKENS * (1 + (until - since) / 60)


def seconds_of(text: str) -> float:
    """Of OpenAI's durations, such as 1s, 6m0s, 20ms."""
    parts = _PART.findall(text)
    assert "".join(number + unit for number, unit in parts) == text, text
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def headers_are_right(answers: list[Seen], most_tokens_of_a_call: int) -> None:
    """Between what must have been left at least and can have been left at most, at each answer."""
    began = min(each.sent_at for each in answers)
    takers = [each for each in answers if each.limited != "requests"]
    sent = sorted(each.sent_at for each in takers)
    ended = sorted(each.ended_at for each in takers)
    for each in answers:
        headers = each.headers
        assert headers["x-ratelimit-limit-requests"] == str(REQUESTS)
        assert headers["x-ratelimit-limit-tokens"] == str(TOKENS)
        left = each.remaining("requests")
        begun = bisect.bisect_right(sent, each.ended_at)
        over = bisect.bisect_left(ended, each.sent_at)
        refilled = REQUESTS * (1 + (each.ended_at - began) / 60)
        assert REQUESTS - begun <= left <= min(REQUESTS, refilled - over)
        assert left >= 0
        assert 0 <= each.remaining("tokens") <= TOKENS
        assert 0 <= seconds_of(headers["x-ratelimit-reset-requests"]) <= 60
        assert 0 <= seconds_of(headers["x-ratelimit-reset-tokens"]) <= 60
        if each.limited:
            assert float(headers["retry-after-ms"]) > 0
            assert int(headers["retry-after"]) > 0
        # What time gave back between the refusal and its headers.
        minutes = (each.ended_at - each.sent_at) / 60
        if each.limited == "requests":
            assert left < 1 + REQUESTS * minutes
        if each.limited == "tokens":
            assert each.remaining("tokens") < most_tokens_of_a_call + TOKENS * minutes


def debt(taken: list[tuple[float, int]], now: float) -> float:
    """What these permits, taken at these times, leave to be paid back at the limit's pace."""
    owed, last = 0.0, 0.0
    for at, tokens in sorted(taken):
        owed, last = max(0.0, owed - (at - last) * TOKENS / 60) + tokens, at
    return max(0.0, owed - (now - last) * TOKENS / 60)


def refused_calls_took_no_tokens(
    answers: list[Seen], spans: list[enginelog.Span], rows: dict[str, dict[str, Any]]
) -> None:
    """A1, A4: what is left in the end is explained by those that ran alone, to the token."""
    last = answers[-1]
    used = {id_: row["input_tokens"] + row["output_tokens"] for id_, row in rows.items()}
    early = [(each.sent_at, used[each.id]) for each in answers if each.id in used]
    late = [(each.begun_at, used[each.call_id]) for each in spans]
    left = last.remaining("tokens")
    assert TOKENS - debt(late, last.sent_at) - 1 <= left <= TOKENS - debt(early, last.ended_at)


async def test_three_limits_hold_against_five_hundred_connections(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """A1, A2, A3, A4, L15."""
    log = tmp_path / "engine.jsonl"
    env = {
        "FOREBAY_SCRIPTED__STEP_SECONDS": "0.01",
        "FOREBAY_SCRIPTED__LOG_PATH": str(log),
        "FOREBAY_LOG_LEVEL": "warning",
    }
    with Server.start("--model", "scripted", data_dir=tmp_path / "data", env=env) as server:
        limits = {
            "requests_per_minute": REQUESTS,
            "tokens_per_minute": TOKENS,
            "max_open_calls": CALLS,
        }
        key = await server.ask("keys.create", request=limits)
        answers = await attack(server, key["key"], pytestconfig.getoption("--attack"))
        async with RawClient(server.host, server.port, key["key"]) as client:
            answers.append(seen(await client.post(BODY)))  # when nothing else is under way
        rows = {row["call_id"]: row for row in server.usage()}
        assert server.stop() == 0
    kinds = Counter(each.limited for each in answers)
    print(dict(kinds))
    assert kinds.keys() == {"", "requests", "tokens", "calls"}
    spans = enginelog.spans(log)
    assert enginelog.most_at_once(spans) == CALLS
    assert {each.call_id for each in spans} == {each.id for each in answers if not each.limited}
    assert rows.keys() == {each.call_id for each in spans}
    assert {row["output_tokens"] for row in rows.values()} == {MADE}
    requests_stay_within(answers)
    tokens_stay_within(answers, spans, rows)
    refused_calls_took_no_tokens(answers, spans, rows)
    [input_tokens] = {row["input_tokens"] for row in rows.values()}
    headers_are_right(answers, input_tokens + OUTPUT)
