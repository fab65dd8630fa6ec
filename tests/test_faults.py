"""The page of faults as a test: every row that must be there has one that proves it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "faults.md"
REQUIRED = {
    *range(1, 5),
    *range(14, 20),
    *range(21, 67),
    70,
    71,
    *range(74, 97),
}
# Where the tests of each kind of proof stand.
PROOFS = {
    "unit": ("tests/unit/", "tests/contract/", "src/forebay/testing/contracts/", "tests/test_"),
    "HTTP": ("tests/unit/gateway/", "tests/e2e/"),
    "simulation": ("tests/simulation/",),
    "real kill": ("tests/e2e/", "tests/kill/", "tests/contract/"),
    "load": ("tests/e2e/", "tests/kill/", "bench/"),
}


class Row(NamedTuple):
    number: int
    fault: str
    happens: str
    pays: str
    proofs: tuple[str, ...]
    tests: tuple[tuple[str, str], ...]  # function, path


def rows() -> list[Row]:
    found = []
    for line in PAGE.read_text().splitlines():
        if re.match(r"\| \d+ \|", line):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            assert len(cells) == 6, line
            number, fault, happens, pays, proofs, tests = cells
            links = tuple(re.findall(r"\[([^\]]+)\]\(([^)]+)\)", tests))
            found.append(Row(int(number), fault, happens, pays, tuple(proofs.split(", ")), links))
    return found


@cache
def functions(path: Path) -> set[str]:
    """Every function that the file has, also in classes."""
    tree = ast.parse(path.read_text())
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def _number(row: Row) -> str:
    return str(row.number)


def test_every_fault_that_must_be_listed_is_listed_once_and_in_order() -> None:
    numbers = [row.number for row in rows()]
    assert numbers == sorted(REQUIRED)


@pytest.mark.parametrize("row", rows(), ids=_number)
def test_a_row_says_what_happens_who_pays_and_how_it_is_proved(row: Row) -> None:
    for cell in (row.fault, row.happens, row.pays):
        assert cell.endswith("."), cell
    assert set(row.proofs) <= PROOFS.keys()


@pytest.mark.parametrize("row", rows(), ids=_number)
def test_a_row_has_tests_and_they_exist(row: Row) -> None:
    assert row.tests, "it needs a test"
    for name, target in row.tests:
        path = (PAGE.parent / target).resolve()
        assert path.exists(), target
        assert name in functions(path), f"{target} has no {name}"
        assert name.startswith("test_") or path.is_relative_to(ROOT / "bench")


@pytest.mark.parametrize("row", rows(), ids=_number)
def test_each_kind_of_proof_that_a_row_claims_is_among_its_tests(row: Row) -> None:
    paths = [str((PAGE.parent / target).resolve().relative_to(ROOT)) for _, target in row.tests]
    for proof in row.proofs:
        shown = any(path.startswith(folder) for path in paths for folder in PROOFS[proof])
        assert shown, proof
