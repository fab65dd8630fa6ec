"""Ten times more calls than the engine can serve, for a minute: what it still gets done, and after.

The scripted engine has a known capacity: SLOTS calls at once, OUTPUT steps of STEP_SECONDS each. An
open loop (`flood.py`, a process of its own, streams over raw sockets that are kept) offers 1× of
it, then 10×, then 0.8×, over several projects. Once refused clients give up, once they try again
twice, as OpenAI's SDKs do, after what `retry-after-ms` says.

- Goodput: calls a second that ended completely and whose first token came within the lane's
  deadline, seen by the client. At 10× at least 95 % of what 1× gives.
- A refusal is an answer 429 or 503 that did not wait in the queue; its 99th percentile, seen by the
  client, stays under 20 ms. Calls that waited and were turned away at the deadline count apart.
- Memory of the server during 10× and after is at most MOST_RSS_MIB above what it was before.
- Back at 0.8×: of the calls that begin 30 s later and after, at least 99 % are served in good time,
  at the first try where clients give up, within their tries where they try again. (The full queue
  itself needs 50 s to empty: it drains at a fifth of the capacity, and holds ten seconds of it.)

`starved_share_at_10x` says whether times can be judged at all: the share of the time in which the
server wanted a CPU that others had. `--seconds 20` shortens 10× (default 60). Prints one line per
phase, then one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from machine import HERE, Running, chat, percentile, result, server

from forebay.cli.desk import SOCKET
from forebay.gateway import control

MODEL = "scripted"
SLOTS, OUTPUT, STEP_SECONDS = 8, 32, 0.02
CAPACITY = SLOTS / (OUTPUT * STEP_SECONDS)  # 12.5 calls a second
DEADLINE_SECONDS = 10.0
PROJECTS = 8
WARM_SECONDS, ONCE_SECONDS, BACK_SECONDS, NORMAL_AFTER_SECONDS = 10, 30, 45, 30
# The queue fills to its deadline at the beginning of 10×.
RAMP_SECONDS = 5.0
RETRIES = 2
MOST_RSS_MIB = 64
GOAL = {
    "goodput_ratio": ">= 0.95",
    "refusal_p99_ms": "< 20",
    "rss_growth_mib": f"<= {MOST_RSS_MIB}",
    "served_when_back": ">= 0.99",
}


class Sample(NamedTuple):
    """The server's process at one moment."""

    at: float
    rss_bytes: int
    cpu_seconds: float
    starved_seconds: float


class Watch:
    """Looks at the server's process five times a second."""

    def __init__(self, running: Running) -> None:
        self._samples: list[Sample] = []
        self._running = running
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def rss_mib(self, since: float, until: float) -> float:
        """The most within this time."""
        return max(each.rss_bytes for each in self._within(since, until)) / 2**20

    def cpu_share(self, since: float, until: float) -> float:
        """CPU seconds a second."""
        first, *_, last = self._within(since, until)
        return (last.cpu_seconds - first.cpu_seconds) / (last.at - first.at)

    def starved_share(self, since: float, until: float) -> float:
        """Seconds a second in which its main thread wanted a CPU and had none."""
        first, *_, last = self._within(since, until)
        return (last.starved_seconds - first.starved_seconds) / (last.at - first.at)

    def _within(self, since: float, until: float) -> list[Sample]:
        return [each for each in self._samples if since <= each.at <= until]

    def _run(self) -> None:
        running = self._running
        while not self._over.wait(0.2):
            self._samples.append(
                Sample(
                    time.monotonic(),
                    running.rss_bytes(),
                    running.cpu_seconds(),
                    running.starved_seconds(),
                )
            )


class Phase:
    """What the client saw of the calls that began in one phase."""

    def __init__(self, record: dict[str, Any]) -> None:
        self.name = str(record["phase"])
        self.began_at, self.ended_at = float(record["began_at"]), float(record["ended_at"])
        self.lag_ms = [float(each) for each in record["lag_ms"]]
        self.tries = [Try(*each) for each in record["tries"]]

    def refusals(self) -> list[float]:
        """Milliseconds of each refusal that did not wait in the queue."""
        refused = [each.ms for each in self.tries if each.refused]
        return [ms for ms in refused if ms < DEADLINE_SECONDS * 1000]

    def evicted(self) -> int:
        """Waited to the deadline for nothing: a late refusal, or a stream with the error alone."""
        return sum(each.evicted for each in self.tries)

    def other(self) -> int:
        """Neither served nor refused: there should be none."""
        return sum(not each.refused and not each.complete for each in self.tries)

    def served(self, since: float) -> float:
        """The share of the calls begun since then that were served well, at whichever try."""
        began: dict[int, bool] = {}
        for each in self.tries:
            if each.number in began or each.sent_at >= since:
                began[each.number] = began.get(each.number, False) or each.good
        return sum(began.values()) / len(began)


class Try(NamedTuple):
    """One try of one call."""

    number: int
    status: int
    sent_at: float
    first_at: float | None
    ended_at: float
    complete: bool

    @property
    def refused(self) -> bool:
        return self.status in (429, 503)

    @property
    def evicted(self) -> bool:
        late = self.ms >= DEADLINE_SECONDS * 1000
        return late and (self.refused or (self.complete and self.first_at is None))

    @property
    def ms(self) -> float:
        return (self.ended_at - self.sent_at) * 1000

    @property
    def first_seconds(self) -> float:
        """Infinite for what never had a first token."""
        return float("inf") if self.first_at is None else self.first_at - self.sent_at

    @property
    def good(self) -> bool:
        served = self.status == 200 and self.complete
        return served and self.first_seconds <= DEADLINE_SECONDS


