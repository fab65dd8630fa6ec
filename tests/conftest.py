"""What all tests share: the weights of the default model, seeds, and the count per layer."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path

import pytest

from forebay.catalog import SMOLLM2, FetchSettings
from forebay.catalog.fetch import fetch

GOLDEN = Path(__file__).parent / "golden"
# They fill the machine themselves, or say in what order things happen on one that is not full.
ALONE = {"attack", "budget", "cancellation", "choices", "exactly_k", "fairness", "json", "kill"}

# No API key in any output of the run.
pytest_plugins = ["tests.canary"]

pytest.register_assert_rewrite("forebay.testing.contracts", "forebay.testing.watched")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seeds", type=int, default=75, help="seeds per simulated topology")
    parser.addoption("--attack", type=float, default=8, help="seconds of the attack on limits")
    parser.addoption(
        "--turns", type=int, default=30, help="turns of a dialogue with the real model"
    )
    parser.addoption(
        "--batch-lines", type=int, default=30_000, help="lines of a batch that is only streamed"
    )
    parser.addoption("--batch-megabytes", type=int, default=10, help="size of a large batch's file")
    parser.addoption(
        "--batch-kills",
        type=int,
        default=4,
        help="kill -9 of a server with a batch of 50 lines each",
    )
    parser.addoption("--kills", type=int, default=20, help="kill -9 of real servers (tests/kill)")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(metafunc.config.getoption("--seeds")))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what compares with golden files; give real processes and the real model more time, since
    machines that run tests are not idle."""
    for item in items:
        if isinstance(item, pytest.Function) and _reads_golden(item):
            item.user_properties.append(("layer", "golden"))
        processes = {"e2e", "kill"} & {*item.path.parts}
        if processes and item.path.stem.removeprefix("test_") in ALONE:
            item.add_marker(pytest.mark.alone)
        slow = "e2e" in item.path.parts or item.get_closest_marker("model")
        if slow and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(300))


def _reads_golden(test: pytest.Function) -> bool:
    """Takes the fixture `golden`, or a file of that folder as its parameter."""
    parameters = test.callspec.params.values() if hasattr(test, "callspec") else ()
    files = (each for each in parameters if isinstance(each, Path))
    return "golden" in test.fixturenames or any(GOLDEN in each.parents for each in files)


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
    """How many tests of each layer ran; golden tests are a layer of their own, wherever they stand."""
    counts: Counter[str] = Counter()
    for report in terminalreporter.stats.get("passed", []):
        if report.when == "call":
            parts = Path(report.nodeid.split("::")[0]).parts
            folder = parts[1] if len(parts) > 2 else "house"
            counts[dict(report.user_properties).get("layer", folder)] += 1
    if counts:
        layers = ", ".join(f"{layer} {count}" for layer, count in sorted(counts.items()))
        terminalreporter.write_line(f"passed per layer: {layers}")
