"""The scripted engine's own log, read back: what was made for whom, whatever anybody bills."""

from __future__ import annotations

import json
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
