"""Style as a test: sizes, names and where tests live. Limits are ratchets: exceptions only shrink."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "forebay"
FILES = sorted(SRC.rglob("*.py"))
FUNCTION_LINES, FILE_LINES, PARAMETERS, CLASS_METHODS, CONTRACT_METHODS = 70, 500, 6, 20, 12
FORBIDDEN_NAMES = {"utils", "helpers", "common", "misc", "base", "manager", "types"}
INVARIANTS = (
    [f"Q{n}" for n in range(1, 10)]
    + [f"L{n}" for n in (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 13, 14, 15)]
    + [f"T{n}" for n in range(1, 5)]
    + [f"E{n}" for n in range(1, 10)]
    + [f"K{n}" for n in range(1, 4)]
    + ["A1", "A3"]
)


def _functions(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_source_file_keeps_the_house_rules(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "a module says in its docstring what it is"
    assert text.count("\n") <= FILE_LINES
    assert path.stem not in FORBIDDEN_NAMES
    assert not re.search(r"\b(TODO|FIXME|XXX)\b", text)
    for function in _functions(tree):
        where = f"{function.name}:{function.lineno}"
        assert (function.end_lineno or 0) - function.lineno + 1 <= FUNCTION_LINES, where
        arguments = function.args
        names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        counted = [n for n in names if n not in ("self", "cls")]
        if "cli" not in path.parts and function.name != "__init__":
            assert len(counted) <= PARAMETERS, where
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            public = [f for f in node.body if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)]
            public = [f for f in public if not f.name.startswith("_")]
            limit = CONTRACT_METHODS if path.stem == "contract" else CLASS_METHODS
            assert len(public) <= limit, node.name


def test_every_invariant_claimed_today_is_cited_by_a_test() -> None:
    texts = [p.read_text() for p in (ROOT / "tests").rglob("test_*.py") if p != Path(__file__)]
    texts += [p.read_text() for p in (SRC / "testing").rglob("*.py")]
    cited = set(re.findall(r"\b([QLTEKA]\d{1,2})\b", "\n".join(texts)))
    assert sorted(set(INVARIANTS) - cited) == []


def test_unit_tests_mirror_the_source() -> None:
    """Implementations of a contract are mirrored by its contract suite instead."""
    for test in (ROOT / "tests" / "unit").rglob("test_*.py"):
        relative = test.relative_to(ROOT / "tests" / "unit")
        mirrored = SRC / relative.parent / relative.name.removeprefix("test_")
        assert mirrored.exists(), f"{relative} mirrors no source file"


def test_no_test_is_skipped_or_expected_to_fail() -> None:
    marker = re.compile(r"pytest\.(mark\.)?(skip|skipif|xfail|importorskip)\b")
    for path in (*(ROOT / "tests").rglob("*.py"), *(SRC / "testing").rglob("*.py")):
        if path != Path(__file__):
            assert not marker.search(path.read_text()), path


def test_the_project_speaks_of_the_product_alone() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    forbidden = re.compile(r"https?://[\w.-]*(?:pypi|npmjs|debian)|/(?:work|farm)/|/root/\.")
    for name in filter(None, listed.stdout.split("\n")):
        path = ROOT / name
        if path == Path(__file__) or not path.is_file() or path.stat().st_size > 1_000_000:
            continue
        try:
            found = forbidden.search(path.read_text())
        except UnicodeDecodeError:
            continue
        assert not found, f"{name}: {found and found.group(0)}"
