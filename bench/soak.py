"""Half an hour of mixed load with a fifth of the clients leaving: does anything grow or stay behind?

Against the scripted engine over HTTP: streamed and not, several choices, JSON, the batch lane, six
keys of three organisations (`crowd.py`, a process of its own). Before and after it the server has
nothing to do, and is compared with itself:

- Memory: the slope of the resident memory of the server and of its engine, a straight line through
  one sample a second after the warm-up, each at most MOST_SLOPE_KIB a minute.
- Nothing left: open holds, pending money, leases, waiting jobs, calls being answered, work in the
  engine: 0. File descriptors: no more than before. Threads: at most MOST_MORE_THREADS more, since
  pools start theirs when all others are busy.
- No answer lost: every call that its client waited for ended as it should, and is in the usage rows.

`--seconds 180` is the short form (default 1,800); its slope still has caches filling in it, so it
may be SHORT_FACTOR times as steep. One JSON line in the end.
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
from pathlib import Path
from typing import Any

from machine import HERE, PAGE_BYTES, Running, result, server, wait_until

from forebay.cli.desk import SOCKET
from forebay.gateway import control

MODEL = "scripted"
CLIENTS, WARM_SECONDS = 48, 20.0
# The line is fitted to what comes after this share of the time.
SETTLED = 0.25
MOST_SLOPE_KIB, SHORT_FACTOR, LONG_SECONDS = 256, 8, 1200
# Caches that fill slowly look like leaks: this one is full before the measurement begins.
SMALL = {"FOREBAY_TOKENS__CACHE_ENTRIES": "256"}
ORGANISATIONS = ("one", "two", "three")
QUIET_SECONDS, LOOKS = 30.0, 5
MOST_MORE_THREADS = 4


class Process:
    """What /proc says of one process."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")
        self.rss: list[tuple[float, int]] = []

    def sample(self) -> None:
        pages = int((self._folder / "statm").read_text().split()[1])
        self.rss.append((time.monotonic(), pages * PAGE_BYTES))

    def look(self) -> tuple[int, int]:
        """Its file descriptors and threads, half a second later."""
        time.sleep(0.5)
        descriptors, threads = (self._folder / name for name in ("fd", "task"))
        return len(list(descriptors.iterdir())), len(list(threads.iterdir()))


class Soak:
    """One server, its keys, and what is asked of it."""

    def __init__(self, running: Running) -> None:
        self._running = running
        requests = [{"organisation": name} for name in ORGANISATIONS for _ in range(2)]
        self._keys = [self.ask("keys.create", request=each)["key"] for each in requests]
        # A second organisation has the engine started anew: this is the one that stays.
        [engine] = self.ask("status")["engines"]
        self.processes = {"server": Process(running.pid), "engine": Process(engine["pid"])}

    def ask(self, verb: str, **args: Any) -> Any:
        return asyncio.run(control.call(self._running.directory / SOCKET, verb, args))

    def crowd(self, seconds: float, seed: int) -> dict[str, Any]:
        """Run the clients to their end, sampling memory once a second."""
        running, over = self._running, threading.Event()
        plan = {
            "host": running.host,
            "port": running.port,
            "keys": self._keys,
            "model": MODEL,
            "clients": CLIENTS,
            "seconds": seconds,
            "seed": seed,
        }

        def watch() -> None:
            while not over.wait(1.0):
                for process in self.processes.values():
                    process.sample()

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
                json.dump(plan, file)
                file.flush()
                command = [sys.executable, str(HERE / "crowd.py"), file.name]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        finally:
            over.set()
            watcher.join()
        seen: dict[str, Any] = json.loads(done.stdout)
        return seen

    def left(self) -> dict[str, int]:
        """What the server still has of calls, holds, leases and streams."""
        status, activity, keys = self.ask("status"), self.ask("activity"), self.ask("keys.list")
        return {
            "holds": sum(key["open_calls"] for key in keys),
            "scopes_with_pending_money": sum(key["pending_usd"] != "0.00" for key in keys),
            "leases": sum(lane["running"] for lane in activity["lanes"]),
            "waiting": sum(status["waiting"].values()),
            "streams": status["open_calls"],
            "in_engine": sum(engine["running"] for engine in status["engines"]),
        }

    def quiet(self) -> dict[str, int]:
        """What is left once nobody calls, and what the processes have open."""
        wait_until(lambda: not any(self.left().values()), QUIET_SECONDS)
        found = self.left()
        for name, process in self.processes.items():
            # The least of several looks: connections, also those that asked, close in their time.
            looks = [process.look() for _ in range(LOOKS)]
            found[f"{name}_descriptors"], found[f"{name}_threads"] = map(
                min, zip(*looks, strict=True)
            )
        return found


def slope_kib_a_minute(samples: Sequence[tuple[float, int]]) -> float:
    """Of the least-squares line."""
    count = len(samples)
    at = sum(x for x, _ in samples) / count
    size = sum(y for _, y in samples) / count
    steep = sum((x - at) * (y - size) for x, y in samples) / sum((x - at) ** 2 for x, _ in samples)
    return steep * 60 / 1024


def soak(running: Running, seconds: float) -> dict[str, Any]:
    it = Soak(running)
    it.crowd(WARM_SECONDS, seed=1)
    before = it.quiet()
    for process in it.processes.values():
        process.rss.clear()
    seen = it.crowd(seconds, seed=2)
    after = it.quiet()
    served = set(seen.pop("ids"))
    rows = it.ask("usage", limit=10_000_000)
    completed = {row["call_id"] for row in rows if row["outcome"] == "completed"}
    figures: dict[str, Any] = {"calls": seen, "served_without_row": len(served - completed)}
    for name, process in it.processes.items():
        settled = process.rss[int(len(process.rss) * SETTLED) :]
        figures[f"{name}_slope_kib_a_minute"] = round(slope_kib_a_minute(settled), 1)
        tenths = process.rss[:: max(1, len(process.rss) // 10)]
        figures[f"{name}_rss_mib"] = [round(size / 2**20, 1) for _, size in tenths]
    figures["left"] = {name: max(0, after[name] - before[name]) for name in after}
    figures["more_threads"] = sum(figures["left"].pop(f"{name}_threads") for name in it.processes)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=1800.0, help="how long the load lasts")
    seconds = parser.parse_args().seconds
    steepest = MOST_SLOPE_KIB * (1 if seconds >= LONG_SECONDS else SHORT_FACTOR)
    env = {"FOREBAY_SCRIPTED__STEP_SECONDS": "0.01", **SMALL}
    with server(MODEL, env) as running:
        figures = soak(running, seconds)
    goal = {
        "slope_kib_a_minute": f"<= {steepest}, server and engine",
        "left": "nothing",
        "more_threads": f"<= {MOST_MORE_THREADS}",
        "lost": 0,
        "failed": 0,
        "served_without_row": 0,
    }
    calls = figures["calls"]
    ok = (
        max(figures["server_slope_kib_a_minute"], figures["engine_slope_kib_a_minute"]) <= steepest
        and not any(figures["left"].values())
        and figures["more_threads"] <= MOST_MORE_THREADS
        and not calls.get("lost", 0) + calls.get("failed", 0) + figures["served_without_row"]
    )
    result("soak", figures, goal, ok)


if __name__ == "__main__":
    main()
