"""The scripted engine's own log, read back: what was made for whom, whatever anybody bills."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Work:
    """One submission: what it had made at its last step, and when its cancel arrived."""

    call_id: str
    prompt: str
    made: int = 0
    cancelled_at: int | None = None
    finished: str | None = None


@dataclass
class EngineLog:
    """All submissions, in order."""

    work: list[Work] = field(default_factory=list)

    def of(self, call_id: str) -> list[Work]:
        return [each for each in self.work if each.call_id == call_id]

    def made(self, call_id: str) -> int:
        """Tokens made for a call over all its attempts."""
        return sum(each.made for each in self.of(call_id))


def read(path: Path) -> EngineLog:
    """The log as far as it was written; a line cut off by `kill -9` is left out.

    A restarted engine numbers its sequences anew, so a repeated submit replaces the number's owner.
    """
    log, open_work = EngineLog(), {}
    for line in path.read_bytes().split(b"\n"):
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if event["event"] == "submit":
            prompt = bytes(i for i in event["prompt_ids"] if i < 256).decode(errors="replace")
            work = Work(event["id"].split(".")[0], prompt)
            open_work[event["sequence"]] = work
            log.work.append(work)
        elif event["event"] == "step":
            for sequence, made in event["made"]:
                open_work[sequence].made = made
        elif event["event"] == "cancel":
            open_work[event["sequence"]].cancelled_at = event["made"]
        elif event["event"] == "finish":
            open_work[event["sequence"]].finished = event["reason"]
            open_work[event["sequence"]].made = event["made"]
    return log


@dataclass
class Span:
    """A submission's time in the engine, in monotonic seconds."""

    call_id: str
    begun_at: float
    ended_at: float = math.inf


def spans(path: Path) -> list[Span]:
    """From submit to finish or cancel, of an engine that was not restarted meanwhile."""
    found: dict[int, Span] = {}
    for line in path.read_bytes().splitlines():
        event = json.loads(line)
        if event["event"] == "submit":
            found[event["sequence"]] = Span(event["id"].split(".")[0], event["at"])
        elif event["event"] in ("finish", "cancel"):
            found[event["sequence"]].ended_at = event["at"]
    return list(found.values())


def most_at_once(spans: Iterable[Span]) -> int:
    """How many ran at the busiest moment; one that ends when another begins counts no more."""
    changes = [change for span in spans for change in ((span.begun_at, 1), (span.ended_at, -1))]
    return max(itertools.accumulate(step for _, step in sorted(changes)), default=0)
