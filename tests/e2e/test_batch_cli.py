"""`forebay batch` as people and scripts use it: a file of questions goes in, a file of answers comes out.

Not here: what a batch does (`test_batches.py`, `test_batch_lane.py`), every message (unit tests).
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.running import PROGRAM, Server, environment, eventually, forebay

ENV = {"FOREBAY_SCRIPTED__STEP_SECONDS": "0.01"}
BATCH = re.compile(r"\bbatch_\w+")
SOME_DONE = r"[1-9]\d* of \d+ done"

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data_dir = tmp_path_factory.mktemp("batch_cli")
    with Server.start("--model", "scripted", data_dir=data_dir, env=ENV) as server:
        yield server


class Watching:
    """A `forebay batch` that watches, while the test does something else."""

    def __init__(self, server: Server, place: Path, *arguments: str | Path) -> None:
        self.out, self.errors = place / "watch.out", place / "watch.err"
        with self.out.open("wb") as out, self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [PROGRAM, "batch", *map(str, arguments), "--data-dir", str(server.data_dir)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                env=environment(),
            )

    def until(self, pattern: str) -> None:
        what = f"{pattern!r} is shown"
        eventually(lambda: bool(re.search(pattern, self.errors.read_text())), 60.0, what)

    def id(self) -> str:
        eventually(lambda: self.out.read_text().endswith("\n"), what="the id is printed")
        return self.out.read_text().strip()

    def end(self) -> int:
        """The exit code."""
        return self.process.wait(120)


@contextmanager
def watching(server: Server, place: Path, *arguments: str | Path) -> Iterator[Watching]:
    watch = Watching(server, place, *arguments)
    try:
        yield watch
    except BaseException:
        print(watch.errors.read_text())
        raise
    finally:
        watch.process.kill()
        watch.process.wait()


def script(text: str, length: int = 4) -> str:
    return f"{text} [[script length={length}]]"


def written(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def slow(path: Path, lines: int, tokens: int = 100) -> Path:
    """Of it eight lines run at once, a token in 10 ms."""
    return written(path, *(script(f"Number {n}.", tokens) for n in range(1, lines + 1)))


def parsed(lines: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.splitlines()]


def names(lines: str) -> list[str]:
    return [line["custom_id"] for line in parsed(lines)]


def charges(server: Server, id: str) -> Decimal:
    """Of all rows of usage that are this batch's."""
    mine = id.removeprefix("batch_")
    rows = [row for row in server.usage() if mine in row["call_id"]]
    return sum((Decimal(row["amount_usd"]) for row in rows), Decimal())


def test_a_text_is_submitted_watched_and_answered_line_by_line(server: Server, tmp_path: Path):
    file = written(tmp_path / "work.txt", script("One."), "", script("Two.", 6))
    said = server.command("batch", "submit", file, "--watch", "--name", "team=search")
    assert said.returncode == 0, said.stderr
    id = said.stdout.strip()
    assert "2 lines for /v1/chat/completions by scripted" in said.stderr
    assert "completed: 2 of 2 done · 0 failed · $" in said.stderr
    results = server.command("batch", "results", id)
    assert (results.returncode, results.stderr) == (0, "")
    answers = parsed(results.stdout)
    assert [each["custom_id"] for each in answers] == ["line-1", "line-3"], "as they stood there"
    bodies = [each["response"]["body"] for each in answers]
    assert [body["usage"]["completion_tokens"] for body in bodies] == [4, 6]
    assert f"batch results {id}" in said.stderr, "where they are was told"
    status = server.command("batch", "status", id)
    assert status.stdout.startswith(f"{id} is completed\n")
    assert "2 of 2 done, 0 failed" in status.stdout
    assert "team=search" in status.stdout
    [cost] = re.findall(r"cost +\$([\d.]+)", status.stdout)
    assert Decimal(cost) == charges(server, id) > 0


def test_results_go_to_a_file_and_to_programs(server: Server, tmp_path: Path):
    file = written(tmp_path / "work.txt", script("One."))
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    said = server.command("batch", "submit", file, "--output", first, "--json")
    assert said.returncode == 0, said.stderr
    [batch] = parsed(said.stdout)
    assert batch["status"] == "completed"
    told = server.command_json("batch", "results", batch["id"], "--output", second)
    assert told["output"] == str(second)
    assert told["file_id"] == batch["output_file_id"]
    assert names(first.read_text()) == ["line-1"]
    assert first.read_bytes() == second.read_bytes()


