"""`forebay keys …`: API keys and admin keys, while the server runs or not.

Not here: what a key may do (`forebay.tenancy`), its money (`forebay.ledger`).
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from forebay.cli import desk
from forebay.cli.options import AsJson, Config, DataDir, Wide
from forebay.cli.screen import local_time, print_json, print_table

_HEADINGS = (
    "id", "~name", "key", "~organisation/project", "state", ">budget USD", "period", ">spent USD", ">open",
)  # fmt: skip
_WIDE = (
    "id", "name", "key", "organisation/project", "created", "state", ">budget USD", "period", ">spent USD",
    ">open calls", ">requests/minute",
    ">tokens/minute", ">batch input/day", ">most output", "models", "lanes",
)  # fmt: skip
_ADMIN_HEADINGS = ("id", "~name", "key", "~organisation", "created", "state")
_SHOWN_OF_ID = 6
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_MOST_DAYS, _MOST_OVERLAP = 36_500, "30d"
_TO_THE_MINUTE = len("2027-01-15 08:00")


_MaxOpenCalls = Annotated[int | None, typer.Option(metavar="N", help="Most calls at once.")]
_RequestsPerMinute = Annotated[int | None, typer.Option(metavar="N", help="Most calls a minute.")]
_TokensPerMinute = Annotated[int | None, typer.Option(metavar="N", help="Most tokens a minute.")]
_BatchInputTokensPerDay = Annotated[
    int | None, typer.Option(metavar="N", help="Most input tokens a day in the batch lane.")
]
_MaxOutputTokens = Annotated[
    int | None, typer.Option(metavar="N", help="Output bound of each of its calls.")
]


_Name = Annotated[
    str | None, typer.Option(metavar="NAME", help="What people call it; none unless given.")
]
_Home = Annotated[str, typer.Option(metavar="NAME", help="Made if it is not there.")]
_Plan = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Plan of an organisation that is made now, standard unless given. Those of a file "
        "need --config while no server runs.",
    ),
]
_MonthlyBudget = Annotated[
    str | None,
    typer.Option(
        metavar="USD",
        help="Most it may spend a month, such as 5.00, or none; the plan's unless given.",
        show_default=False,
    ),
]


def build() -> typer.Typer:
    """The group."""
    group = typer.Typer(
        help="API keys, while the server runs or not.", no_args_is_help=True, rich_markup_mode=None
    )
    group.command("create")(create)
    group.command("list")(list_keys)
    group.command("rotate")(rotate)
    group.command("revoke")(revoke)
    group.command("create-admin")(create_admin)
    group.command("list-admin")(list_admin)
    group.command("revoke-admin")(revoke_admin)
    return group


def create(
    name: _Name = None,
    organisation: _Home = "default",
    project: _Home = "default",
    plan: _Plan = None,
    monthly_budget: _MonthlyBudget = None,
    max_open_calls: _MaxOpenCalls = None,
    requests_per_minute: _RequestsPerMinute = None,
    tokens_per_minute: _TokensPerMinute = None,
    batch_input_tokens_per_day: _BatchInputTokensPerDay = None,
    max_output_tokens: _MaxOutputTokens = None,
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

    It is shown once and stored nowhere: keep it. Its limits may be lower than its plan's, never
    higher.
    """
    if name is not None and not name.strip():
        raise typer.BadParameter("it is empty; leave out --name for a key without one.")
    settings = desk.load(config, data_dir=data_dir)
    request = {
        "name": name or "",
        "organisation": organisation,
        "project": project,
        "plan": plan,
        "monthly_budget_usd": monthly_budget,
        "max_open_calls": max_open_calls,
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "batch_input_tokens_per_day": batch_input_tokens_per_day,
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
    """All keys, and what they spent in their period."""
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


def rotate(
    key: Annotated[
        str,
        typer.Argument(metavar="KEY", help="Its id, the last 6 characters of that, or its name."),
    ],
    overlap: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="How long the old one works on: 90s, 30m, 24h, 7d (seconds without a unit), at "
            "most 30d; 0 stops it at once.",
        ),
    ] = "24h",
    data_dir: DataDir = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Give a key another secret.

    It is shown once. The old one works on for the overlap, then it is refused. A key has two
    secrets at most: one that was still in its overlap stops at once. The key's id, limits and
    budget stay.
    """
    seconds = duration_seconds(overlap)
    if seconds > duration_seconds(_MOST_OVERLAP):
        raise typer.BadParameter(f"an overlap of {overlap} is not between 0 and {_MOST_OVERLAP}.")
    settings = desk.load(config, data_dir=data_dir)
    args = {"key_id": key, "overlap_seconds": seconds}
    made = desk.run(settings, desk.ask(settings, "keys.rotate", args))
    if as_json:
        print_json(made)
        return
    until = local_time(made["old_works_until"])
    older = "; an even older one has stopped now" if made["older_secret_stopped"] else ""
    print(f"{made['id']}; the old key works until {until}{older}; the new one, shown once:")
    print(made["key"], flush=True)


def duration_seconds(text: str) -> float:
    """Seconds of `90`, `90s`, `30m`, `24h` or `7d`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is no length of time; write 90s, 30m, 24h or 7d.")
    return float(match[1]) * _SECONDS[match[2]]


