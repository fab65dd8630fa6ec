"""Clients that other people wrote, each in an environment of its own, against the real model.

`make test-clients` runs all; `make test-clients ARGS="-k light"` those that are quick to install.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.running import Server
from tools.clients import CLIENTS, FOLDER, ROOT, Client

CACHE = ROOT / ".cache" / "environments"
# LiteLLM asks the network for prices when it is imported, unless told not to.
QUIET = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
# An environment is installed when the first test needs it.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(params=CLIENTS, ids=lambda client: f"{client.group}-{client.package}")
def client(request: pytest.FixtureRequest) -> Client:
    """A client whose environment is there."""
    chosen: Client = request.param
    done = subprocess.run(
        [ROOT / "tools" / "environments", chosen.group], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return chosen


def command(client: Client) -> list[str | Path]:
    """How its scenario is run, in its environment's folder. Node finds packages beside scripts."""
    if client.group != "node":
        return [CACHE / client.group / "bin" / "python", client.path]
    for script in (FOLDER / "node").glob("*.mjs"):
        shutil.copy(script, CACHE / "node")
    return ["node", client.script]


def test_the_client_does_with_us_what_the_page_says(client: Client, real: Server) -> None:
    done = subprocess.run(
        command(client),
        cwd=CACHE / client.group,
        env={**os.environ, **QUIET, "SCENARIO_URL": real.base_url, "SCENARIO_KEY": real.key},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "client": client.package,
        "version": client.version,
        "checks": sorted(client.checks),
    }
