"""docs/reference/cli.md, made from the help texts themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from forebay.cli.app import build


def commands() -> Iterator[tuple[str, str]]:
    """Every command and group with its help, as `… --help` prints it."""
    yield from _walk(get_command(build()), "forebay", None)


def cli_page() -> str:
    """The whole page."""
    lines = [
        "# Commands",
        "",
        "What `--help` says, for every command. `--json` makes standard output one line of JSON.",
        "Messages for people, progress and logs go to standard error. `NO_COLOR` is respected.",
        "",
        "Exit codes: 0 it worked, 1 it failed, 2 wrong use or it cannot start (a port is taken,",
        "the data directory is in use, the configuration is refused), 3 a batch that was watched has",
        "ended and not every line of it was answered.",
    ]
    for name, text in commands():
        lines += ["", f"## {name}", "", "```", text.rstrip(), "```"]
    return "\n".join(lines) + "\n"


def _walk(command: Any, name: str, parent: Any) -> Iterator[tuple[str, str]]:
    own_name = name.rpartition(" ")[2]
    context = command.make_context(own_name, [], parent=parent, resilient_parsing=True)
    yield name, command.get_help(context)
    for inner in getattr(command, "commands", {}).values():
        yield from _walk(inner, f"{name} {inner.name}", context)