def goodput(phases: Sequence[Phase], since: float, until: float) -> float:
    """Good calls a second that ended within this time."""
    good = [each for phase in phases for each in phase.tries if each.good]
    return sum(since <= each.ended_at < until for each in good) / (until - since)


def keys(running: Running) -> list[str]:
    """A key in each of several projects."""

    async def make() -> list[str]:
        requests = [{"request": {"project": f"p{number}"}} for number in range(PROJECTS)]
        socket = running.directory / SOCKET
        return [(await control.call(socket, "keys.create", each))["key"] for each in requests]

    return asyncio.run(make())


def flood(running: Running, seconds: float, retries: int) -> list[Phase]:
    """Run the client to its end."""
    plan = {
        "host": running.host,
        "port": running.port,
        "keys": keys(running),
        "body": chat(MODEL, "Tell me about rivers.", max_tokens=OUTPUT),
        "retries": retries,
        "seed": 1,
        "phases": [
            {"name": "warm", "per_second": CAPACITY, "seconds": WARM_SECONDS},
            {"name": "1x", "per_second": CAPACITY, "seconds": ONCE_SECONDS},
            {"name": "10x", "per_second": 10 * CAPACITY, "seconds": seconds},
            {"name": "0.8x", "per_second": 0.8 * CAPACITY, "seconds": BACK_SECONDS},
        ],
    }
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(plan, file)
        file.flush()
        command = [sys.executable, str(HERE / "flood.py"), file.name]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [Phase(json.loads(line)) for line in output.splitlines()]


def measure(seconds: float, retries: int) -> dict[str, float]:
    """One run on a fresh server."""
    env = {
        "FOREBAY_SCRIPTED__STEP_SECONDS": str(STEP_SECONDS),
        "FOREBAY_MODELS": json.dumps([{"id": MODEL, "max_sequences": SLOTS}]),
        "FOREBAY_ADMISSION__INTERACTIVE_DEADLINE_SECONDS": str(DEADLINE_SECONDS),
    }
    with server(MODEL, env) as running:
        watch = Watch(running)
        try:
            found = flood(running, seconds, retries)
        finally:
            watch.close()
    _, once, ten, back = found
    for phase in found:
        print(line(phase, watch), flush=True)
    refusals = ten.refusals()
    gave = goodput(found, once.began_at, once.ended_at)
    gives = goodput(found, ten.began_at + RAMP_SECONDS, ten.ended_at)
    idle, busy = (watch.cpu_share(each.began_at, each.ended_at) for each in (once, ten))
    before = watch.rss_mib(once.began_at, once.ended_at)
    return {
        "goodput_1x": round(gave, 2),
        "goodput_10x": round(gives, 2),
        "goodput_ratio": round(gives / gave, 3),
        "refused_at_10x": len(refusals),
        "evicted_at_10x": ten.evicted(),
        "neither_served_nor_refused": sum(phase.other() for phase in found),
        "refusal_p50_ms": round(percentile(refusals, 0.5), 2),
        "refusal_p99_ms": round(percentile(refusals, 0.99), 2),
        "cpu_per_refusal_ms": round((busy - idle) * seconds / len(refusals) * 1000, 3),
        "starved_share_at_10x": round(watch.starved_share(ten.began_at, ten.ended_at), 2),
        "client_lag_p99_ms": round(percentile(ten.lag_ms, 0.99), 2),
        "rss_growth_mib": round(watch.rss_mib(ten.began_at, back.ended_at) - before, 1),
        "served_when_back": round(back.served(back.began_at + NORMAL_AFTER_SECONDS), 3),
    }


def line(phase: Phase, watch: Watch) -> str:
    refusals = phase.refusals() or [0.0]
    first = [each.first_seconds for each in phase.tries if each.good] or [0.0]
    span = (phase.began_at, phase.ended_at)
    return (
        f"{phase.name:>5}: {len(phase.tries)} tries, {goodput([phase], *span):.1f} good/s, "
        f"first token p50 {percentile(first, 0.5):.2f} s, {len(refusals)} refused "
        f"(p50 {percentile(refusals, 0.5):.1f} ms, p99 {percentile(refusals, 0.99):.1f} ms), "
        f"{phase.evicted()} evicted, CPU {watch.cpu_share(*span):.2f}, "
        f"RSS {watch.rss_mib(*span):.0f} MiB, client late p99 {percentile(phase.lag_ms, 0.99):.1f} ms"
    )


def holds(figures: dict[str, float]) -> bool:
    return (
        figures["goodput_ratio"] >= 0.95
        and figures["refusal_p99_ms"] < 20
        and figures["rss_growth_mib"] <= MOST_RSS_MIB
        and figures["neither_served_nor_refused"] == 0
        and figures["served_when_back"] >= 0.99
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long 10x lasts")
    seconds = parser.parse_args().seconds
    figures = {}
    for name, retries in (("give_up", 0), ("retry", RETRIES)):
        print(f"refused clients: {name}", flush=True)
        figures[name] = measure(seconds, retries)
    result("overload", figures, GOAL, all(map(holds, figures.values())))


if __name__ == "__main__":
    main()
