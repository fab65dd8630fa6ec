"""Options that several commands share, each described once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from forebay.cli import desk


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


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """The command as people call it: with --data-dir and --config where it takes `settings`.

    It is given the settings that these two name. Its other parameters stay what they are.
    """

    def run(*, data_dir: Path | None, config: Path | None, **given: Any) -> None:
        command(settings=desk.load(config, data_dir=data_dir), **given)

    # The name of the settings' type is for type checkers only: to import it would slow down --help.
    own = inspect.signature(command, locals={"Settings": None}, eval_str=True)
    # What Typer makes options of.
    run.__signature__ = own.replace(parameters=list(_options(own)))  # type: ignore[attr-defined]
    run.__doc__ = command.__doc__
    return run


def _options(own: inspect.Signature) -> Iterator[inspect.Parameter]:
    for parameter in own.parameters.values():
        if parameter.name != "settings":
            yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            continue
        for name, option in (("data_dir", DataDir), ("config", Config)):
            yield parameter.replace(
                name=name, kind=inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option
            )
