from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from forebay.cli.answering import Target
from forebay.cli.batch_view import (
    HEADINGS,
    Log,
    cells,
    details,
    facts,
    lasting,
    outcomes,
    panel,
    percent,
    screen,
)
from forebay.cli.batch_watch import Look
from forebay.cli.batching import Batch, batch_of
from tests.unit.cli.batch_server import KEY, a_batch


def batch(*state: Any, **more: Any) -> Batch:
    return batch_of(Target("http://host", KEY), a_batch(*state, **more))


def shown(look: Look, width: int = 80) -> list[str]:
    seen = io.StringIO()
    Console(markup=False, highlight=False, width=width, file=seen).print(panel(look))
    return [line.rstrip() for line in seen.getvalue().splitlines()]


def test_a_row_has_what_is_done_of_how_much():
    row = dict(zip(HEADINGS, cells(batch("in_progress", 4, 1)), strict=True))
    assert (row["batch"], row["state"], row[">done"], row[">failed"], row[">cost $"]) == (
        "batch_1", "in_progress", "4/10", 1, "0.000004",
    )  # fmt: skip
    assert cells(batch("validating"))[HEADINGS.index(">cost $")] is None


def test_details_are_what_is_known():
    files = {"output_file_id": "file_out", "error_file_id": "file_err"}
    whole = batch("completed", 10, 2, metadata={"team": "search"}, model="small", **files)
    text = details(whole)
    assert text.startswith("batch_1 is completed\n")
    for said in (
        "lines     10 of 10 done, 2 failed",
        "tokens    100 in, 1000 out",
        "cost      $0.000010",
        "endpoint  /v1/chat/completions, small",
        "metadata  team=search",
        "files     input file_in, results file_out, errors file_err",
    ):
        assert said in text
    young = details(batch("validating"))
    assert "cost" not in young
    assert "metadata" not in young
    assert "to end by 2027-01-1" in young


def test_of_many_errors_the_first_are_shown_and_the_rest_counted():
    data = [{"line": number, "message": "Not \x1b[2J JSON."} for number in range(1, 9)]
    text = details(batch("failed", errors={"data": data}))
    assert "\x1b" not in text
    assert "line 5: Not" in text
    assert "line 6" not in text
    assert "and 3 errors more" in text


def test_facts_are_what_is_done_how_fast_at_what_cost_and_how_long_it_lasts():
    look = Look(batch("in_progress", 4, 1), 71.4, 185.0)
    assert facts(look) == "4 of 10 done · 1 failed · 71 tok/s · $0.000004 · 3 min left"
    assert facts(Look(batch("validating"))) == "0 of 10 done · 0 failed"


def test_of_a_file_whose_lines_are_not_counted_nothing_is_counted():
    uncounted = {"request_counts": {"total": 0, "completed": 0, "failed": 0}}
    assert facts(Look(batch("validating", **uncounted))) == "the file is being checked"
    assert facts(Look(batch("failed", **uncounted))) == "no line was run"
    assert "lines" not in details(batch("failed", **uncounted))


def test_lines_that_were_not_run_are_told_from_those_that_failed():
    assert outcomes(batch("completed", 10, 2)) == "of 10 lines 8 were answered and 2 failed"
    assert outcomes(batch("cancelled", 4, 1)) == (
        "of 10 lines 3 were answered, 1 failed and 6 were not run"
    )


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (3_599, "1 h 0 min"),
        (7_500, "2 h 5 min"),
        (86_399, "1 d 0 h"),
        (273_600, "3 d 4 h"),
    ],
)
def test_a_time_is_told_in_its_two_largest_units(seconds, said):
    assert lasting(seconds) == said


def test_all_is_done_only_when_all_is_done():
    one_left = {"request_counts": {"total": 1000, "completed": 999, "failed": 0}}
    assert percent(batch("in_progress", **one_left)) == 99
    assert percent(batch("completed", 10)) == 100
    assert percent(batch("validating", request_counts=None)) == 0


def test_a_panel_is_a_bar_and_what_it_means():
    title, bar, said = shown(Look(batch("in_progress", 5), 20.0, 60.0))
    assert title == "batch_1 is in_progress"
    assert bar.endswith("50 %")
    assert said == "5 of 10 done · 0 failed · 20 tok/s · $0.000005 · 1 min left"


def test_a_panel_of_nothing_yet_and_one_with_trouble():
    assert shown(Look(batch("validating", request_counts=None)))[2] == "the file is being checked"
    assert shown(Look(batch("in_progress", 5), trouble="http://host is [gone]."))[3] == (
        "http://host is [gone]; looking again"
    )


def test_a_log_gets_a_line_per_state_and_percent(capsys):
    looks = [
        Look(batch("validating", request_counts=None)),
        Look(batch("in_progress", 1)),
        Look(batch("in_progress", 1), 5.0, 9.0),
        Look(batch("in_progress", 2), 100.0, 8.0),
        Look(batch("in_progress", 2), 100.0, 8.0, trouble="Nobody is there."),
        Look(batch("in_progress", 2), 100.0, 8.0, trouble="Nobody is there."),
        Look(batch("in_progress", 2, 1)),
        Look(batch("completed", 10, 1)),
    ]
    with screen(live=False) as show:
        for look in looks:
            show(look)
    assert isinstance(show, Log)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "forebay: validating: the file is being checked",
        "forebay: in_progress: 1 of 10 done · 0 failed · $0.000001",
        "forebay: in_progress: 2 of 10 done · 0 failed · 100 tok/s · $0.000002 · 8 s left",
        "forebay: Nobody is there; looking again",
        "forebay: in_progress: 2 of 10 done · 1 failed · $0.000002",
        "forebay: completed: 10 of 10 done · 1 failed · $0.000010",
    ]


def test_a_terminal_gets_one_panel_that_stays(capsys):
    with screen(live=True) as show:
        show(Look(batch("in_progress", 5)))
        show(Look(batch("completed", 10)))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "batch_1 is completed" in captured.err
