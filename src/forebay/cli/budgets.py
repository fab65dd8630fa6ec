"""`forebay budgets set | list`: monthly caps of organisations and projects.

Not here: the cap of a key (`forebay keys create`), how caps are kept (`forebay.ledger`).
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from forebay.cli import desk
from forebay.cli.options import AsJson, Config, DataDir
from forebay.cli.screen import print_json, print_table

NONE = "none"
_HEADINGS = (
    "~organisation", "~project", ">budget USD", ">spent USD", ">held USD", ">open calls",
)  # fmt: skip


def build() -> typer.Typer:
    """The group."""
    group = typer.Typer(
        help="Monthly caps of organisations and projects.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    group.command("set")(set_budget)
    group.command("list")(list_budgets)
    return group


def set_budget(
    amount: Annotated[
        str,
        typer.Argument(metavar="AMOUNT", help="Most USD a month, such as 50.00; none lifts it."),
    ],
    organisation: Annotated[str, typer.Option(metavar="NAME", help="Whose calls are meant.")],
    project: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="This project of it only.", show_default=False),
    ] = None,
    data_dir: DataDir = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Cap what an organisation or a project spends.

    A month is a month of UTC. A lowered cap refuses new calls at once and lets running ones
    finish.
    """
    settings = desk.load(config, data_dir=data_dir)
    args = {
        "organisation": organisation,
        "project": project,
        "monthly_budget_usd": None if amount.strip().lower() == NONE else amount,
    }
    row = desk.run(settings, desk.ask(settings, "budgets.set", args))
    if as_json:
        print_json(row)
    else:
        print(_sentence(row))


def list_budgets(data_dir: DataDir = None, config: Config = None, as_json: AsJson = False) -> None:
    """Organisations and projects, and what they spent this month (UTC)."""
    settings = desk.load(config, data_dir=data_dir)
    rows = desk.run(settings, desk.ask(settings, "budgets.list"))
    if as_json:
        print_json(rows)
    else:
        print_table(_HEADINGS, map(_cells, rows))


def _sentence(row: dict[str, Any]) -> str:
    name = row["organisation"] + (f"/{row['project']}" if row["project"] is not None else "")
    budget = row["monthly_budget_usd"]
    cap = "has no budget of its own" if budget is None else f"may spend {budget} USD a month"
    return f"{name} {cap}; this month it has spent {row['spent_usd']} USD"


def _cells(row: dict[str, Any]) -> list[object]:
    return [
        row["organisation"],
        "(all)" if row["project"] is None else row["project"],
        row["monthly_budget_usd"] or NONE,
        row["spent_usd"],
        row["pending_usd"],
        row["open_calls"],
    ]
