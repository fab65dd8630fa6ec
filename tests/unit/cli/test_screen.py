from __future__ import annotations

import json

import pytest

from forebay.cli.screen import counted, local_time, milliseconds, print_json, print_table, printable


def test_a_models_text_cannot_take_over_the_terminal():
    shown = printable("a\x1b[2Jb\x9bc\rd\n\té🌊")
    assert shown == "a\ufffd[2Jb\ufffdc\ufffdd\n\té🌊"


def test_what_never_happened_is_empty():
    assert milliseconds(None) == ""
    assert milliseconds(1234) == "1.23 s"
    assert local_time(None) == ""
    assert len(local_time(1_800_000_000.0)) == len("2027-01-15 08:00:00")


def test_json_is_one_line(capsys):
    print_json([{"name": "a\nb", "letter": "é"}])
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == [{"name": "a\nb", "letter": "é"}]


def table_lines(capsys, *arguments, **options) -> list[str]:
    print_table(*arguments, **options)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("columns", ["", "120", "70"])
def test_names_are_shortened_to_the_width_and_nothing_else_is(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    rows = [("y" * 30, "first key of a team " * 5, "m" * 60, 1234567)]
    lines = table_lines(capsys, ("id", "~name", "~model", ">n"), rows)
    assert len(lines) == 3
    assert max(map(len, lines)) <= int(columns or 120)
    assert "y" * 30 in lines[2]
    assert "first key" in lines[2]
    assert "…" in lines[2]
    assert lines[2].endswith("1234567")


def test_a_wide_table_and_one_that_cannot_fit_are_cut_nowhere(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    long = "n" * 50
    assert long in table_lines(capsys, ("~name", "id"), [(long, "i")], wide=True)[2]
    assert "i" * 40 in table_lines(capsys, ("~name", "id"), [(long, "i" * 40)])[2]


def test_a_table_without_rows_has_its_headings(capsys):
    assert table_lines(capsys, ("~name", ">n"), [])[0].split() == ["name", "n"]


def test_one_is_not_counted_as_many():
    assert [counted(n, "warning") for n in (0, 1, 2)] == ["0 warnings", "1 warning", "2 warnings"]


def test_a_table_in_a_pipe_is_neither_cut_nor_marked_up(capsys):
    long = "x" * 150
    print_table(("id", ">n"), [(long, 7), ("[red]a[/red]", None)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["id", "n"]
    assert lines[2].split() == [long, "7"]
    assert lines[3].split() == ["[red]a[/red]"]
