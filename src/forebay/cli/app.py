"""The command line's table of contents and its one exit: `forebay` starts here.

Not here: what a command does (its own file), what a failure looks like (`failure.py`).
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from forebay import __version__
from forebay.cli import (
    alerts,
    audit,
    batch,
    budgets,
    chat,
    demo,
    doctor,
    keys,
    ledger,
    models,
    projects,
    reconcile,
    top,
    up,
    usage,
)
from forebay.cli.failure import explain
from forebay.core.wording import plain

HELP_COLUMNS = 80


class Commands(TyperGroup):
    """The root of all commands: says what is wrong with an argument without a library's terms."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as fault:
            fault.message = plain(fault.message)
            raise


def build() -> typer.Typer:
    """All commands."""
    app = typer.Typer(
        name="forebay",
        cls=Commands,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,  # plain help: quicker, and the same text in docs and pipes
        pretty_exceptions_enable=False,
        context_settings={
            "help_option_names": ["-h", "--help"],
            "terminal_width": HELP_COLUMNS,
        },
    )
    app.callback()(forebay)
    app.command("up")(up.up)
    app.command("chat")(chat.chat)
    app.add_typer(batch.build(), name="batch")
    app.add_typer(keys.build(), name="keys")
    app.add_typer(projects.build(), name="projects")
    app.add_typer(budgets.build(), name="budgets")
    app.add_typer(alerts.build(), name="alerts")
    app.add_typer(usage.build(), name="usage")
    app.add_typer(audit.build(), name="audit")
    app.command("reconcile")(reconcile.reconcile)
    app.add_typer(ledger.build(), name="ledger")
    app.add_typer(models.build(), name="models")
    app.command("top")(top.top)
    app.add_typer(demo.build(), name="demo")
    app.command("doctor")(doctor.doctor)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        print(f"forebay {__version__}")
        raise typer.Exit


def forebay(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_version, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """An OpenAI-compatible LLM API service for people who own their inference.

    Settings come from flags, FOREBAY_... variables, a YAML file, defaults, in this order. Exit
    codes: 0 it worked, 1 it failed, 2 wrong use or it cannot start, 3 a batch that was watched has
    ended and not every line of it was answered.
    """


def main() -> None:
    """The program `forebay`."""
    try:
        build()(prog_name="forebay")
    except Exception as fault:
        failure = explain(fault)
        if failure is None:
            raise
        for line in str(failure).splitlines():
            print(f"forebay: {line}", file=sys.stderr)
        sys.exit(failure.exit_code)
