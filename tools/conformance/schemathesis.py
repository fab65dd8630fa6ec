"""Requests made up from our own OpenAPI documents, as valid and as wrong as they get: schemathesis.

    python -m tools.conformance.schemathesis [--seconds 300] [--seed N]

Half of the time goes to each listener. Every answer must be none of our faults and what the document
says: status, headers, content type, body. The last line is JSON; `ok` means that nothing was found,
that every operation of both documents was tried, and that some of the calls were served.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai import OpenAI

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


@dataclass(frozen=True, slots=True)
class Target:
    """One listener: where it is, the key that it takes, ids that are there for paths that name one."""

    name: str
    url: str
    key: str
    ids: dict[str, str]


def targets(server: Server) -> list[Target]:
    """Both listeners. Projects may be archived on the way, so what is named is one of its own."""
    made = server.command_json("keys", "create", "--name", "fuzzed", "--project", "fuzzed")
    admin = server.command_json("keys", "create-admin", "--organisation", "default")
    client = OpenAI(base_url=f"{server.admin_url}/v1", api_key="", admin_api_key=admin["key"])
    [project] = [
        each for each in client.admin.organization.projects.list() if each.name == "fuzzed"
    ]
    ids = {"project_id": project.id, "api_key_id": made["id"]}
    return [
        Target("public", server.base_url.removesuffix("/v1"), server.key, {}),
        Target("admin", server.admin_url, admin["key"], ids),
    ]


def run(target: Target, chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What schemathesis reports when its time is over. It prints what it found."""
    result = folder / f"{target.name}.json"
    done = subprocess.run(
        [
            environment("schemathesis") / "schemathesis",
            *("--config-file", HERE / "schemathesis.toml"),
            *("run", f"{target.url}/openapi.json", "--url", target.url, "--no-color"),
            *("--checks", ",".join(CHECKS), "--max-time", str(chosen.seconds // 2)),
            *(["--seed", str(chosen.seed)] if chosen.seed is not None else []),
            *("--continue-on-failure", "--generation-database", ":memory:"),
            *("--report", "json", "--report-json-path", result),
            *("--request-timeout", "60"),
        ],
        env={
            **os.environ,
            "CONFORMANCE_KEY": target.key,
            "CONFORMANCE_IDS": json.dumps(target.ids),
            "PYTHONPATH": str(PLUGINS),
        },
        cwd=folder,
    )
    assert result.exists(), f"schemathesis ended with exit code {done.returncode} and no report"
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def is_clean(found: dict[str, Any]) -> bool:
    """Nothing was found, and everything was tried."""
    operations = found["operations"]
    tried = operations["tested"] == operations["total"] > 0
    return found["exit_code"] == 0 and not found["failures"] and not found["errors"] and tried


def main() -> int:
    """Run, and say in one line what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--seed", type=int, help="of an earlier run, to see its failures again")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, scripted() as server:
        found = [run(target, chosen, Path(folder)) for target in targets(server)]
        served = sum(row["calls"] for row in server.command_json("usage", "--by", "model"))
        stopped = server.stop()
    ok = all(map(is_clean, found)) and served > 0 and stopped == 0
    report(
        suite="schemathesis",
        version=found[0]["schemathesis_version"],
        seconds=round(sum(each["running_time"] or 0 for each in found)),
        seeds=[each["seed"] for each in found],
        operations=[each["operations"]["tested"] for each in found],
        cases=[each["test_cases"]["generated"] for each in found],
        served=served,
        failures=[each["test_cases"]["unique_failures"] for each in found],
        ok=ok,
    )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
