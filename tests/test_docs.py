"""Docs as a test: generated pages are current, and what the others name exists."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path

import msgspec
import pytest

from forebay.cli.docs import commands
from forebay.cli.export import COLUMNS
from forebay.config import describe, load
from forebay.ledger import ARCHIVE_FIELDS, archived
from forebay.ledger.memory import MemoryLedger
from forebay.observe.log import EVENTS
from forebay.testing.clock import FakeClock
from forebay.testing.contracts.ledger import furnish
from forebay.testing.contracts.ledger_records import settled
from tools.docs import PAGES, metrics

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference"
WRITTEN = sorted(
    path
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    if not (path.parent == REFERENCE and path.name in PAGES)
)
# Read by the tests, the tools and the command line, and no settings.
OTHER_VARIABLES = {"FOREBAY_API_KEY", "FOREBAY_CONFIG", "FOREBAY_GOLDEN"}
OTHER_PROGRAMS_OPTIONS = {"--require-hashes"}  # pip
LISTS = {"FOREBAY_MODELS", "FOREBAY_PLANS", "FOREBAY_SERVE", "FOREBAY_PIP_ARGUMENTS"}


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def options() -> dict[str, set[str]]:
    """The options of every command, as its help lists them."""
    return {
        name: set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text.partition("Options:")[2]))
        for name, text in commands()
    }


@cache
def variables() -> set[str]:
    """Every FOREBAY_ variable that means something."""
    rows = describe(load({}, {"HOME": "/home/a"}))
    settings = {f"FOREBAY_{row.name.upper().replace('.', '__')}" for row in rows}
    return settings | LISTS | OTHER_VARIABLES


def code(text: str) -> Iterator[str]:
    """Everything that is set as code: lines of blocks, and spans."""
    for block in re.findall(r"^```[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield from block.splitlines()
    outside = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for span in re.findall(r"`([^`\n]+)`", outside):
        yield span.replace("\\|", "|")


def test_every_page_is_looked_at():
    assert {"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"} <= {p.name for p in WRITTEN}


@pytest.mark.parametrize("page", PAGES)
def test_a_generated_page_is_what_the_code_says_now(page):
    text = (REFERENCE / page).read_text()
    assert text == PAGES[page](), "run `make docs`"


@pytest.mark.parametrize("path", WRITTEN, ids=_name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if "://" in target or target.startswith(("#", "mailto:")):
            continue
        assert (path.parent / target.partition("#")[0]).exists(), target


@pytest.mark.parametrize("path", WRITTEN, ids=_name)
def test_commands_and_their_options_exist(path):
    known = options()
    for line in code(path.read_text()):
        for words in re.findall(r"(?<![\w@/-])(?:\.venv/bin/)?forebay ([a-z].*)", line):
            first, *more = words.split()
            name = f"forebay {first}"
            assert name in known, line
            if any(each.startswith(f"{name} ") for each in known):  # a group, with its commands
                before_options = takewhile(lambda word: not word.startswith(("-", "[")), more)
                inner = [word for word in before_options if re.fullmatch(r"[a-z]+(-[a-z]+)*", word)]
                for word in inner:
                    assert f"{name} {word}" in known, line
                name = f"{name} {inner[0]}" if inner else name
            for flag in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", words):
                assert flag in known[name], f"{flag} of {name}: {line}"


@pytest.mark.parametrize("path", WRITTEN, ids=_name)
def test_options_named_alone_and_variables_exist(path):
    text = path.read_text()
    everywhere = OTHER_PROGRAMS_OPTIONS.union(*options().values())
    for span in code(text):
        if re.match(r"--[a-z]", span):
            assert span.split()[0].partition("=")[0] in everywhere, span
    for variable in re.findall(r"\bFOREBAY_[A-Z_]*[A-Z]\b", text):
        assert variable in variables(), variable


@pytest.mark.parametrize("path", WRITTEN, ids=_name)
def test_metrics_that_are_named_exist(path):
    known = {name for name, *_ in metrics()}
    for name in re.findall(r"`(forebay_[a-z_]+)", path.read_text()):
        assert re.sub(r"_(bucket|sum|count)$", "", name) in known, name


def test_the_makefile_has_what_docs_and_continuous_integration_ask_of_it():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    texts = [*WRITTEN, ROOT / ".ci" / "run"]
    for path in texts:
        lines = code(path.read_text()) if path.suffix == ".md" else path.read_text().splitlines()
        for line in lines:
            for target in re.findall(r"^make ([a-z-]+)", line):
                assert target in targets, f"{path.name}: {line}"


def test_the_rules_for_clients_are_those_that_tests_are_named_after():
    page = (REFERENCE / "client-rules.md").read_text()
    listed = [int(number) for number in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)]
    tests = "\n".join(path.read_text() for path in (ROOT / "tests" / "unit").rglob("test_*.py"))
    tested = {int(number) for number in re.findall(r"def test_rule_(\d+)_", tests)}
    assert listed == sorted(tested)


def test_the_page_of_the_books_names_every_column_and_field():
    page = (REFERENCE / "books.md").read_text()
    table = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    assert re.findall(r"`(\w+)`", " ".join(table)) == list(COLUMNS)
    fields = page.partition("what is hashed:")[2].partition("Times are")[0]
    assert re.findall(r"`(\w+)`", fields) == [*ARCHIVE_FIELDS, "previous_hash", "hash"]


def test_an_archive_can_be_verified_with_the_lines_of_the_page(tmp_path):
    ledger = MemoryLedger(FakeClock())
    asyncio.run(furnish(ledger))
    rows = asyncio.run(settled(ledger, 1, 2, 3))
    program = re.findall(
        r"^```python\n(.*?)^```", (REFERENCE / "books.md").read_text(), re.M | re.S
    )
    archive = tmp_path / "archive.jsonl"
    archive.write_bytes(b"".join(msgspec.json.encode(archived(row)) + b"\n" for row in rows))
    command = [sys.executable, "-c", *program, str(archive)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"head 3:{rows[-1].hash}\n"
    text = archive.read_text()
    for changed, problem in (
        (text.replace('"req_2"', '"req_9"'), "row 2 was changed"),
        ("".join(text.splitlines(keepends=True)[::2]), "row 3 does not follow"),
    ):
        archive.write_text(changed)
        done = subprocess.run(command, capture_output=True, text=True)
        assert problem in done.stderr


def test_readme_is_short():
    assert (ROOT / "README.md").read_text().count("\n") <= 150


def test_every_log_event_is_named_in_observe_and_every_name_is_used():
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    used = set(re.findall(r"log\.(?:debug|info|warning|error)\(\s*\"([a-z_]+)\"", source))
    used |= set(re.findall(r"logger\.info\(\"([a-z_]+)\"", source))
    assert used == set(EVENTS)
