"""Servers that end-to-end tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.running import Server

REAL = "smollm2-135m-instruct"


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home directory of the user who runs `real`."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def real(
    smollm2_gguf: Path, cache_dir: Path, home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """One server with the real model for all tests that do not break it."""
    env = {"HOME": str(home), "FOREBAY_CACHE_DIR": str(cache_dir)}
    data_dir = tmp_path_factory.mktemp("real")
    with Server.start("--model", REAL, data_dir=data_dir, env=env) as server:
        yield server
