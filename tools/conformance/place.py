"""Where suites that others wrote run: a server with the scripted model, and environments apart.

They see the product from outside: an address and a key.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.running import Server

ROOT = Path(__file__).parent.parent.parent
CACHE = ROOT / ".cache"


def environment(name: str) -> Path:
    """The folder of programs of an environment, made from its lock if need be."""
    subprocess.run([ROOT / "tools" / "environments", name], check=True)
    return CACHE / "environments" / name / "bin"


@contextmanager
def scripted(*aliases: str) -> Iterator[Server]:
    """A server whose scripted model also answers to these names, and is quick."""
    settings = {
        "models": [{"id": "scripted", "engine": "scripted", "aliases": aliases}],
        "scripted": {"step_seconds": 0.001},
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "forebay.yaml"
        file.write_text(json.dumps(settings))  # JSON is YAML
        with Server.start("--config", file, data_dir=Path(folder) / "data") as server:
            yield server


def report(**found: Any) -> None:
    """The last line of a program: JSON, for whoever collects figures."""
    print(json.dumps(found), flush=True)
