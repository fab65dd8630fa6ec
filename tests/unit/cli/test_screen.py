from __future__ import annotations

import json

from forebay.cli.screen import local_time, milliseconds, print_json, print_table, printable


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


def test_a_table_in_a_pipe_is_neither_cut_nor_marked_up(capsys):
    long = "x" * 150
    print_table(("id", ">n"), [(long, 7), ("[red]a[/red]", None)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["id", "n"]
    assert lines[2].split() == [long, "7"]
    assert lines[3].split() == ["[red]a[/red]"]
