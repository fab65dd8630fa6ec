"""Real `forebay` processes for end-to-end tests: start one, talk to it, stop or kill it.

    with Server.start("--model", "scripted", data_dir=tmp_path) as server:
        server.base_url, server.admin_url, server.key, server.pid
        assert server.stop() == 0

Whatever happens, nothing of a server survives its `with` block, and when it does not start, or a
test fails inside the block, its log (standard error) is printed.

Import it as `from tests.e2e.running import Server, forebay`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from forebay.gateway import control
from tests.canary import CANARY

PROGRAM = str(Path(sys.executable).with_name("forebay"))
# The real model loads in 6 s on an idle machine; CI machines are not idle.
READY_SECONDS = 180.0
STOP_SECONDS = 60.0
COMMAND_SECONDS = 60.0


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's, without Forebay's settings but the weights' cache; `extra` comes on top."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name == "FOREBAY_CACHE_DIR" or not name.startswith("FOREBAY_")
    }
    return {**kept, "NO_COLOR": "1", **(extra or {})}


def forebay(
    *arguments: str | Path,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    done = subprocess.run(
        [PROGRAM, *map(str, arguments)],
        env=environment(env),
        input=stdin,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    CANARY.learn(done.stdout)
    CANARY.search(f"standard error of forebay {' '.join(map(str, arguments))}", done.stderr)
    return done


def forebay_json(*arguments: str | Path, env: Mapping[str, str] | None = None) -> Any:
    """What a command that succeeds answers with --json."""
    done = forebay(*arguments, "--json", env=env)
    assert done.returncode == 0, f"forebay {' '.join(map(str, arguments))}: {done.stderr}"
    return json.loads(done.stdout)


class Server:
    """A running `forebay up --json`, ready for calls."""

    def __init__(self, process: subprocess.Popen[bytes], data_dir: Path, log: Path) -> None:
        self.process = process
        self.data_dir = data_dir
        self.log = log
        self.ready: dict[str, Any] = {}
        self._children: list[int] = []

    @classmethod
    def start(
        cls, *arguments: str | Path, data_dir: Path, env: Mapping[str, str] | None = None
    ) -> Server:
        """Start on free ports (unless `arguments` say otherwise) and wait until it is ready."""
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = data_dir / "server.log"
        server = cls(
            spawn("--json", *arguments, data_dir=data_dir, env=env, log=log), data_dir, log
        )
        try:
            server.ready = json.loads(server.read_line())
            server._children = children(server.pid)
        except BaseException:
            server.print_log()
            server.close()
            raise
        return server

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def base_url(self) -> str:
        """With /v1, as OpenAI's clients want it."""
        return str(self.ready["base_url"])

    @property
    def admin_url(self) -> str:
        return str(self.ready["admin_url"])

    @property
    def host(self) -> str:
        return str(urlsplit(self.base_url).hostname)

    @property
    def port(self) -> int:
        return int(urlsplit(self.base_url).port or 0)

    @property
    def key(self) -> str:
        """The key that was made now, or on a later start the one of `forebay chat`."""
        made = self.ready["api_key"]
        return str(made) if made else (self.data_dir / "cli.key").read_text().strip()

    def engines(self) -> list[int]:
        """Process ids of the engines that run now."""
        return children(self.pid)

    def command(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a command against this server's data, from a second process."""
        return forebay(*arguments, "--data-dir", self.data_dir)

    def command_json(self, *arguments: str | Path) -> Any:
        """The same, parsed from its --json."""
        return forebay_json(*arguments, "--data-dir", self.data_dir)

    async def ask(self, verb: str, **args: Any) -> Any:
        """The same over the control socket, without a second process: for tests that ask often."""
        return await control.call(self.data_dir / "control.sock", verb, args)

    def usage(self) -> list[dict[str, Any]]:
        """The usage rows, newest first."""
        rows: list[dict[str, Any]] = self.command_json("usage", "--limit", "1000")
        return rows

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = STOP_SECONDS) -> int:
        """The exit code."""
        return self.process.wait(seconds)

    def stop(self) -> int:
        """Ctrl-C, then wait for the exit code."""
        self.signal(signal.SIGINT)
        return self.wait()

    def kill(self) -> None:
        """`kill -9` of this process alone; what becomes of its engines is for the test to see."""
        self._children = children(self.pid) or self._children
        self.process.kill()
        self.wait()

    def read_line(self, seconds: float = READY_SECONDS) -> str:
        """The next line of standard output. Raises AssertionError if there comes none."""
        assert self.process.stdout is not None
        descriptor, line, deadline = self.process.stdout.fileno(), b"", time.monotonic() + seconds
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            assert left > 0, f"no line on standard output within {seconds:g} s"
            if select.select([descriptor], [], [], min(left, 0.5))[0]:
                byte = os.read(descriptor, 1)
                assert byte, f"it ended with exit code {self.wait()} after printing {line!r}"
                line += byte
        CANARY.learn(line.decode())
        return line.decode()

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def print_log(self) -> None:
        print(f"--- log of forebay (pid {self.pid}) ---\n{self.log_text()}--- end ---")

    def close(self) -> None:
        """Kill what still runs. Idempotent."""
        found = children(self.pid) if self.process.poll() is None else []
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(STOP_SECONDS)
        # An engine has a session of its own. It ends with its parent; this is for when it does not.
        for pid in {*found, *self._children}:
            if "forebay.engine" in command_line(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.print_log()
        self.close()


def spawn(
    *arguments: str | Path, data_dir: Path, env: Mapping[str, str] | None = None, log: Path
) -> subprocess.Popen[bytes]:
    """`forebay up` in a process group of its own; for tests that read standard output themselves."""
    ports = [] if {"-p", "--port"} & set(map(str, arguments)) else ["-p", "0"]
    CANARY.watch(log)
    with log.open("ab") as errors:
        return subprocess.Popen(
            [PROGRAM, "up", "--data-dir", str(data_dir), *ports, *map(str, arguments)],
            env=environment(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )


def children(pid: int) -> list[int]:
    """Direct children of a process (Linux)."""
    found = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(each) for each in tasks.read_text().split()]
    return found


def command_line(pid: int) -> str:
    """Empty when there is no such process (any more)."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def alive(pid: int) -> bool:
    """Whether it runs; a zombie does not."""
    return bool(command_line(pid))


def eventually(condition: Callable[[], bool], seconds: float = 30.0, what: str = "") -> None:
    """Wait until this holds. Raises AssertionError if it does not within the time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what or condition}"
        time.sleep(0.02)
