"""`forebay keys create | list | revoke`: API keys, while the server runs or not.

Not here: what a key may do (`forebay.tenancy`), its money (`forebay.ledger`).
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from forebay.cli import desk
from forebay.cli.options import AsJson, Config, DataDir, Wide
from forebay.cli.screen import local_time, print_json, print_table

_HEADINGS = (
    "id", "~name", "key", "~organisation/project", "state", ">budget USD", ">spent USD", ">open",
)  # fmt: skip
_WIDE = (
    "id", "name", "key", "organisation/project", "created", "state", ">budget USD", ">spent USD",
    ">open calls", ">requests/minute", ">most output", "models", "lanes",
)  # fmt: skip
_SHOWN_OF_ID = 6
_TO_THE_MINUTE = len("2027-01-15 08:00")


def build() -> typer.Typer:
    """The group."""
    group = typer.Typer(
        help="API keys, while the server runs or not.", no_args_is_help=True, rich_markup_mode=None
    )
    group.command("create")(create)
    group.command("list")(list_keys)
    group.command("revoke")(revoke)
    return group


def create(
    name: Annotated[
        str, typer.Option(metavar="NAME", help="What people call it.", show_default=False)
    ] = "",
    organisation: Annotated[
        str, typer.Option(metavar="NAME", help="Made if it is not there.")
    ] = "default",
    project: Annotated[
        str, typer.Option(metavar="NAME", help="Made if it is not there.")
    ] = "default",
    plan: Annotated[
        str, typer.Option(metavar="NAME", help="Plan of an organisation that is made now.")
    ] = "standard",
    monthly_budget: Annotated[
        str | None, typer.Option(metavar="USD", help="Most it may spend a month, such as 5.00.")
    ] = None,
    max_open_calls: Annotated[
        int | None, typer.Option(metavar="N", help="Most calls at once.")
    ] = None,
    requests_per_minute: Annotated[
        int | None, typer.Option(metavar="N", help="Most calls a minute.")
    ] = None,
    max_output_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Output bound of each of its calls.")
    ] = None,
    expires_in_days: Annotated[
        float | None, typer.Option(metavar="DAYS", help="Refuse it from then on.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Allow this model only; may be repeated."),
    ] = None,
    lane: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LANE", help="Allow this lane only (premium, interactive, batch); repeatable."
        ),
    ] = None,
    data_dir: DataDir = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Make a key.

    It is shown once and stored nowhere: keep it.
    """
    settings = desk.load(config, data_dir=data_dir)
    request = {
        "name": name,
        "organisation": organisation,
        "project": project,
        "plan": plan,
        "monthly_budget_usd": monthly_budget,
        "max_open_calls": max_open_calls,
        "requests_per_minute": requests_per_minute,
        "max_output_tokens": max_output_tokens,
        "expires_in_days": expires_in_days,
        "models": model or None,
        "lanes": lane or None,
    }
    made = desk.run(settings, desk.ask(settings, "keys.create", {"request": request}))
    if as_json:
        print_json(made)
        return
    print(f"{made['id']} of {made['organisation']}/{made['project']}; the API key, shown once:")
    print(made["key"], flush=True)


def list_keys(
    wide: Wide = False, data_dir: DataDir = None, config: Config = None, as_json: AsJson = False
) -> None:
    """All keys, and what they spent this month."""
    from forebay.system import SystemClock

    settings = desk.load(config, data_dir=data_dir)
    rows = desk.run(settings, desk.ask(settings, "keys.list"))
    now = SystemClock().now()
    if as_json:
        print_json(rows)
    elif wide:
        print_table(_WIDE, (wide_cells(row, now) for row in rows), wide=True)
    else:
        print_table(_HEADINGS, (cells(row, now) for row in rows))


def revoke(
    key: Annotated[
        str,
        typer.Argument(metavar="KEY", help="Its id, the last 6 characters of that, or its name."),
    ],
    data_dir: DataDir = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Refuse a key from now on.

    Its running calls finish.
    """
    settings = desk.load(config, data_dir=data_dir)
    revoked = desk.run(settings, desk.ask(settings, "keys.revoke", {"key_id": key}))
    if as_json:
        print_json(revoked)
    else:
        print(f"revoked {revoked['id']} {revoked['name']}".rstrip())


def cells(row: dict[str, Any], now: float) -> list[object]:
    """A row of `keys list`."""
    return [
        f"…{row['id'][-_SHOWN_OF_ID:]}",
        row["name"],
        row["redacted"],
        f"{row['organisation']}/{row['project']}",
        state(row, now),
        row["monthly_budget_usd"],
        row["spent_usd"],
        row["open_calls"],
    ]


def wide_cells(row: dict[str, Any], now: float) -> list[object]:
    """The same with all that is known of the key."""
    return [
        row["id"],
        row["name"],
        row["redacted"],
        f"{row['organisation']}/{row['project']}",
        local_time(row["created_at"]),
        state(row, now),
        row["monthly_budget_usd"],
        row["spent_usd"],
        row["open_calls"],
        row["requests_per_minute"],
        row["max_output_tokens"],
        ", ".join(row["models"] or ("all",)),
        ", ".join(row["lanes"] or ("all of the plan",)),
    ]


def state(row: dict[str, Any], now: float) -> str:
    """Whether the key works, and since or until when."""
    if row["revoked_at"] is not None:
        return f"revoked {local_time(row['revoked_at'])[:_TO_THE_MINUTE]}"
    if row["expires_at"] is None:
        return "live"
    word = "until" if row["expires_at"] > now else "expired"
    return f"{word} {local_time(row['expires_at'])[:_TO_THE_MINUTE]}"
