"""Importing a module does nothing to the world, and works whichever module comes first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SRC = Path(__file__).parent.parent / "src"
# The embedded engine's library is loaded in its own process only, and loading it starts threads.
ENGINE = "forebay.engine.openvino"

# Raises at whatever a module may not do while it is imported. Reading files is what imports are.
GUARD = """
import os, sys, threading
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
FORBIDDEN = (
    "socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.mkdir",
    "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.link", "os.symlink",
    "os.kill", "signal.", "shutil.", "tempfile.", "sqlite3.connect",
)
sys.dont_write_bytecode = True

def start(thread):
    raise RuntimeError(f"an import starts {thread!r}")

threading.Thread.start = start  # Python 3.11 has no audit event for it

def guard(event, arguments):
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES:
        if arguments[0] != os.devnull:
            raise RuntimeError(f"an import opens {arguments[0]!r} for writing")
    # Python's own ssl and platform modules ask for the host's name and nothing more.
    if event.startswith(FORBIDDEN) and event != "socket.gethostname":
        raise RuntimeError(f"an import causes {event} {arguments!r:.200}")
"""

ALL_IN_ONE = (
    GUARD
    + """
import importlib
sys.addaudithook(guard)
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except BaseException as fault:
        raise SystemExit(f"{name}: {fault!r}")
threads = [thread.name for thread in threading.enumerate()]
assert threads == ["MainThread"], threads
assert not [name for name in sys.modules if name.startswith("openvino")], "openvino was loaded"
"""
)

# The libraries are loaded once; then each module is the first one of a process of its own.
EACH_ALONE = """
import importlib, os, sys
for name in ("aiohttp", "alembic", "apsw", "gguf", "msgspec", "prometheus_client", "pydantic",
             "pydantic_settings", "rich", "sqlalchemy", "starlette", "structlog", "tokenizers",
             "typer", "uvicorn", "hypothesis", "pytest"):
    importlib.import_module(name)
failed = []
for name in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        try:
            importlib.import_module(name)
            os._exit(0)
        except BaseException as fault:
            print(f"{name}: {fault!r}", file=sys.stderr, flush=True)
            os._exit(1)
    if os.waitpid(child, 0)[1]:
        failed.append(name)
sys.exit(f"not importable first: {failed}" if failed else 0)
"""


def modules() -> list[str]:
    names = []
    for path in sorted((SRC / "forebay").rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


def run(script: str, names: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *names]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_importing_any_module_opens_nothing_writes_nothing_and_starts_nothing() -> None:
    names = [name for name in modules() if name != ENGINE]
    assert "forebay.wiring" in names
    done = run(ALL_IN_ONE, names)
    assert done.returncode == 0, done.stderr


def test_every_module_can_be_imported_first() -> None:
    done = run(EACH_ALONE, modules())
    assert done.returncode == 0, done.stderr


def test_the_guard_sees_what_it_should(tmp_path: Path) -> None:
    """A guard that never fires would pass everything."""
    for number, line in enumerate(
        (
            f"open({str(tmp_path / 'x')!r}, 'w')",
            "import socket; socket.socket()",
            "import threading; threading.Thread(target=int).start()",
            "import sqlite3; sqlite3.connect(':memory:')",
            "import subprocess; subprocess.run(['true'])",
        )
    ):
        (tmp_path / f"guilty{number}.py").write_text(line + "\n")
        script = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{ALL_IN_ONE}"
        done = run(script, [f"guilty{number}"])
        assert f"guilty{number}: RuntimeError" in done.stderr, line
