"""`forebay demo fairness` as people run it: the real server in both orders, the scripted model."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.running import PROGRAM, alive, children, environment, eventually, forebay

QUICK = ("demo", "fairness", "--seconds", "2", "--model", "scripted")


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Where the demo makes its directory; its path is short, as a Unix socket's must be."""
    with tempfile.TemporaryDirectory(prefix="fb") as name:
        yield Path(name)


def test_the_polite_project_waits_less_where_the_queue_is_fair(
    temporary: Path, tmp_path: Path
) -> None:
    picture = tmp_path / "demo.svg"
    env = {"TMPDIR": str(temporary)}
    done = forebay(*QUICK, "--json", "--save-svg", picture, env=env)
    assert done.returncode == 0, done.stderr
    [line] = done.stdout.splitlines()
    seen = json.loads(line)
    assert [phase["order"] for phase in seen["phases"]] == ["arrival", "fair"]
    without, fair = (phase["projects"] for phase in seen["phases"])
    for half in (without, fair):
        assert half["polite"]["finished"] >= 1
        assert half["greedy"]["waiting"] > 0, "the backlog stands until the end"
        assert half["greedy"]["refused"] == half["polite"]["refused"] == {}
    assert fair["polite"]["ttft_p50_ms"] < without["polite"]["ttft_p50_ms"]
    assert seen["polite_ttft_p50_ratio"] > 1
    assert "sequences at once" in done.stderr, "it says what is configured"
    assert "<svg" in picture.read_text()
    assert list(temporary.iterdir()) == [], "nothing is left behind"


def test_ctrl_c_leaves_neither_files_nor_processes(temporary: Path) -> None:
    command = [PROGRAM, "demo", "fairness", "--model", "scripted"]
    process = subprocess.Popen(
        command, env=environment({"TMPDIR": str(temporary)}), stderr=subprocess.PIPE
    )
    try:
        eventually(lambda: bool(children(process.pid)), what="the engine runs")
        engines = children(process.pid)
        eventually(lambda: any(temporary.glob("*/arrival/control.sock")), what="the server serves")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 1
        assert said.decode().splitlines()[-1].startswith("forebay: interrupted")
        assert list(temporary.iterdir()) == []
        eventually(lambda: not any(map(alive, engines)), what="the engine has ended")
    finally:
        process.kill()
        process.wait()


def test_a_directory_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").touch()
    done = forebay(*QUICK, "--data-dir", tmp_path)
    assert done.returncode == 2
    assert "is not empty" in done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["ledger.db"]


def test_a_picture_that_could_not_be_saved_is_refused_before_anything_runs(tmp_path: Path) -> None:
    done = forebay(*QUICK, "--save-svg", tmp_path / "none" / "demo.svg")
    assert done.returncode == 2
    assert "There is no directory" in done.stderr
