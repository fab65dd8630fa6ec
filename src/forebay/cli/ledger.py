"""`forebay ledger archive`: days that are over leave the ledger for a file that can be verified.

    rows of days that are over ─▶ ….partial, fsync ─▶ read back ─▶ its name, fsync ─▶ dropped

A crash before the last step drops nothing and is repeated by the same command; after it the file is
complete.

Not here: a line of an archive (`forebay.ledger`), verifying one (`audit.py`).
"""

from __future__ import annotations

import fcntl
import filecmp
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from forebay.cli import audit, desk
from forebay.cli.failure import Failure
from forebay.cli.options import AsJson, Config, DataDir
from forebay.cli.screen import counted, print_json

PRIVATE = 0o600  # who used what is nobody else's business


def build() -> typer.Typer:
    """The group."""
    group = typer.Typer(help="The books themselves.", no_args_is_help=True, rich_markup_mode=None)
    group.command("archive")(archive)
    return group


def archive(
    before: Annotated[
        str, typer.Option(metavar="DAY", help="First day (UTC) that stays, such as 2027-01-31.")
    ],
    to: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Where the archive goes.", exists=True, file_okay=False),
    ],
    data_dir: DataDir = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Move the rows of days long over into a file.

    Balances stay as they are. What was used in those days is in the file only: verify it with
    `audit verify --file`. Today and the two days before it cannot.
    """
    settings = desk.load(config, data_dir=data_dir)
    found = desk.run(settings, _archive(settings, before, to))
    if as_json:
        print_json(found)
    elif found["file"] is None:
        print(f"there is nothing before {before} in the ledger")
    else:
        print(f"{counted(found['dropped'], 'row')} moved to {found['file']}")


async def _archive(settings: Any, before: str, directory: Path) -> dict[str, Any]:
    partial = directory / "forebay-ledger.partial"
    async with desk.asking(settings) as ask:
        last = await _write(ask, before, partial)
        if last is None:
            return {"file": None, "dropped": 0}
        read = audit.read([partial])
        if read.last != (last["sequence"], last["hash"]):
            raise Failure(f"{partial} is not what was written; nothing was dropped.")
        file = _named(partial, read.first, last["sequence"])
        dropped = await ask(
            "ledger.drop", before=before, through_sequence=last["sequence"], hash=last["hash"]
        )
        return {"file": str(file), **dropped}


async def _write(ask: desk.Asking, before: str, path: Path) -> dict[str, Any] | None:
    """Every row that may go, page by page, to the disk; the last one. No file if there is none."""
    from msgspec.json import encode

    page = await ask("ledger.archivable", before=before)
    if not page:
        return None
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, PRIVATE), "wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Failure(f"Another command is writing {path}.") from None
        file.truncate()
        while page:
            file.writelines(encode(row) + b"\n" for row in page)
            last: dict[str, Any] = page[-1]
            page = await ask("ledger.archivable", before=before, after=last["sequence"])
        file.flush()
        os.fsync(file.fileno())
    return last


def _named(partial: Path, first: int, last: int) -> Path:
    """Give it the name that its rows make, durably; one of that name must be the same file."""
    file = partial.with_name(f"forebay-ledger-{first:012d}-{last:012d}.jsonl")
    if file.exists() and not filecmp.cmp(partial, file, shallow=False):
        raise Failure(f"{file} exists and is not of these books; nothing was dropped.")
    partial.replace(file)
    descriptor = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return file
