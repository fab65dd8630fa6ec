"""What all tests share: the weights of the default model, seeds, and the count per layer."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path

import pytest

from forebay.catalog import SMOLLM2, FetchSettings
from forebay.catalog.fetch import fetch

pytest.register_assert_rewrite("forebay.testing.contracts", "forebay.testing.watched")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seeds", type=int, default=200, help="seeds per simulated topology")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(metafunc.config.getoption("--seeds")))


@pytest.fixture(scope="session")
def cache_dir() -> Path:
    """Where weights are kept between runs; the product's own default."""
    return Path(os.environ.get("FOREBAY_CACHE_DIR", "~/.cache/forebay")).expanduser()


@pytest.fixture(scope="session")
def smollm2_gguf(cache_dir: Path) -> Path:
    """The default model's weights, fetched as the product fetches them."""
    assert SMOLLM2.source is not None
    return asyncio.run(fetch(SMOLLM2.source, FetchSettings(cache_dir))).path


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many tests of each layer ran."""
    counts: Counter[str] = Counter()
    for report in terminalreporter.stats.get("passed", []):
        if report.when == "call":
            parts = Path(report.nodeid.split("::")[0]).parts
            counts[parts[1] if len(parts) > 2 else "house"] += 1
    if counts:
        layers = ", ".join(f"{layer} {count}" for layer, count in sorted(counts.items()))
        terminalreporter.write_line(f"passed per layer: {layers}")
