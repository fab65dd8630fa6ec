from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from forebay.cli.failure import WRONG_USE, Failure
from forebay.cli.server import Server, with_server
from forebay.config import load


def server(data_dir: Path, url: str | None = None, key_file: Path | None = None) -> Server:
    return Server(load({"data_dir": data_dir}, {"HOME": str(data_dir)}), url, key_file)


def test_a_server_is_four_options_where_it_stands(tmp_path):
    got: list[Any] = []

    @with_server
    def command(name: str = "x", *, server: Server, as_json: bool = False) -> None:
        """What it does."""
        got.extend([name, server.settings.data_dir, server.url, server.key_file, as_json])

    assert list(inspect.signature(command).parameters) == [
        "name", "url", "key_file", "data_dir", "config", "as_json",
    ]  # fmt: skip
    assert command.__doc__ == "What it does."
    command(name="y", url="http://host", key_file=None, data_dir=tmp_path, config=None)
    assert got == ["y", tmp_path, "http://host", None, False]


async def test_a_named_server_gets_a_named_key_and_never_this_machines(tmp_path, monkeypatch):
    monkeypatch.delenv("FOREBAY_API_KEY", raising=False)
    (tmp_path / "cli.key").write_text("own")
    with pytest.raises(Failure, match="--url needs a key") as refused:
        await server(tmp_path, "http://host").target()
    assert refused.value.exit_code == WRONG_USE
    file = tmp_path / "named.key"
    file.write_text("named\n")
    target = await server(tmp_path, "http://host", file).target()
    assert (target.url, target.key, target.here) == ("http://host", "named", False)
    monkeypatch.setenv("FOREBAY_API_KEY", "environment")
    assert (await server(tmp_path, "http://host").target()).key == "environment"


async def test_where_no_server_runs_it_says_how_to_start_one(tmp_path):
    with pytest.raises(Failure, match=r"No server runs on .*forebay up.*--url"):
        await server(tmp_path).target()


def test_a_hint_reaches_the_same_server(tmp_path):
    named = server(tmp_path, "http://host", tmp_path / "my key").hint("batch", "list")
    assert "batch list --url http://host --key-file " in named
    assert f"'{tmp_path}/my key'" in named
    assert named.endswith(f"--data-dir {tmp_path}")
