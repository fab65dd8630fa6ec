"""`forebay audit verify`: whether a row of the books was changed, deleted or moved since it was written.

Not here: the chain (`forebay.ledger`), how archives are made (`ledger.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forebay.cli import desk
from forebay.cli.failure import Failure
from forebay.cli.options import AsJson, Config, DataDir
from forebay.cli.screen import counted, print_json, say

if TYPE_CHECKING:
    from forebay.ledger import Link

HASH_DIGITS = 64


@dataclass(slots=True)
class Archive:
    """What was read of archives; `noted` is the hash of the row that was asked about."""

    rows: int = 0
    first: int = 0
    last: Link | None = None
    noted: str | None = None


def build() -> typer.Typer:
    """The group."""
    group = typer.Typer(
        help="Whether the books are as they were written.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    group.command("verify")(verify)
    return group


def _head(text: str) -> tuple[int, str]:
    sequence, _, digits = text.partition(":")
    is_hash = len(digits) == HASH_DIGITS and set(digits) <= set("0123456789abcdef")
    if not sequence.isdecimal() or int(sequence) < 1 or not is_hash:
        raise typer.BadParameter(
            f"{text!r} is not a row's number and hash, such as `verify` prints: 17:9f86d0…"
        )
    return int(sequence), digits


def verify(
    expect: Annotated[
        Any,
        typer.Option(
            metavar="SEQUENCE:HASH",
            parser=_head,
            help="A head that was noted earlier; it must still be there.",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="ARCHIVE",
            exists=True,
            dir_okay=False,
            help="Verify an archive as well; several in their order.",
            show_default=False,
        ),
    ] = None,
    data_dir: DataDir = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Walk the audit chain over every row.

    Prints its head, to be noted where nobody who can write the ledger can write. Ends with 1 at
    the first row that was changed, deleted or moved.
    """
    settings = desk.load(config, data_dir=data_dir)
    archive = read(file or (), wanted=expect[0] if expect else 0)
    if archive.first > 1:
        say(f"the archive begins with row {archive.first}: what was before it was not verified")
    found = desk.run(settings, _verify(settings, archive, expect))
    if as_json:
        print_json(found)
    if (broken := found["first_break"]) is not None:
        raise Failure(f"the audit chain breaks at row {broken['sequence']}: {broken['problem']}")
    if not as_json:
        archived = f" and {counted(archive.rows, 'archived row')}" if archive.rows else ""
        print(f"{counted(found['rows'], 'row')}{archived} verified")
        print(f"head: {found['head_sequence']}:{found['head_hash']}")


def read(files: Sequence[Path], *, wanted: int = 0) -> Archive:
    """Walk through archives, which must follow each other. Raises Failure at the first break."""
    archive = Archive()
    for path in files:
        _read(path, archive, wanted)
    if files and not archive.rows:
        raise Failure("There is no row in what was to be verified.")
    return archive


def _read(path: Path, archive: Archive, wanted: int) -> None:
    from forebay.ledger import follow

    with path.open("rb") as lines:
        for line in lines:
            place = archive.last.sequence + 1 if archive.last else 1
            try:
                archive.last = follow(line, archive.last)
            except ValueError as fault:
                raise Failure(f"{path}: the audit chain breaks at row {place}: {fault}") from None
            archive.rows += 1
            archive.first = archive.first or archive.last.sequence
            if archive.last.sequence == wanted:
                archive.noted = archive.last.hash


async def _verify(
    settings: Any, archive: Archive, expect: tuple[int, str] | None
) -> dict[str, Any]:
    async with desk.asking(settings) as ask:
        found: dict[str, Any] = await ask("audit.verify")
        if found["first_break"] is not None:
            return found
        head = (found["head_sequence"], found["head_hash"])
        if archive.last is not None:
            await _join(ask, archive.last, head)
        if expect is not None:
            await _expect(ask, archive, expect, head)
    return {**found, "archived_rows": archive.rows}


async def _join(ask: desk.Asking, last: Link, head: tuple[int, str]) -> None:
    """The newest archived row must be where the ledger goes on, or in it."""
    sequence, digits = last
    rows = await ask("usage.outbox", after=sequence, limit=1)
    if rows and rows[0]["sequence"] == sequence + 1:
        joins = rows[0]["previous_hash"] == digits
    else:
        joins = not rows and head == (sequence, digits)
    if not joins:
        raise Failure(
            f"The archive ends with row {sequence}, which is not the row after which this ledger "
            "goes on. An archive between the two is missing, or they are not the same books."
        )


async def _expect(
    ask: desk.Asking, archive: Archive, expect: tuple[int, str], head: tuple[int, str]
) -> None:
    sequence, digits = expect
    rows = await ask("usage.outbox", after=sequence - 1, limit=1)
    here = rows[0]["hash"] if rows and rows[0]["sequence"] == sequence else None
    known = here or archive.noted or (head[1] if head[0] == sequence else None)
    if known == digits:
        return
    if known is not None:
        raise Failure(f"Row {sequence} is not the one that was noted: its hash is {known}.")
    if sequence > head[0]:
        raise Failure(f"Row {sequence} was noted, but the newest is {head[0]}: rows are missing.")
    raise Failure(f"Row {sequence} has left the ledger: name the archive that has it with --file.")
