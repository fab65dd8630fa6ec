"""Options that several commands share, each described once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def _directory(text: str) -> Path:
    """A directory, there or not. Nothing, a slip of a script, must not mean the working directory."""
    if not text.strip():
        raise typer.BadParameter("it is empty; name a directory.")
    path = Path(text)
    if path.exists() and not path.is_dir():
        raise typer.BadParameter(f"{text!r} is a file, not a directory.")
    return path


DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="Directory of databases, keys and sockets.",
        parser=_directory,
        show_default=False,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="YAML file of settings.",
        exists=True,
        dir_okay=False,
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Wide = Annotated[bool, typer.Option("--wide", help="Show everything, however wide the table gets.")]
