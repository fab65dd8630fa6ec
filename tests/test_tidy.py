"""Style as a test: sizes, names and where tests live. Limits are ratchets: exceptions only shrink."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "forebay"
TESTS = ROOT / "tests"
UNIT = TESTS / "unit"
FILES = sorted(SRC.rglob("*.py"))
# Everything that tests, or says what a test's assertion is about; but for this file.
TESTING = sorted({*TESTS.rglob("*.py"), *(SRC / "testing").rglob("*.py")} - {Path(__file__)})
FUNCTION_LINES, FILE_LINES, PARAMETERS, CLASS_METHODS, CONTRACT_METHODS = 70, 500, 6, 20, 12
FORBIDDEN_NAMES = {"utils", "helpers", "common", "misc", "base", "manager", "types"}

# What the contracts claim. A number that leaves a contract must leave here too, so nobody drops one.
INVARIANTS = {
    *(f"Q{n}" for n in range(1, 10)),
    *(f"L{n}" for n in range(1, 16)),
    *(f"T{n}" for n in range(1, 5)),
    *(f"E{n}" for n in range(1, 10)),
    *(f"K{n}" for n in range(1, 4)),
    *(f"A{n}" for n in range(1, 5)),
    *(f"C{n}" for n in range(1, 9)),
    *(f"B{n}" for n in range(1, 15)),
}

# -- exceptions: each may shrink and go, none may grow ------------------------------------------------

# Commands: Typer makes an option of every parameter.
MANY_PARAMETERS = {
    "cli/alerts.py:add": 8,
    "cli/batch.py:submit": 8,
    "cli/budgets.py:set_budget": 8,
    "cli/keys.py:create": 16,
    "cli/projects.py:limit": 9,
    "cli/up.py:up": 7,
    "cli/usage.py:usage": 8,
}
LONG_TESTS = {"tests/e2e/test_cli.py": 656, "tests/unit/gateway/test_answer.py": 629}
# Source that has no test of its own name in tests/unit, and what tests it instead.
TESTED_ELSEWHERE = {
    # A contract and its implementations: its suite.
    "admission/contract.py": "contract/test_admission.py",
    "admission/memory.py": "contract/test_admission.py",
    "admission/scopes.py": "contract/test_admission.py",
    "alerts/contract.py": "contract/test_alerts.py",
    "alerts/memory.py": "contract/test_alerts.py",
    "alerts/sql.py": "contract/test_alerts.py",
    "batch/contract.py": "contract/test_batch.py",
    "batch/disk.py": "contract/test_batch_disk.py",
    "batch/memory.py": "contract/test_batch.py",
    "batch/settings.py": "unit/test_config.py",
    "batch/sql.py": "contract/test_batch.py",
    "batch/sql_files.py": "contract/test_batch.py",
    "batch/sql_tables.py": "unit/migrations/test_database.py",
    "conversation/contract.py": "contract/test_conversation.py",
    "conversation/memory.py": "contract/test_conversation.py",
    "conversation/memory_state.py": "contract/test_conversation.py",
    "conversation/rules.py": "contract/test_conversation.py",
    "conversation/sql.py": "contract/test_conversation.py",
    "conversation/sql_logs.py": "contract/test_conversation.py",
    "conversation/sql_rows.py": "contract/test_conversation.py",
    "conversation/sql_summaries.py": "contract/test_conversation.py",
    "conversation/sql_turns.py": "contract/test_conversation.py",
    "conversation/sql_tables.py": "unit/migrations/test_database.py",
    "conversation/settings.py": "unit/test_config.py",
    "core/batch.py": "contract/test_batch.py",
    "core/dialogue.py": "contract/test_conversation.py",
    "engine/contract.py": "contract/test_engine.py",
    "engine/child.py": "contract/test_engine_child.py",
    "engine/openvino.py": "contract/test_engine.py",
    "engine/process.py": "contract/test_engine_faults.py",
    "engine/stepper.py": "contract/test_engine.py",
    "ledger/contract.py": "contract/test_ledger.py",
    "ledger/memory.py": "contract/test_ledger.py",
    "ledger/memory_records.py": "contract/test_ledger.py",
    "ledger/memory_state.py": "contract/test_ledger.py",
    "ledger/reports.py": "contract/test_ledger_twins.py",
    "ledger/sqlite.py": "contract/test_ledger_sqlite.py",
    "ledger/sqlite_audits.py": "contract/test_ledger_audit.py",
    "ledger/differences.py": "contract/test_ledger_audit.py",
    "ledger/sqlite_records.py": "contract/test_ledger_audit.py",
    "ledger/sqlite_rows.py": "contract/test_ledger_twins.py",
    "ledger/sqlite_schema.py": "contract/test_ledger_sqlite.py",
    "ledger/sqlite_sql.py": "contract/test_ledger_sqlite.py",
    "queue/contract.py": "contract/test_queue.py",
    "queue/memory.py": "contract/test_queue.py",
    "stream/contract.py": "contract/test_stream.py",
    "stream/memory.py": "contract/test_stream.py",
    "tenancy/contract.py": "contract/test_tenancy.py",
    "tenancy/memory.py": "contract/test_tenancy.py",
    "tenancy/memory_records.py": "contract/test_tenancy.py",
    "tenancy/sql.py": "contract/test_tenancy.py",
    "tenancy/sql_admin_keys.py": "contract/test_tenancy.py",
    "tenancy/sql_records.py": "contract/test_tenancy.py",
    "tenancy/sql_rows.py": "contract/test_tenancy.py",
    "tenancy/sql_tables.py": "unit/migrations/test_database.py",
    "tokens/contract.py": "contract/test_tokens.py",
    # The object graph: a server that starts and serves.
    "wiring/ground.py": "unit/wiring/test_machine.py",
    "wiring/models.py": "e2e/test_cli.py",
    "wiring/plant.py": "unit/wiring/test_machine.py",
    # What only means something between rooms: the simulated world.
    "pipeline/admin_keys.py": "unit/pipeline/test_administration.py",
    "pipeline/admin_names.py": "unit/pipeline/test_administration.py",
    "pipeline/admin_reports.py": "unit/pipeline/test_administration.py",
    "pipeline/desk.py": "unit/pipeline/test_administration.py",
    "pipeline/first_keys.py": "unit/wiring/test_machine.py",
    "pipeline/background.py": "simulation/test_background.py",
    "pipeline/batch.py": "simulation/test_batches.py",
    "pipeline/batch_items.py": "simulation/test_batches.py",
    "pipeline/batch_lines.py": "unit/gateway/test_batch_lines.py",
    "pipeline/batch_output.py": "simulation/test_batches.py",
    "pipeline/outlook.py": "simulation/test_faults.py",
    "pipeline/patience.py": "simulation/test_faults.py",
    "pipeline/interactive.py": "simulation/test_crash.py",
    "pipeline/keeper.py": "simulation/test_crash.py",
    "pipeline/live.py": "simulation/test_crash.py",
    "pipeline/rooms.py": "simulation/test_crash.py",
    "pipeline/terms.py": "e2e/test_openai_sdk.py",
    "pipeline/worker.py": "simulation/test_faults.py",
    "pipeline/report.py": "unit/pipeline/test_resolve.py",
    # Vocabulary, settings: plain data, tested with who uses them.
    "core/call.py": "unit/gateway/test_chat_request.py",
    "core/clock.py": "unit/testing/test_clock.py",
    "core/delta.py": "contract/test_engine.py",
    "core/errors.py": "unit/gateway/test_errors.py",
    "core/event.py": "contract/test_stream.py",
    "core/hold.py": "contract/test_ledger_twins.py",
    "core/principal.py": "contract/test_admission.py",
    "core/records.py": "contract/test_ledger.py",
    "core/schema_checks.py": "unit/core/test_json_schema.py",
    "core/schema_formats.py": "unit/engine/test_grammar.py",
    "core/schema_nodes.py": "unit/core/test_json_schema.py",
    "core/usage.py": "contract/test_ledger_twins.py",
    "gateway/batch_schema.py": "unit/gateway/test_batches.py",
    "gateway/file_schema.py": "unit/gateway/test_files.py",
    "gateway/chat.py": "unit/gateway/test_answer.py",
    "gateway/chat_fields.py": "unit/gateway/test_fields.py",
    "gateway/conversation_schema.py": "unit/gateway/test_conversations.py",
    "gateway/completion_fields.py": "unit/gateway/test_fields.py",
    "gateway/responses_fields.py": "unit/gateway/test_fields.py",
    "gateway/responses_schema.py": "unit/gateway/test_responses.py",
    "gateway/continued.py": "unit/gateway/test_responses_request.py",
    "gateway/intake.py": "unit/gateway/test_answer.py",
    "gateway/admin_audit.py": "unit/gateway/test_admin.py",
    "gateway/admin_openapi.py": "unit/gateway/test_openapi.py",
    "gateway/admin_operations.py": "unit/gateway/test_admin.py",
    "gateway/admin_projects.py": "unit/gateway/test_admin.py",
    "gateway/admin_schema.py": "unit/gateway/test_admin.py",
    "gateway/admin_spend.py": "unit/gateway/test_admin.py",
    "gateway/read.py": "unit/gateway/test_chat_request.py",
    "gateway/request.py": "unit/gateway/test_chat_request.py",
    "engine/settings.py": "unit/engine/test_frames.py",
    "tenancy/settings.py": "unit/test_config.py",
    "observe/log.py": "test_docs.py",
    "observe/metrics.py": "test_docs.py",
    # Thin: what they call has its own tests.
    "catalog/contract.py": "unit/catalog/test_static.py",
    "catalog/describe.py": "e2e/test_cli.py",
    "cli/app.py": "e2e/test_cli.py",
    "cli/demo_phase.py": "e2e/test_demo.py",
    "cli/doctor.py": "e2e/test_cli.py",
    "cli/top.py": "e2e/test_top.py",
    "migrations/versions/0001_tenancy.py": "unit/migrations/test_database.py",
    "migrations/versions/0002_administration.py": "unit/migrations/test_database.py",
    "migrations/versions/0003_spend_alerts.py": "unit/migrations/test_database.py",
    "migrations/versions/0004_conversations.py": "unit/migrations/test_database.py",
    "migrations/versions/0005_background_responses.py": "unit/migrations/test_database.py",
    "migrations/versions/0006_summaries.py": "unit/migrations/test_database.py",
    "migrations/versions/0007_batches.py": "unit/migrations/test_database.py",
    "tokens/program.py": "unit/tokens/test_template.py",
    "tokens/sentinel.py": "unit/tokens/test_template.py",
    # What tests are made of.
    "testing/desk.py": "unit/pipeline/test_administration.py",
    "testing/ebnf.py": "unit/engine/test_grammar.py",
    "testing/fabric.py": "simulation/test_crash.py",
    "testing/plans.py": "simulation/test_crash.py",
    "testing/plain_lines.py": "simulation/test_batches.py",
    "testing/tenants.py": "simulation/test_batches.py",
    "testing/schemas.py": "unit/engine/test_grammar.py",
    "testing/flaky.py": "simulation/test_faults.py",
    "testing/loop.py": "simulation/test_crash.py",
    "testing/receivers.py": "unit/pipeline/test_alerting.py",
    "testing/rawhttp.py": "e2e/test_cancellation.py",
    "testing/watched.py": "simulation/test_money.py",
    "testing/watched_admission.py": "simulation/test_permits.py",
    "testing/watched_queue.py": "simulation/test_crash.py",
    "testing/wishes.py": "kill/test_kill.py",
    "testing/world.py": "simulation/test_crash.py",
    "testing/contracts/admin_keys.py": "contract/test_tenancy.py",
    "testing/contracts/admission.py": "contract/test_admission.py",
    "testing/contracts/alerts.py": "contract/test_alerts.py",
    "testing/contracts/batch.py": "contract/test_batch.py",
    "testing/contracts/batch_blobs.py": "contract/test_batch.py",
    "testing/contracts/batch_files.py": "contract/test_batch.py",
    "testing/contracts/conversation.py": "contract/test_conversation.py",
    "testing/contracts/conversation_bounds.py": "contract/test_conversation.py",
    "testing/contracts/conversation_logs.py": "contract/test_conversation.py",
    "testing/contracts/conversation_summaries.py": "contract/test_conversation.py",
    "testing/contracts/conversation_turns.py": "contract/test_conversation.py",
    "testing/contracts/engine.py": "contract/test_engine.py",
    "testing/contracts/ledger.py": "contract/test_ledger.py",
    "testing/contracts/ledger_books.py": "contract/test_ledger.py",
    "testing/contracts/ledger_caps.py": "contract/test_ledger.py",
    "testing/contracts/ledger_claims.py": "contract/test_ledger.py",
    "testing/contracts/ledger_records.py": "contract/test_ledger.py",
    "testing/contracts/ledger_sweep.py": "contract/test_ledger.py",
    "testing/contracts/queue.py": "contract/test_queue.py",
    "testing/contracts/queue_choice.py": "contract/test_queue.py",
    "testing/contracts/queue_machine.py": "contract/test_queue.py",
    "testing/contracts/stream.py": "contract/test_stream.py",
    "testing/contracts/tenancy.py": "contract/test_tenancy.py",
    "testing/contracts/tenancy_directory.py": "contract/test_tenancy.py",
    "testing/contracts/tenancy_records.py": "contract/test_tenancy.py",
    "testing/contracts/tokens.py": "contract/test_tokens.py",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def _functions(tree: ast.AST) -> list[Function]:
    return [n for n in ast.walk(tree) if isinstance(n, Function)]


def _parameters(function: Function) -> int:
    """How many a caller gives; `*args` and `**kwargs` count as none."""
    given = function.args
    names = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def _lines(path: Path) -> int:
    return path.read_text().count("\n")


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_source_file_keeps_the_house_rules(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "a module says in its docstring what it is"
    assert _lines(path) <= FILE_LINES
    assert path.stem not in FORBIDDEN_NAMES
    assert not re.search(r"\b(TODO|FIXME|XXX)\b", text)
    for function in _functions(tree):
        where = f"{function.name}:{function.lineno}"
        assert (function.end_lineno or 0) - function.lineno + 1 <= FUNCTION_LINES, where
        known = f"{path.relative_to(SRC)}:{function.name}"
        assert _parameters(function) <= MANY_PARAMETERS.get(known, PARAMETERS), where
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            public = [f for f in node.body if isinstance(f, Function)]
            public = [f for f in public if not f.name.startswith("_")]
            limit = CONTRACT_METHODS if path.stem == "contract" else CLASS_METHODS
            assert len(public) <= limit, node.name


def test_files_of_tests_are_no_longer_than_others() -> None:
    for path in TESTS.rglob("*.py"):
        assert _lines(path) <= LONG_TESTS.get(_name(path), FILE_LINES), path


def test_exceptions_only_shrink() -> None:
    """One that is not needed any more is taken out."""
    found = {
        f"{path.relative_to(SRC)}:{function.name}": _parameters(function)
        for path in FILES
        for function in _functions(ast.parse(path.read_text()))
        if _parameters(function) > PARAMETERS
    }
    assert found == MANY_PARAMETERS
    assert [each for each in LONG_TESTS if _lines(ROOT / each) <= FILE_LINES] == []
    assert [each for each in TESTED_ELSEWHERE if not (SRC / each).exists()] == []
    assert [each for each in TESTED_ELSEWHERE if _mirror(SRC / each).exists()] == []
    assert [each for each in TESTED_ELSEWHERE.values() if not (TESTS / each).exists()] == []


def test_every_invariant_that_a_contract_claims_is_cited_by_a_test() -> None:
    """In a test's name or docstring, or in what an assertion says when it fails; not in a comment."""
    claimed: set[str] = set()
    for path in SRC.glob("*/contract.py"):
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
        claimed |= set(re.findall(r"^- ([QLTEKACB]\d+)\b", text, re.MULTILINE))
    assert claimed == INVARIANTS
    said: list[str] = []
    for path in TESTING:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, Function) and node.name.startswith("test_"):
                said += [node.name.upper().replace("_", " "), ast.get_docstring(node) or ""]
            elif isinstance(node, ast.Assert) and node.msg is not None:
                said.append(ast.unparse(node.msg))
    cited = set(re.findall(r"\b([QLTEKACB]\d{1,2})\b", "\n".join(said)))
    assert sorted(claimed - cited) == []