def create_admin(
    organisation: Annotated[str, typer.Option(metavar="NAME", help="What it administers.")],
    name: Annotated[str, typer.Option(metavar="NAME", help="What people call it.")] = "admin",
    expires_in_days: Annotated[
        float | None, typer.Option(metavar="DAYS", help="Refuse it from then on.")
    ] = None,
    data_dir: DataDir = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Make a key for the admin API.

    It administers one organisation and serves no calls. It is shown once and stored nowhere.
    """
    seconds = None if expires_in_days is None else _seconds_of_days(expires_in_days)
    settings = desk.load(config, data_dir=data_dir)
    args = {"organisation": organisation, "name": name, "expires_in_seconds": seconds}
    made = desk.run(settings, desk.ask(settings, "keys.create_admin", args))
    if as_json:
        print_json(made)
        return
    print(f"{made['id']} of {made['organisation']}; the admin key, shown once:")
    print(made["key"], flush=True)


def list_admin(data_dir: DataDir = None, config: Config = None, as_json: AsJson = False) -> None:
    """All admin keys, and until when they work."""
    from forebay.system import SystemClock

    settings = desk.load(config, data_dir=data_dir)
    rows = desk.run(settings, desk.ask(settings, "keys.list_admin"))
    if as_json:
        print_json(rows)
    else:
        now = SystemClock().now()
        print_table(_ADMIN_HEADINGS, (_admin_cells(row, now) for row in rows))


def revoke_admin(
    key: Annotated[str, typer.Argument(metavar="KEY", help="Its id.")],
    data_dir: DataDir = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Refuse an admin key from now on."""
    settings = desk.load(config, data_dir=data_dir)
    revoked = desk.run(settings, desk.ask(settings, "keys.revoke_admin", {"key_id": key}))
    if as_json:
        print_json(revoked)
    else:
        print(f"revoked {revoked['id']} {revoked['name']}")


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
        row["budget_usd"],
        row["period"],
        row["spent_usd"],
        row["open_calls"],
    ]


def _admin_cells(row: dict[str, Any], now: float) -> list[object]:
    created, works = local_time(row["created_at"]), state({**row, "revoked_at": None}, now)
    return [row["id"], row["name"], row["redacted"], row["organisation"], created, works]


def _seconds_of_days(days: float) -> int:
    if not 0 < days <= _MOST_DAYS:
        raise typer.BadParameter(f"{days:g} days are not above 0 and at most {_MOST_DAYS} days.")
    return max(1, round(days * _SECONDS["d"]))


def wide_cells(row: dict[str, Any], now: float) -> list[object]:
    """The same with all that is known of the key."""
    return [
        row["id"],
        row["name"],
        row["redacted"],
        f"{row['organisation']}/{row['project']}",
        local_time(row["created_at"]),
        state(row, now),
        row["budget_usd"],
        row["period"],
        row["spent_usd"],
        row["open_calls"],
        row["requests_per_minute"],
        row["tokens_per_minute"],
        row["batch_input_tokens_per_day"],
        row["max_output_tokens"],
        ", ".join(row["models"] or ("all",)),
        ", ".join(row["lanes"] or ("all of the plan",)),
    ]


def state(row: dict[str, Any], now: float) -> str:
    """Whether the key works, and since or until when."""
    if row["revoked_at"] is not None:
        return f"revoked {local_time(row['revoked_at'])[:_TO_THE_MINUTE]}"
    if (archived := row.get("project_archived_at")) is not None:
        return f"archived {local_time(archived)[:_TO_THE_MINUTE]}"
    if row["expires_at"] is None:
        return "live"
    word = "until" if row["expires_at"] > now else "expired"
    return f"{word} {local_time(row['expires_at'])[:_TO_THE_MINUTE]}"
