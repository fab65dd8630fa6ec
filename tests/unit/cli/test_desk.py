from __future__ import annotations

import sys
from pathlib import Path

from forebay.cli.desk import hint
from forebay.config import load


def test_a_hint_reaches_the_same_data(monkeypatch):
    monkeypatch.setattr(sys, "argv", [".venv/bin/forebay", "up"])
    here = load({"data_dir": Path("/srv/my data")}, {"HOME": "/home/a"})
    assert hint(here, "keys", "create") == (
        ".venv/bin/forebay keys create --data-dir '/srv/my data'"
    )
    assert hint(load({}, {"HOME": "/home/a"}), "chat") == ".venv/bin/forebay chat"


def test_a_hint_is_short_when_the_program_is_on_the_path(monkeypatch, tmp_path):
    program = tmp_path / "forebay"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [str(program), "up"])
    assert hint(load({}, {"HOME": "/home/a"}), "up") == "forebay up"
