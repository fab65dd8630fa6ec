"""The compliance suite of Open Responses (openresponses.org), run against us.

    python -m tools.conformance.openresponses [--http] [--from ADDRESS_OR_FOLDER] [--real] [--show]

The suite is the public repository at COMMIT, cloned once into .cache, and runs in the version of Bun
that it asks for. `--http` takes HTTP_COMMIT: the suite as it was before WebSockets and compaction. Where
its address cannot be reached, clone it elsewhere and name the folder. `--real` asks the default model in
place of the scripted one. The file openresponses.exceptions lists what cannot pass and why. The last
line is JSON; `percent` counts exceptions as failed, and `ok` means that each test passed or is an
exception and that no exception passed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.running import Server
from tools.conformance.exceptions import differences, exceptions, percent
from tools.conformance.place import CACHE, environment, report, scripted

NAME = "open-responses"
ADDRESS = "https://github.com/openresponses/openresponses"
# Its specification of 2026-04-24.
COMMIT = "92c12d96d7b61d6d15e2214daa5e9c6000ab6e1c"
HTTP_COMMIT = "0e3605e3618080ffc15b732d68dbe63fb3b1db73"
EXCEPTIONS = Path(__file__).with_suffix(".exceptions")


class NotFetched(Exception):
    """There is no suite to run; the message says why and what to do."""


def suite(source: str, commit: str) -> Path:
    """The repository at this commit, cloned once. Raises NotFetched."""
    folder = CACHE / "open-responses" / commit
    if folder.exists():
        return folder
    unfinished = folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    for arguments in (
        ["clone", "--quiet", "--no-checkout", source, unfinished],
        ["-C", unfinished, "checkout", "--quiet", "--detach", commit],
    ):
        done = subprocess.run(
            ["git", *arguments],
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0"},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise NotFetched(
                f"The suite could not be fetched from {source} at {commit}: git says {said[-1]!r}. "
                "Clone it where the network allows it, and name the folder: --from FOLDER."
            )
    return unfinished.rename(folder)


def run(server: Server, model: str, folder: Path, show: bool) -> dict[str, str]:
    """How each test ended, by its id."""
    programs = environment("bun")
    packages = folder / "node_modules"
    if not packages.is_symlink():
        packages.symlink_to(programs.parent / "node_modules")
    done = subprocess.run(
        [
            *(programs.parent / "node_modules" / ".bin" / "bun", "--no-install"),
            *("run", "bin/compliance-test.ts", "--json"),
            *("--base-url", server.base_url, "--model", model),
        ],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "OPENRESPONSES_API_KEY": server.key, "DO_NOT_TRACK": "1"},
        capture_output=True,
        text=True,
    )
    assert done.stdout, f"exit code {done.returncode}: {done.stderr}"
    if show:
        print(done.stdout, file=sys.stderr)
    return {each["id"]: each["status"] for each in json.loads(done.stdout)["results"]}


@contextmanager
def serving(real: bool) -> Iterator[tuple[Server, str]]:
    """A server, and the model to ask."""
    if not real:
        with scripted() as server:
            yield server, "scripted"
        return
    with tempfile.TemporaryDirectory() as folder, Server.start(data_dir=Path(folder)) as server:
        yield server, server.ready["models"][0]


def main() -> int:
    """Run, compare with the exceptions, say what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="source", default=ADDRESS, help="what is cloned")
    parser.add_argument("--http", action="store_true", help="as it was before WebSockets")
    parser.add_argument("--real", action="store_true", help="ask the default model")
    parser.add_argument("--show", action="store_true", help="all that the suite says")
    chosen = parser.parse_args()
    commit = HTTP_COMMIT if chosen.http else COMMIT
    try:
        folder = suite(chosen.source, commit)
    except NotFetched as fault:
        print(fault)
        report(suite=NAME, version=commit, ok=False)
        return 2
    with serving(chosen.real) as (server, model):
        outcomes = run(server, model, folder, chosen.show)
    excepted = set(exceptions(EXCEPTIONS))
    if chosen.http:  # it has fewer tests
        excepted &= outcomes.keys()
    different = differences(outcomes, excepted)
    print(*different, sep="\n", end="\n" if different else "")
    failed = [name for name, outcome in outcomes.items() if outcome != "passed"]
    report(
        suite=NAME,
        version=commit,
        model=model,
        passed=len(outcomes) - len(failed),
        failed=len(failed),
        excepted=len(excepted.intersection(failed)),
        percent=percent(outcomes),
        ok=not different,
    )
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
