"""What of a suite cannot pass, and why: a file of lines `test  reason`; `#` begins a comment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path


def exceptions(file: Path) -> dict[str, str]:
    """The reason of each."""
    lines = [line for line in file.read_text().splitlines() if line and line[0] != "#"]
    return dict(line.split(maxsplit=1) for line in lines)


def differences(
    outcomes: Mapping[str, str], excepted: set[str], test: Callable[[str], str] = str
) -> list[str]:
    """What the exceptions say and what happened, where these are not the same.

    `test` gives the name in the file to the name of an outcome.
    """
    failed = {name for name, outcome in outcomes.items() if outcome != "passed"}
    lines = [f"failed: {name}" for name in sorted(failed) if test(name) not in excepted]
    passed = sorted(name for name in outcomes.keys() - failed if test(name) in excepted)
    lines += [f"passed, and is no exception any more: {name}" for name in passed]
    unknown = sorted(excepted - {test(name) for name in outcomes})
    return lines + [f"an exception that is no test: {name}" for name in unknown]


def percent(outcomes: Mapping[str, str]) -> float:
    """Of these, how many passed."""
    return round(100 * list(outcomes.values()).count("passed") / len(outcomes), 1)
