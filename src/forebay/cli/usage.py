"""`forebay usage`: what was used and what it cost, to the nano-dollar.

Not here: how it is counted and charged (`forebay.ledger`).
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from forebay.cli import desk, export
from forebay.cli.options import AsJson, Config, DataDir, Wide
from forebay.cli.screen import local_time, milliseconds, print_json, print_table

_HEADINGS = (
    "time", "~key", "~model", "lane", "outcome", ">in", ">out", ">first token", ">USD",
)  # fmt: skip
_WIDE = (
    "call", "kind", "time", "key id", "key", "model", "lane", "outcome", "reason", ">in", ">cached",
    ">out", ">first token", ">waited", ">took", ">price", ">USD",
)  # fmt: skip
_TOTALS = (">calls", ">in", ">cached", ">out", ">USD")
_DAY_SECONDS = 86_400


class UsageCommands(TyperGroup):
    """`forebay usage` does something by itself, and has commands that do something else."""

    def invoke(self, ctx: Any) -> Any:
        words = [*ctx._protected_args, *ctx.args]
        if not words:
            return super().invoke(ctx)
        with ctx:
            found: Any = self.resolve_command(ctx, words)
            name, command, rest = found
            with command.make_context(name, rest, parent=ctx) as inner:
                return inner.command.invoke(inner)


def build() -> typer.Typer:
    """The command and its own."""
    group = typer.Typer(
        cls=UsageCommands, invoke_without_command=True, callback=usage, rich_markup_mode=None
    )
    group.command("export")(export.export)
    return group


class By(StrEnum):
    """What usage can be summed by."""

    KEY = "key"
    PROJECT = "project"
    ORGANISATION = "organisation"
    MODEL = "model"
    DAY = "day"


def _day(text: str) -> float:
    """The beginning of a UTC day in Unix seconds."""
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is not a day such as 2027-01-31.") from None


def usage(
    by: Annotated[
        By | None, typer.Option(help="Sums instead of single calls.", show_default=False)
    ] = None,
    since: Annotated[
        float | None,
        typer.Option(
            metavar="DAY", parser=_day, help="Only from this day (UTC) on.", show_default=False
        ),
    ] = None,
    until: Annotated[
        float | None,
        typer.Option(
            metavar="DAY", parser=_day, help="Only up to this day, included.", show_default=False
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Newest calls to show.")] = 20,
    wide: Wide = False,
    data_dir: DataDir = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """What was used and what it cost.

    The newest calls, or sums by key, project, organisation, model or day (UTC).
    """
    if since is not None and until is not None and since > until:
        raise typer.BadParameter("--since is after --until: there is no day from one to the other.")
    settings = desk.load(config, data_dir=data_dir)
    args: dict[str, Any] = {
        "since": since,
        "until": None if until is None else until + _DAY_SECONDS,
        **({"limit": limit} if by is None else {"by": by.value}),
    }
    verb = "usage" if by is None else "usage.totals"
    rows = desk.run(settings, desk.ask(settings, verb, args))
    if as_json:
        print_json(rows)
    elif by is not None:
        print_table(*_sums(by, rows, wide=wide), wide=wide)
    elif wide:
        print_table(_WIDE, map(_wide_cells, rows), wide=True)
    else:
        print_table(_HEADINGS, map(_cells, rows))


def _sums(
    by: By, rows: list[dict[str, Any]], *, wide: bool
) -> tuple[tuple[str, ...], list[list[object]]]:
    """Headings and rows. What has an id and a name is shown by both, the id by its end."""
    named = by in (By.KEY, By.PROJECT, By.ORGANISATION)
    headings = (f"~{by.value}", *(("~name",) if named else ()), *_TOTALS)
    table: list[list[object]] = [list(row.values()) for row in rows]
    if named and not wide:
        table = [[f"…{str(first)[-6:]}", *others] for first, *others in table]
    return headings, table


def _cells(row: dict[str, Any]) -> list[object]:
    return [
        local_time(row["at"]),
        row["key_name"] or row["key_redacted"],
        row["model"],
        row["lane"],
        row["outcome"],
        row["input_tokens"],
        row["output_tokens"],
        milliseconds(row["ttft_ms"]),
        row["amount_usd"],
    ]


def _wide_cells(row: dict[str, Any]) -> list[object]:
    return [
        row["call_id"],
        row["kind"],
        local_time(row["at"]),
        row["key_id"],
        row["key_name"] or row["key_redacted"],
        row["model"],
        row["lane"],
        row["outcome"],
        row["reason"],
        row["input_tokens"],
        row["cached_input_tokens"],
        row["output_tokens"],
        milliseconds(row["ttft_ms"]),
        milliseconds(row["queue_ms"]),
        milliseconds(row["duration_ms"]),
        row["price_version"],
        row["amount_usd"],
    ]
