from __future__ import annotations

import sys
from pathlib import Path

import pytest

from forebay.cli.desk import data_here, elsewhere, hint
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


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory whose ./data has data."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "ledger.db").touch()
    return tmp_path


@pytest.mark.parametrize("chosen", ["data", "./data", "data/../data"])
def test_who_looks_in_the_right_place_is_sent_nowhere(here, chosen):
    settings = load({"data_dir": Path(chosen)}, {"HOME": "/home/a"})
    assert elsewhere(settings) == ""
    assert data_here(settings) is None


def test_who_names_another_place_with_data_is_sent_nowhere(here):
    (here / "other").mkdir()
    (here / "other" / "ledger.db").touch()
    settings = load({"data_dir": here / "other"}, {"HOME": "/home/a"})
    assert elsewhere(settings) == ""


def test_who_looks_elsewhere_is_sent_to_the_data_that_is_here(here):
    for flags in ({}, {"data_dir": here / "none"}):
        settings = load(flags, {"HOME": "/home/a"})
        assert data_here(settings) == here / "data"
        assert "--data-dir data" in elsewhere(settings)


def test_without_any_data_the_place_is_to_be_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert elsewhere(load({}, {"HOME": "/home/a"})).endswith("name it with --data-dir.")
