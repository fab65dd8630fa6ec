"""The tests that OpenAI generates for its Python client, run against us.

    python -m tools.conformance.openai_python [--show]

They come from the source distribution of the version that openai_python.lock names. The file
openai_python.exceptions lists what cannot pass, one line for a test in all its variants (sync and
async, loose and strict, each HTTP library), with the reason. The last line is JSON; `percent` counts
exceptions as failed, `percent_by_file` too, the `surface` is what we serve at all, and `ok` means that
each test passed or is an exception and that no exception passed.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.e2e.running import Server
from tools.conformance.exceptions import differences, exceptions, percent
from tools.conformance.place import CACHE, environment, report, scripted

HERE = Path(__file__).parent
LOCK = HERE / "openai_python.lock"
# What the suite loads, in its own environment.
PLUGINS = HERE / "plugins"
EXCEPTIONS = HERE / "openai_python.exceptions"
FOLDER = "tests/api_resources"
FILES = (
    "chat/test_completions.py",
    "chat/completions/test_messages.py",
    "test_completions.py",
    "test_models.py",
    "test_responses.py",
    "responses/test_input_items.py",
    "responses/test_input_tokens.py",
    "test_conversations.py",
    "conversations/test_items.py",
)
# The names of models that those files use.
MODELS = ("gpt-6-astra", "gpt-3.5-turbo-instruct")
# What we serve: create and stream both kinds of completions, list and retrieve models, all of
# responses but compaction, all of conversations.
SURFACE = re.compile(
    r"/test_completions\.py.*_create_|/test_models\.py.*_(list|retrieve)"
    r"|/test_responses\.py.*_(create|retrieve|delete|cancel)|/responses/test_input"
    r"|/test_conversations\.py|/conversations/"
)


def exceptional(name: str) -> str:
    """The test of which this is a variant, as the exceptions name it: file and function."""
    return re.sub(r"::\w+::(\w+)\[.*", r"::\1", name)


def requirement() -> tuple[str, str]:
    """The version of openai and its line with hashes, as locked."""
    found = re.search(r"^openai(?:\[.*?\])?(==(\S+)(?: \\\n +--hash=\S+)+)", LOCK.read_text(), re.M)
    assert found, f"openai is not in {LOCK.name}"
    return found.group(2), f"openai{found.group(1)}\n"


def suite() -> Path:
    """The unpacked source distribution, fetched once."""
    version, line = requirement()
    target = CACHE / "openai-python"
    folder = target / f"openai-{version}"
    if not folder.exists():
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        wanted = target / "requirement.txt"
        wanted.write_text(line)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        choose = ["--no-deps", "--no-binary", "openai", "--require-hashes", "-r", wanted]
        subprocess.run([*pip, *choose, "-d", target], check=True)
        with tarfile.open(target / f"openai-{version}.tar.gz") as archive:
            archive.extractall(target, filter="data")
    return folder


def run(server: Server, folder: Path, show: bool) -> dict[str, str]:
    """How each test ended, by its name below FOLDER."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        done = subprocess.run(
            [
                environment("openai_python") / "python",
                *("-m", "pytest", "-p", "openai_outcomes", "-p", "openai_ids"),
                *("-o", "addopts=", "-q", "--tb=short"),
                *("-p", "no:cacheprovider", *(f"{FOLDER}/{name}" for name in FILES)),
            ],
            cwd=folder,
            env={
                "PATH": "/usr/bin:/bin",
                "PYTHONPATH": str(PLUGINS),
                "TEST_API_BASE_URL": server.base_url,
                "CONFORMANCE_KEY": server.key,
                "OUTCOMES": file.name,
            },
            stdout=sys.stderr if show else subprocess.PIPE,
            text=True,
        )
        assert done.returncode in (0, 1), done.stdout
        outcomes: dict[str, str] = json.loads(Path(file.name).read_text())
    return {name.removeprefix(f"{FOLDER}/"): outcome for name, outcome in outcomes.items()}


def main() -> int:
    """Run, compare with the exceptions, say what differs."""
    excepted = set(exceptions(EXCEPTIONS))
    with scripted(*MODELS) as server:
        outcomes = run(server, suite(), show="--show" in sys.argv[1:])
    different = differences(outcomes, excepted, exceptional)
    print(*different, sep="\n", end="\n" if different else "")
    failed = [name for name, outcome in outcomes.items() if outcome != "passed"]
    surface = {name: outcome for name, outcome in outcomes.items() if SURFACE.search(f"/{name}")}
    by_file = {
        file: percent(
            {name: outcome for name, outcome in outcomes.items() if name.startswith(file)}
        )
        for file in FILES
    }
    report(
        suite="openai-python",
        version=requirement()[0],
        passed=len(outcomes) - len(failed),
        failed=len(failed),
        excepted=len([name for name in failed if exceptional(name) in excepted]),
        percent=percent(outcomes),
        percent_by_file=by_file,
        surface_passed=list(surface.values()).count("passed"),
        surface_total=len(surface),
        surface_percent=percent(surface),
        ok=not different,
    )
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
