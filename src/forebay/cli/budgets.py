"""`forebay budgets set | top-up | list`: what organisations, projects and keys may spend.

Not here: the first budget of a key (`forebay keys create`), how budgets are kept (`forebay.ledger`).
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from forebay.cli import desk
from forebay.cli.options import AsJson, Config, DataDir
from forebay.cli.screen import print_json, print_table

NONE = "none"
_HEADINGS = (
    "~organisation", "~project", ">budget USD", "period", ">spent USD", ">held USD", ">open calls",
)  # fmt: skip


class AmountCommand(TyperCommand):
    """An amount below 0 is called that, not an option that there is not."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        for arg in args:
            if re.match(r"-[.0-9]", arg):
                raise typer.BadParameter(f"{arg} is below 0; an amount of USD is 0 or more.")
        return super().parse_args(ctx, args)


def build() -> typer.Typer:
    """The group."""
    group = typer.Typer(
        help="What organisations, projects and keys may spend.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    group.command("set", cls=AmountCommand)(set_budget)
    group.command("top-up", cls=AmountCommand)(top_up)
    group.command("list")(list_budgets)
    return group


def set_budget(
    amount: Annotated[
        str, typer.Argument(metavar="AMOUNT", help="Most USD, such as 50.00; none lifts it.")
    ],
    organisation: Annotated[
        str | None, typer.Option(metavar="NAME", help="Whose calls are meant.", show_default=False)
    ] = None,
    project: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="This project of it only.", show_default=False),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="This key: its id or its name.", show_default=False),
    ] = None,
    period: Annotated[
        str | None,
        typer.Option(
            metavar="PERIOD", help="day, month or total; as before unless given, at first month."
        ),
    ] = None,
    data_dir: DataDir = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Cap what an organisation, a project or a key spends.

    Days and months are those of UTC. A lowered cap refuses new calls at once and lets running ones
    finish.
    """
    if organisation is None and key is None:
        raise typer.BadParameter("name whose it is: --organisation, or --key.")
    settings = desk.load(config, data_dir=data_dir)
    args = {
        "organisation": organisation,
        "project": project,
        "key": key,
        "period": period,
        "budget_usd": None if amount.strip().lower() == NONE else amount,
    }
    row = desk.run(settings, desk.ask(settings, "budgets.set", args))
    if as_json:
        print_json(row)
    else:
        print(_sentence(row))


def top_up(
    organisation: Annotated[str, typer.Argument(metavar="ORGANISATION", help="Who has paid.")],
    amount: Annotated[str, typer.Argument(metavar="USD", help="How much, such as 50.00.")],
    payment: Annotated[
        str, typer.Option("--id", metavar="ID", help="Of the payment: each is booked once.")
    ],
    data_dir: DataDir = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Book prepaid credit.

    It raises what the organisation may spend in total. The same id again books nothing more.
    """
    settings = desk.load(config, data_dir=data_dir)
    args = {"organisation": organisation, "amount_usd": amount, "id": payment}
    row = desk.run(settings, desk.ask(settings, "budgets.top_up", args))
    if as_json:
        print_json(row)
    else:
        print(_sentence(row))


def list_budgets(data_dir: DataDir = None, config: Config = None, as_json: AsJson = False) -> None:
    """Organisations and projects, and what they spent."""
    settings = desk.load(config, data_dir=data_dir)
    rows = desk.run(settings, desk.ask(settings, "budgets.list"))
    if as_json:
        print_json(rows)
    else:
        print_table(_HEADINGS, map(_cells, rows))


def _sentence(row: dict[str, Any]) -> str:
    name = row["organisation"] + (f"/{row['project']}" if row["project"] is not None else "")
    name += f" key {row['key']}" if row["key"] is not None else ""
    each, this = _PERIODS[row["period"]]
    budget = row["budget_usd"]
    cap = "has no budget of its own" if budget is None else f"may spend {budget} USD {each}"
    return f"{name} {cap}; {this} it has spent {row['spent_usd']} USD"


_PERIODS = {
    "day": ("a day", "today"),
    "month": ("a month", "this month"),
    "total": ("in all", "so far"),
}


def _cells(row: dict[str, Any]) -> list[object]:
    return [
        row["organisation"],
        "(all)" if row["project"] is None else row["project"],
        row["budget_usd"] or NONE,
        row["period"],
        row["spent_usd"],
        row["pending_usd"],
        row["open_calls"],
    ]
