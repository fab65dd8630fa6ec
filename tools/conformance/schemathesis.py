"""Requests made up from our own OpenAPI document, as valid and as wrong as they get: schemathesis.

    python -m tools.conformance.schemathesis [--seconds 300] [--seed N]

Every answer must be none of our faults and what the document says: status, headers, content type,
body. The last line is JSON; `ok` means that nothing was found, that every operation was tried, and
that some of the calls were served.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.e2e.running import Server
from tools.conformance.place import environment, report, scripted

HERE = Path(__file__).parent
# What it loads, in its own environment.
PLUGINS = HERE / "plugins"
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)


def run(server: Server, chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What schemathesis reports when its time is over. It prints what it found."""
    place, result = server.base_url.removesuffix("/v1"), folder / "result.json"
    done = subprocess.run(
        [
            environment("schemathesis") / "schemathesis",
            *("--config-file", HERE / "schemathesis.toml"),
            *("run", f"{place}/openapi.json", "--url", place, "--no-color"),
            *("--checks", ",".join(CHECKS), "--max-time", str(chosen.seconds)),
            *(["--seed", str(chosen.seed)] if chosen.seed is not None else []),
            *("--continue-on-failure", "--generation-database", ":memory:"),
            *("--report", "json", "--report-json-path", result),
            *("--request-timeout", "60"),
        ],
        env={**os.environ, "CONFORMANCE_KEY": server.key, "PYTHONPATH": str(PLUGINS)},
        cwd=folder,
    )
    assert result.exists(), f"schemathesis ended with exit code {done.returncode} and no report"
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def main() -> int:
    """Run, and say in one line what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--seed", type=int, help="of an earlier run, to see its failures again")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, scripted() as server:
        found = run(server, chosen, Path(folder))
        served = sum(row["calls"] for row in server.command_json("usage", "--by", "model"))
        stopped = server.stop()
    operations = found["operations"]
    ok = (
        found["exit_code"] == 0
        and not found["failures"]
        and not found["errors"]
        and operations["tested"] == operations["total"] > 0
        and served > 0
        and stopped == 0
    )
    report(
        suite="schemathesis",
        version=found["schemathesis_version"],
        seconds=round(found["running_time"] or 0),
        seed=found["seed"],
        operations=operations["tested"],
        cases=found["test_cases"]["generated"],
        served=served,
        failures=found["test_cases"]["unique_failures"],
        ok=ok,
    )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
