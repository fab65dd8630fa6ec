"""The keys that a server makes by itself: one for `forebay chat` here, one for the first user.

Not here: what a key is (`admin_keys.py`).
"""

from __future__ import annotations

import os
from pathlib import Path

from forebay.pipeline.admin_keys import KeyRequest
from forebay.pipeline.administration import Administration

CLI_KEY_NAME = "forebay chat on this machine"


async def cli_key(path: Path, administration: Administration) -> None:
    """A key of its own for `forebay chat` on this machine, in a file that only its owner reads."""
    if _is_missing(path):
        made = await administration.keys.create(KeyRequest(name=CLI_KEY_NAME))
        _write(path, made["key"] + "\n")


def _is_missing(path: Path) -> bool:
    return not path.exists()


def _write(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


async def first_key(administration: Administration) -> str | None:
    """A key for the first user, to be shown once; None if there has been one."""
    if any(key["name"] != CLI_KEY_NAME for key in await administration.keys.list()):
        return None
    made = await administration.keys.create(KeyRequest(name="first key"))
    return str(made["key"])
