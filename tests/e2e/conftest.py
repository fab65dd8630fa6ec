"""Servers that end-to-end tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.running import Server

REAL = "smollm2-135m-instruct"


@pytest.fixture(scope="session")
def real(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server with the real model for all tests that do not break it."""
    with Server.start("--model", REAL, data_dir=tmp_path_factory.mktemp("real")) as server:
        yield server
