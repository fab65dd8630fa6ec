"""The canary sings: a run whose output has an API key fails, wherever it stands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from forebay.tenancy.keys import make_key
from forebay.testing.clock import CountingIds
from tests.canary import Canary

ROOT = Path(__file__).parent.parent
KEY = make_key(CountingIds())
TESTS = """
import logging, sys
from pathlib import Path
from tests.canary import CANARY

def test_one(tmp_path):
    {leak}
"""


def run(folder: Path, leak: str, *more: str) -> subprocess.CompletedProcess[str]:
    """pytest, with the canary and little else, on one test that passes."""
    (folder / "test_leak.py").write_text(TESTS.format(leak=leak))
    (folder / "pytest.ini").write_text("[pytest]\n")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.canary", "-p", "no:randomly",
         "-c", str(folder / "pytest.ini"), *more, str(folder)],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("more", [(), ("-n", "1")], ids=["here", "in a process of its own"])
@pytest.mark.parametrize(
    "leak",
    [
        f"print('Authorization: Bearer {KEY}', file=sys.stderr)",
        f"print({{'headers': {{'authorization': 'Bearer {KEY}'}}}})",
        f"logging.getLogger('x').warning('refused %s', '{KEY}')",
        "log = tmp_path / 'server.log'; CANARY.watch(log); "
        f"log.write_text('first line\\n' * 9 + 'key={KEY} ' + 'x' * 99)",
        f"CANARY.learn('{KEY}'); print('key {KEY[9:]}', file=sys.stderr)",
        f"CANARY.search('standard error of forebay keys', 'fba_live_{KEY[9:]}')",
    ],
    ids=["stderr", "stdout", "log", "file", "without its prefix", "a command"],
)
def test_a_run_with_a_key_in_its_output_fails_although_its_tests_pass(
    tmp_path: Path, leak: str, more: tuple[str, ...]
) -> None:
    done = run(tmp_path, leak, *more)
    assert "1 passed" in done.stdout, done.stdout
    assert done.returncode == 1
    assert "API keys in output" in done.stdout
    assert KEY[9:] not in done.stdout, "the finding is no leak itself"


def test_a_run_that_keeps_keys_to_itself_passes(tmp_path: Path) -> None:
    redacted = "fbk_live_…" + KEY[-6:]
    leak = (
        f"CANARY.learn('made {KEY}'); print('{redacted}', 'x' * 200, '{KEY[:20]}', file=sys.stderr)"
    )
    done = run(tmp_path, leak)
    assert done.returncode == 0, done.stdout


def test_every_watched_log_is_searched(tmp_path: Path) -> None:
    canary = Canary()
    for number in range(3):
        log = tmp_path / f"{number}.log"
        log.write_text(f"\n\nstarted with {KEY}" if number == 1 else "nothing")
        canary.watch(log)
    canary.watch(tmp_path / "never written")
    assert canary.search_logs() == 3
    assert len(canary.found) == 1
    assert "1.log, line 3, after 'started with '" in canary.found[0]
