from __future__ import annotations

import pytest
import typer

from forebay.cli.options import _directory


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
