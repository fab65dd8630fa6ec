"""No API key in any output: a plugin that looks for one in all that a test run writes, and fails it.

How it works
- Every key of ours can be told from other text: `fbk_live_` (an administrator's: `fba_live_`) and at
  least 20 more characters. Each key that a test uses is thus a canary; none has to be planted.
- `learn` remembers the keys in what is meant to show them (a command that makes one, the line of a
  server that is ready), so that they are also found where they stand without their prefix.
- Searched are: what each test wrote to standard error and to the log, and to standard output unless
  it is a command's that makes keys (pytest's report has all of it, also of tests that pass); the
  whole log of each server that an end-to-end test started, its engine's messages in it (`watch`);
  and what commands wrote to standard error (`search`).
- At the end of the run the places are listed, without the key, and the run has failed, whatever
  its tests say. Processes that share the tests of a run (`-n`) tell theirs to the one that reports.

`tests/test_canary.py` runs pytest on tests that leak, and sees it fail.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

KEY = re.compile(r"fb[ka]_live_([0-9A-Za-z]{20,})")
_WORD = re.compile(r"[0-9A-Za-z]{30,}")


class Canary:
    """Of one run."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._bodies: set[str] = set()
        self._logs: dict[Path, None] = {}

    def learn(self, text: str) -> None:
        """This shows keys, and may."""
        self._bodies.update(KEY.findall(text))

    def watch(self, log: Path) -> None:
        """Search this file at the end of the run."""
        self._logs[log] = None

    def search(self, where: str, text: str) -> None:
        """Note the place if there is a key."""
        match = KEY.search(text) or next(
            (word for word in _WORD.finditer(text) if word.group() in self._bodies), None
        )
        if match is not None:
            line = text[: match.start()].count("\n") + 1
            begin = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
            self.found.append(f"{where}, line {line}, after {begin[-60:]!r}")

    def search_logs(self) -> int:
        """Search all that is watched; how many files there were."""
        logs = [log for log in self._logs if log.exists()]
        for log in logs:
            self.search(str(log), log.read_text(errors="replace"))
        self._logs.clear()
        return len(logs)


CANARY = Canary()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for name, text in report.sections:
        CANARY.search(f"{report.nodeid}: {name}", text)


def pytest_sessionfinish(session: pytest.Session) -> None:
    CANARY.search_logs()
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["canary"] = CANARY.found
    if CANARY.found:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A process that had a part of the tests has ended."""
    told = getattr(node, "workeroutput", {}).get("canary", ())
    CANARY.found.extend(place for place in told if place not in CANARY.found)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if CANARY.found:
        terminalreporter.section("API keys in output")
        for place in CANARY.found:
            terminalreporter.write_line(place)
