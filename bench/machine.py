"""What the measurements share: starting the product, running the client, reading /proc, the result.

Every program in this folder ends with one JSON line: name, figures, goal, ok.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "reference" / "performance.md"
TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Running:
    """A server under measurement."""

    pid: int
    host: str
    port: int
    key: str
    directory: Path
    admin_url: str

    def cpu_seconds(self) -> float:
        """User and system time of the process itself, threads included, children not."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def starved_seconds(self) -> float:
        """How long its main thread could have run and was not let: the machine was busy elsewhere."""
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[1]) / 1e9

    def rss_bytes(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * PAGE_BYTES


def busy_seconds() -> float:
    """CPU time that all programs of this machine have used since it started."""
    fields = [int(each) for each in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq, *_ = fields
    return (user + nice + system + irq + softirq) / TICKS


def own_seconds() -> float:
    """CPU time that this process has used, and all that it has started and that still run."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        pid = int(path.parent.name)
        parents[pid], used[pid] = int(fields[1]), (int(fields[11]) + int(fields[12])) / TICKS
    return sum(seconds for pid, seconds in used.items() if _is_ours(pid, parents))


def _is_ours(pid: int, parents: dict[int, int]) -> bool:
    while pid not in (0, os.getpid()):
        pid = parents.get(pid, 0)
    return pid == os.getpid()


@contextmanager
def server(
    model: str, env: dict[str, str] | None = None, launcher: Sequence[str] = ()
) -> Iterator[Running]:
    """`forebay up` with a fresh data directory; a `launcher` may stand in for the command."""
    command = list(launcher) or [str(Path(sys.executable).with_name("forebay"))]
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as directory:
        log = open(f"{directory}/log", "w")  # noqa: SIM115
        process = subprocess.Popen(
            [*command, "up", "-p", "0", "--json", "--model", model, "--data-dir", directory],
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "FOREBAY_LOG_LEVEL": "warning", **(env or {})},
            text=True,
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise SystemExit(Path(f"{directory}/log").read_text())
            ready = json.loads(line)
            url = urlsplit(ready["base_url"])
            assert url.hostname is not None
            assert url.port is not None
            yield Running(
                process.pid,
                url.hostname,
                url.port,
                ready["api_key"],
                Path(directory),
                ready["admin_url"],
            )
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def run_client(running: Running, phases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run the client as a process of its own and return what it saw, phase by phase."""
    plan = {"host": running.host, "port": running.port, "key": running.key, "phases": phases}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(plan, file)
        file.flush()
        output = subprocess.run(
            [sys.executable, str(HERE / "client.py"), file.name],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout
    return [json.loads(line) for line in output.splitlines()]


def chat(model: str, content: str, *, max_tokens: int, stream: bool = True) -> dict[str, Any]:
    """A greedy request that runs to its last token."""
    return {
        "model": model,
        "stream": stream,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": content}],
    }


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def result(name: str, figures: dict[str, Any], goal: dict[str, Any], ok: bool) -> None:
    """The last line of a program."""
    print(json.dumps({"name": name, "figures": figures, "goal": goal, "ok": ok}))


def write_section(name: str, lines: Sequence[str]) -> None:
    """Put measured lines between this section's marks in docs/reference/performance.md."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    head, rest = PAGE.read_text().split(begin, 1)
    _, tail = rest.split(end, 1)
    PAGE.write_text(head + begin + "\n".join(lines) + "\n" + end + tail)


def where_and_when() -> str:
    """The conditions of a measurement, for the page."""
    python, day = platform.python_version(), date.today()
    return f"{day}, {platform.machine()}, {os.cpu_count()} shared cores, Python {python}"


def wait_until(condition: Any, seconds: float = 30.0) -> None:
    """Poll; measurements are not tests, and 10 ms do not matter here."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise SystemExit("timed out waiting")
        time.sleep(0.01)
