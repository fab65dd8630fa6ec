from __future__ import annotations

import pytest

from forebay.cli.output import opened


def test_a_file_appears_when_it_is_whole(tmp_path) -> None:
    path = tmp_path / "usage.csv"
    with opened(path) as file:
        file.write("é\n")
        assert not path.exists()
    assert path.read_bytes() == "é\n".encode()
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_what_breaks_off_leaves_the_file_as_it_was(tmp_path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text("earlier")

    def write() -> None:
        with opened(path) as file:
            file.buffer.write(b"half")
            raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        write()
    assert path.read_text() == "earlier"


def test_without_a_file_it_is_standard_output(capsysbinary) -> None:
    with opened(None) as file:
        file.buffer.write(b'{"a": 1}\r\n')
    assert capsysbinary.readouterr().out == b'{"a": 1}\r\n'