def test_a_pipe_of_bodies_is_work_too_and_heads_the_list(server: Server):
    bodies = [{"prompt": script(f"{n}"), "max_tokens": n} for n in (2, 3)]
    piped = "".join(json.dumps(body) + "\n" for body in bodies)
    said = forebay("batch", "submit", "-", "--data-dir", server.data_dir, stdin=piped)
    assert said.returncode == 0, said.stderr
    assert "2 lines for /v1/completions by scripted" in said.stderr
    id = said.stdout.strip()
    listed = server.command("batch", "list", "--limit", "1")
    assert BATCH.findall(listed.stdout) == [id]
    assert server.command("batch", "status", id, "--watch").returncode == 0
    answers = parsed(server.command("batch", "results", id).stdout)
    texts = [each["response"]["body"]["choices"][0]["text"] for each in answers]
    assert [len(text) for text in texts] == [2, 3]


def test_a_file_that_the_server_refuses_is_told_by_the_line(server: Server, tmp_path: Path):
    whole = {"method": "POST", "url": "/v1/chat/completions", "body": {"model": "nobody"}}
    file = written(tmp_path / "work.jsonl", json.dumps({"custom_id": "a", **whole}))
    said = server.command("batch", "submit", file, "--watch")
    assert said.returncode == 3
    id = said.stdout.strip()
    assert f"{id} has failed:\nforebay: line 1: " in said.stderr
    results = server.command("batch", "results", id, "--errors")
    assert (results.returncode, results.stdout) == (1, "")
    assert f"batch status {id}" in results.stderr


def test_a_line_that_fails_leaves_the_others_their_answers(server: Server, tmp_path: Path):
    file = written(tmp_path / "work.txt", "long " * 9_000, script("Two."))
    output = tmp_path / "results.jsonl"
    said = server.command("batch", "submit", file, "--output", output)
    assert said.returncode == 3
    id = said.stdout.strip()
    assert "of 2 lines 1 were answered and 1 failed" in said.stderr
    assert f"batch results {id} --errors" in said.stderr
    assert names(output.read_text()) == ["line-2"]
    [failed] = parsed(server.command("batch", "results", id, "--errors").stdout)
    assert failed["response"]["body"]["error"]["code"] == "context_length_exceeded"


def test_ctrl_c_leaves_a_batch_that_a_cancel_ends(server: Server, tmp_path: Path):
    """Of the half a minute that it would take, this needs a few seconds."""
    file = slow(tmp_path / "work.txt", lines=200)
    with watching(server, tmp_path, "submit", file, "--watch") as watch:
        watch.until(SOME_DONE)
        watch.process.send_signal(signal.SIGINT)
        assert watch.end() == 1
        id, said = watch.id(), watch.errors.read_text()
    assert f"No longer watching; {id} goes on" in said
    early = server.command("batch", "results", id)
    assert (early.returncode, early.stdout) == (1, "")
    assert f"batch status {id} --watch" in early.stderr
    cancelled = server.command("batch", "cancel", id)
    assert (cancelled.returncode, cancelled.stdout) == (0, f"{id} is cancelling\n")
    again = server.command("batch", "status", id, "--watch")
    assert again.returncode == 3
    assert f"{id} is cancelled: of 200 lines " in again.stderr
    answered = server.command("batch", "results", id)
    unrun = server.command("batch", "results", id, "--errors")
    done, left = names(answered.stdout), names(unrun.stdout)
    assert sorted(done + left) == sorted(f"line-{n}" for n in range(1, 201))
    assert f"{len(left)} lines failed or not run" in answered.stderr
    assert f"{len(left)} were not run" in again.stderr
    assert {each["error"]["code"] for each in parsed(unrun.stdout)} == {"batch_cancelled"}


def test_a_server_that_is_killed_is_waited_for(tmp_path: Path):
    """Under `--watch`; in the end every line has its answer, and is charged once."""
    data_dir, results = tmp_path / "data", tmp_path / "results.jsonl"
    file = slow(tmp_path / "work.txt", lines=40)
    with Server.start("--model", "scripted", data_dir=data_dir, env=ENV) as server:
        port = str(server.port)
        with watching(server, tmp_path, "submit", file, "--output", results) as watch:
            watch.until(SOME_DONE)
            server.kill()
            watch.until("looking again")
            with Server.start(
                "--model", "scripted", "-p", port, data_dir=data_dir, env=ENV
            ) as server:
                assert watch.end() == 0
                assert "completed: 40 of 40 done · 0 failed · $" in watch.errors.read_text()
                assert names(results.read_text()) == [f"line-{n}" for n in range(1, 41)]
                [cost] = re.findall(r"completed: .*\$([\d.]+)", watch.errors.read_text())
                assert Decimal(cost) == charges(server, watch.id())
