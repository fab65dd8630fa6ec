"""`forebay projects list | limit | plan | archive`: what a project may use, while the server runs or not.

Not here: their budgets (`forebay budgets`), their keys (`forebay keys`, which also makes projects).
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from forebay.cli import desk
from forebay.cli.options import AsJson, Config, DataDir
from forebay.cli.screen import local_time, print_json, print_table

NONE = "none"
_HEADINGS = (
    "~organisation", "~plan", "~project", "model", "state", ">requests/minute", ">tokens/minute",
    ">batch input/day",
)  # fmt: skip
_RATES = ("requests_per_minute", "tokens_per_minute", "batch_input_tokens_per_day")

_Organisation = Annotated[str, typer.Option(metavar="NAME", help="Whose project it is.")]
_Project = Annotated[str, typer.Option(metavar="NAME", help="Which one.")]


def build() -> typer.Typer:
    """The group."""
    group = typer.Typer(
        help="Projects and their limits, while the server runs or not.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    group.command("list")(list_projects)
    group.command("limit")(limit)
    group.command("plan")(plan)
    group.command("archive")(archive)
    return group


def list_projects(data_dir: DataDir = None, config: Config = None, as_json: AsJson = False) -> None:
    """All projects, with their plan and their own limits."""
    settings = desk.load(config, data_dir=data_dir)
    rows = desk.run(settings, desk.ask(settings, "projects.list"))
    if as_json:
        print_json(rows)
    else:
        print_table(_HEADINGS, map(cells, rows))


def limit(
    organisation: _Organisation,
    project: _Project,
    model: Annotated[
        str, typer.Option(metavar="NAME", help="Its calls of this model only.", show_default=False)
    ] = "",
    requests_per_minute: Annotated[
        str | None, typer.Option(metavar="N", help="Most calls a minute; none lifts it.")
    ] = None,
    tokens_per_minute: Annotated[
        str | None, typer.Option(metavar="N", help="Most tokens a minute; none lifts it.")
    ] = None,
    batch_input_tokens_per_day: Annotated[
        str | None,
        typer.Option(metavar="N", help="Most input tokens a day in the batch lane; none lifts it."),
    ] = None,
    data_dir: DataDir = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Limit a project, or its use of a model.

    What is not named stays as it is. A limit may be lower than the plan's, never higher; it holds
    for the next call.
    """
    settings = desk.load(config, data_dir=data_dir)
    given = (requests_per_minute, tokens_per_minute, batch_input_tokens_per_day)
    limits = {
        name: rate(text) for name, text in zip(_RATES, given, strict=True) if text is not None
    }
    if not limits:
        raise typer.BadParameter("name at least one limit, such as --requests-per-minute.")
    args = {"organisation": organisation, "project": project, "model": model, "limits": limits}
    row = desk.run(settings, desk.ask(settings, "projects.limit", args))
    if as_json:
        print_json(row)
    else:
        print_table(_HEADINGS, [cells(row)])


def plan(
    organisation: Annotated[str, typer.Argument(metavar="ORGANISATION", help="Whose plan it is.")],
    name: Annotated[str, typer.Argument(metavar="PLAN", help="One of the configuration.")],
    data_dir: DataDir = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Give an organisation another plan.

    It holds for the next call; running calls finish. Limits of keys and projects stay as they are,
    and those above the plan's are without effect. While no server runs, the plans of a file are
    known with --config only.
    """
    settings = desk.load(config, data_dir=data_dir)
    args = {"organisation": organisation, "plan": name}
    row = desk.run(settings, desk.ask(settings, "projects.plan", args))
    if as_json:
        print_json(row)
    else:
        print(f"{row['organisation']} has the plan {row['plan']}")


def archive(
    organisation: _Organisation,
    project: _Project,
    data_dir: DataDir = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Refuse all keys of a project from now on.

    For good: there is no way back. What it has used stays in the books.
    """
    settings = desk.load(config, data_dir=data_dir)
    args = {"organisation": organisation, "project": project}
    row = desk.run(settings, desk.ask(settings, "projects.archive", args))
    if as_json:
        print_json(row)
    else:
        print(f"archived {row['organisation']}/{row['project']}")


def rate(text: str) -> int | None:
    """A number, or none."""
    if text.strip().lower() == NONE:
        return None
    if not (text.isascii() and text.isdigit()):
        raise typer.BadParameter(f"{text!r} is neither a number nor {NONE}.")
    return int(text)


def cells(row: dict[str, Any]) -> list[object]:
    """A row of `projects list`."""
    archived = row["archived_at"]
    state = "active" if archived is None else f"archived {local_time(archived)}"
    rates = [NONE if row[name] is None else row[name] for name in _RATES]
    return [
        row["organisation"],
        row["plan"],
        row["project"],
        row["model"] or "(all)",
        state,
        *rates,
    ]
