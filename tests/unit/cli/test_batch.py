"""The commands as people type them, against a server whose batches stand as a test says."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from forebay.cli import batch_watch
from forebay.cli.app import main
from tests.unit.cli.batch_server import KEY, BatchServer, a_batch, beside

OUT = {"output_file_id": "file_out"}
ERR = {"error_file_id": "file_err"}

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def server() -> BatchServer:
    return BatchServer(a_batch("completed", 10, **OUT))


@pytest.fixture
def run(
    server: BatchServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> Iterator[Run]:
    """`forebay batch …` with this server: its exit code, standard output and standard error."""
    monkeypatch.setenv("FOREBAY_API_KEY", KEY)
    monkeypatch.setattr(batch_watch, "INTERVAL_SECONDS", 0)
    with beside(server) as url:

        def run(*words: object, stdin: bytes = b"") -> tuple[int, str, str]:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            named = ["--url", url, "--data-dir", str(tmp_path)]
            monkeypatch.setattr(sys, "argv", ["forebay", "batch", *map(str, words), *named])
            with pytest.raises(SystemExit) as end:
                main()
            said = capfdbinary.readouterr()
            return int(end.value.code or 0), said.out.decode(), said.err.decode()

        yield run
    structlog.reset_defaults()  # commands configure the log


@pytest.fixture
def work(tmp_path: Path) -> Path:
    path = tmp_path / "questions.txt"
    path.write_text("Why?\nWhat?\n")
    return path


def uploaded(server: BatchServer) -> list[Any]:
    [(purpose, _, file)] = server.uploads
    assert purpose == "batch"
    return [json.loads(line) for line in file.splitlines()]


def test_work_is_submitted_and_the_id_is_all_of_standard_output(
    server: BatchServer, run: Run, work: Path
) -> None:
    code, out, err = run("submit", work, "--metadata", "team=search", "--name", "run=a=b")
    assert (code, out) == (0, "batch_1\n")
    assert "2 lines for /v1/chat/completions by small" in err
    assert "`forebay batch status batch_1 --watch --url " in err
    assert "`forebay batch results batch_1 --url " in err
    assert [line["body"]["model"] for line in uploaded(server)] == ["small", "small"]
    assert server.uploads[0][1] == "questions.jsonl"
    [(_, wanted)] = server.posted
    assert wanted["metadata"] == {"team": "search", "run": "a=b"}
    assert server.seen == 0


def test_standard_input_is_submitted_with_a_model_and_an_endpoint(
    server: BatchServer, run: Run
) -> None:
    words = ("submit", "-", "--model", "large", "--endpoint", "/v1/completions", "--json")
    code, out, _ = run(*words, stdin=b"Why?\n")
    assert (code, json.loads(out)["id"]) == (0, "batch_1")
    [line] = uploaded(server)
    assert (line["url"], line["body"]) == ("/v1/completions", {"prompt": "Why?", "model": "large"})
    assert server.posted[0][1]["endpoint"] == "/v1/completions"
    assert "metadata" not in server.posted[0][1]


@pytest.mark.parametrize(
    ("words", "stdin", "said"),
    [
        (("-",), b"", "standard input is empty"),
        (("-",), b"a\n\xff\n", "standard input, line 2: its byte 1 is not UTF-8"),
        (("-", "--metadata", "team"), b"a\n", "'team' is not KEY=VALUE"),
        (("-", "--endpoint", "/v1/embeddings"), b"a\n", "/v1/embeddings"),
        (("-", "--output", "/nowhere/out.jsonl"), b"a\n", "There is no directory /nowhere"),
        (("/nowhere.txt",), b"", "there is no file '/nowhere.txt'"),
        (("/",), b"", "'/' is a directory"),
    ],
)
def test_what_is_certainly_wrong_is_told_before_anything_is_sent(
    server: BatchServer, run: Run, words: tuple[str, ...], stdin: bytes, said: str
) -> None:
    code, out, err = run("submit", *words, stdin=stdin)
    assert (code, out) == (2, "")
    assert said in err
    assert (server.uploads, server.posted) == ([], [])


def test_a_batch_that_is_watched_brings_its_results(
    server: BatchServer, run: Run, work: Path, tmp_path: Path
) -> None:
    server.looks = [a_batch("in_progress", 3), a_batch("completed", 10, **OUT)]
    results = tmp_path / "out.jsonl"
    code, out, err = run("submit", work, "--output", results)
    assert (code, out) == (0, "batch_1\n")
    assert [line.partition(": ")[2] for line in err.splitlines()] == [
        "batch_1: 2 lines for /v1/chat/completions by small",
        "validating: the file is being checked",
        "in_progress: 3 of 10 done · 0 failed · $0.000003",
        "completed: 10 of 10 done · 0 failed · $0.000010",
    ]
    assert results.read_bytes() == server.files["file_out"]


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (
            a_batch("completed", 10, 2, **OUT, **ERR),
            "of 10 lines 8 were answered and 2 failed; see `forebay batch results batch_1 --errors",
        ),
        (
            a_batch("failed", errors={"data": [{"line": 3, "message": "Not JSON."}]}),
            "batch_1 has failed:\nforebay: line 3: Not JSON.\n",
        ),
        (
            a_batch("expired", 4, **OUT),
            "batch_1 has expired: of 10 lines 4 were answered, 0 failed and 6 were not run\n",
        ),
        (
            a_batch("cancelled"),
            "batch_1 is cancelled: of 10 lines 0 were answered, 0 failed and 10 were not run\n",
        ),
    ],
)
def test_watching_ends_with_three_unless_all_was_answered(
    server: BatchServer, run: Run, work: Path, end: Any, said: str
) -> None:
    server.looks = [end]
    assert run("submit", work, "--watch", "--json")[:2] == (3, json.dumps(end) + "\n")
    code, out, err = run("status", "batch_1", "--watch")
    assert code == 3
    assert out.splitlines()[0] in (f"batch_1 {verb} {end['status']}" for verb in ("is", "has"))
    assert said in err
    assert ("get what was answered with" in err) is (end["output_file_id"] is not None)
    assert run("status", "batch_1")[0] == 0, "who only asks is answered"


def test_ctrl_c_leaves_a_batch_alone(server: BatchServer, run: Run) -> None:
    server.looks = [a_batch("in_progress", 3)]
    server.on_look = lambda number: number == 3 and os.kill(os.getpid(), signal.SIGINT)
    code, _, err = run("status", "batch_1", "--watch")
    assert code == 1
    assert "No longer watching; batch_1 goes on. Watch it again with `forebay batch status" in err
    assert "end it with `forebay batch cancel batch_1" in err
    assert server.posted == []


def test_a_list_is_a_table_or_json(server: BatchServer, run: Run) -> None:
    server.batches = [a_batch("in_progress", 3), a_batch("completed", 10, id="batch_0")]
    code, out, _ = run("list")
    assert code == 0
    assert [line.split()[:5] for line in out.splitlines()[2:]] == [
        ["batch_1", "in_progress", "3/10", "0", "0.000003"],
        ["batch_0", "completed", "10/10", "0", "0.000010"],
    ]
    assert json.loads(run("list", "--limit", 1, "--json")[1]) == server.batches[:1]


def test_a_batch_is_cancelled(server: BatchServer, run: Run) -> None:
    assert run("cancel", "batch_1")[:2] == (0, "batch_1 is cancelling\n")
    assert json.loads(run("cancel", "batch_1", "--json")[1])["status"] == "cancelling"
    assert [path for path, _ in server.posted] == ["/v1/batches/batch_1/cancel"] * 2
    code, _, err = run("cancel", "batch_2")
    assert (code, "There is no batch 'batch_2'" in err) == (1, True)


def test_results_go_to_standard_output_or_a_file(
    server: BatchServer, run: Run, tmp_path: Path
) -> None:
    server.looks = [a_batch("completed", 10, 2, **OUT, **ERR)]
    code, out, err = run("results", "batch_1")
    assert (code, out.encode()) == (0, server.files["file_out"])
    assert "2 lines failed or not run; see `forebay batch results batch_1 --errors" in err
    file = tmp_path / "errors.jsonl"
    code, out, err = run("results", "batch_1", "--errors", "--output", file, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {"batch_id": "batch_1", "file_id": "file_err", "output": str(file)}
    assert file.read_bytes() == server.files["file_err"]


def test_where_every_line_was_answered_the_errors_are_empty(
    server: BatchServer, run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "errors.jsonl"
    file.write_text("of an earlier batch")
    code, out, err = run("results", "batch_1", "--errors", "--output", file)
    assert (code, out, file.read_text()) == (0, "", "")
    assert "every line of batch_1 was answered" in err


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (a_batch("in_progress", 3), "batch_1 is in_progress, with 3 of 10 lines done. Its results"),
        (a_batch("failed"), "batch_1 has failed, and no line of it was answered. See `forebay"),
    ],
)
def test_a_batch_without_results_says_why(
    server: BatchServer, run: Run, state: Any, said: str
) -> None:
    server.looks = [state]
    code, out, err = run("results", "batch_1")
    assert (code, out) == (1, "")
    assert said in err


def test_a_file_that_was_refused_has_no_lines_that_failed(server: BatchServer, run: Run) -> None:
    server.looks = [a_batch("failed", errors={"data": [{"line": 3, "message": "Not JSON."}]})]
    code, out, err = run("results", "batch_1", "--errors")
    assert (code, out) == (1, "")
    assert "batch_1 has failed, and no line of it was answered. See `forebay batch status" in err


def test_the_results_of_a_batch_that_was_cancelled_say_that_lines_are_missing(
    server: BatchServer, run: Run
) -> None:
    server.looks = [a_batch("cancelled", 4, **OUT, **ERR)]
    code, out, err = run("results", "batch_1")
    assert (code, out.encode()) == (0, server.files["file_out"])
    assert "6 lines failed or not run; see `forebay batch results batch_1 --errors" in err
