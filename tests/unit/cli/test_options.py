from __future__ import annotations

import inspect
from typing import Any

import pytest
import typer

from forebay.cli.options import _directory, with_settings


@pytest.mark.parametrize("text", ["", " "])
def test_an_empty_directory_is_not_the_working_directory(text):
    with pytest.raises(typer.BadParameter, match="empty"):
        _directory(text)


def test_a_directory_may_be_there_or_not_and_is_no_file(tmp_path):
    file = tmp_path / "file"
    file.touch()
    assert _directory(str(tmp_path)) == tmp_path
    assert _directory(str(tmp_path / "none")) == tmp_path / "none"
    with pytest.raises(typer.BadParameter, match="is a file"):
        _directory(str(file))


def test_settings_are_two_options_where_they_stand_and_come_loaded(tmp_path):
    got: list[Any] = []

    @with_settings
    def command(name: str = "x", *, settings: Any, as_json: bool = False) -> None:
        """What it does."""
        got.extend([name, settings.data_dir, as_json])

    assert list(inspect.signature(command).parameters) == ["name", "data_dir", "config", "as_json"]
    assert command.__doc__ == "What it does."
    command(name="y", data_dir=tmp_path, config=None)
    assert got == ["y", tmp_path, False]