def _mirror(source: Path) -> Path:
    relative = source.relative_to(SRC)
    return UNIT / relative.parent / f"test_{relative.name}"


def test_every_source_file_is_mirrored_by_a_unit_test_or_tested_elsewhere_by_name() -> None:
    sources = [path for path in FILES if path.name != "__init__.py"]
    missing = [str(path.relative_to(SRC)) for path in sources if not _mirror(path).exists()]
    assert sorted(set(missing) - TESTED_ELSEWHERE.keys()) == []


def test_every_unit_test_mirrors_a_source_file() -> None:
    for test in UNIT.rglob("test_*.py"):
        relative = test.relative_to(UNIT)
        mirrored = SRC / relative.parent / relative.name.removeprefix("test_")
        assert mirrored.exists(), f"{relative} mirrors no source file"


def test_import_rules_name_every_module_that_they_are_about() -> None:
    """A new file of a room is an implementation until somebody says otherwise, here."""
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    forbidden = {
        name
        for rule in rules["contracts"]
        if rule["name"].startswith("Rooms are entered through their packages")
        for name in rule["forbidden_modules"]
    }
    modules = {
        f"forebay.{path.parent.name}.{path.stem}"
        for contract in SRC.glob("*/contract.py")
        for path in contract.parent.glob("*.py")
        if path.stem not in ("__init__", "contract", "settings")
    }
    assert forbidden == modules


def test_no_test_is_skipped_or_expected_to_fail() -> None:
    marker = re.compile(r"pytest\.(mark\.)?(skip|skipif|xfail|importorskip)\b")
    for path in TESTING:
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
