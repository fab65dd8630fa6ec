"""`forebay alerts add | list | remove | test`: who is told that so much was spent.

Not here: how alerts are noticed and delivered (`forebay.pipeline.alerting`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from forebay.cli import desk
from forebay.cli.failure import Failure
from forebay.cli.options import AsJson, Config, DataDir, Wide
from forebay.cli.screen import local_time, print_json, print_table

_HEADINGS = (
    "id", "~organisation/project", "interval", ">threshold USD", "~url", "last event",
)  # fmt: skip
_SHOWN_OF_ID = 6


class Interval(StrEnum):
    """How often an alert may fire (UTC)."""

    MONTH = "month"
    DAY = "day"
    TOTAL = "total"


Which = Annotated[
    str, typer.Argument(metavar="ALERT", help="Its id, or the last 6 characters of that.")
]


def build() -> typer.Typer:
    """The group."""
    group = typer.Typer(
        help="Webhooks at thresholds of spending.", no_args_is_help=True, rich_markup_mode=None
    )
    group.command("add")(add)
    group.command("list")(list_alerts)
    group.command("remove")(remove)
    group.command("test")(send_sample)
    return group


def add(
    threshold: Annotated[
        str, typer.Argument(metavar="AMOUNT", help="USD that fire it, such as 50.00.")
    ],
    url: Annotated[str, typer.Argument(metavar="URL", help="Where the webhook goes: https://…")],
    organisation: Annotated[str, typer.Option(metavar="NAME", help="Whose spending is meant.")],
    project: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="This project of it only.", show_default=False),
    ] = None,
    interval: Annotated[
        Interval, typer.Option(help="In what time (UTC) so much must be spent.")
    ] = Interval.MONTH,
    data_dir: DataDir = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Send a webhook when so much is spent, once a month.

    The secret that its signature is verified with is shown once. If so much is spent already, it
    is sent at once.
    """
    settings = desk.load(config, data_dir=data_dir)
    args = {
        "organisation": organisation,
        "project": project,
        "threshold_usd": threshold,
        "interval": interval.value,
        "webhook_url": url,
    }
    made = desk.run(settings, desk.ask(settings, "alerts.add", args))
    if as_json:
        print_json(made)
        return
    print(f"{made['id']} at {made['threshold_usd']} USD; its signing secret, shown once:")
    print(made["secret"], flush=True)


def list_alerts(
    wide: Wide = False, data_dir: DataDir = None, config: Config = None, as_json: AsJson = False
) -> None:
    """All alerts, and what became of the last event of each."""
    settings = desk.load(config, data_dir=data_dir)
    rows = desk.run(settings, desk.ask(settings, "alerts.list"))
    if as_json:
        print_json(rows)
    else:
        print_table(_HEADINGS, (cells(row, wide=wide) for row in rows), wide=wide)


def remove(
    alert: Which, data_dir: DataDir = None, config: Config = None, as_json: AsJson = False
) -> None:
    """Forget an alert.

    What it has not delivered yet is not sent any more.
    """
    settings = desk.load(config, data_dir=data_dir)
    removed = desk.run(settings, desk.ask(settings, "alerts.remove", {"alert_id": alert}))
    if as_json:
        print_json(removed)
    else:
        print(f"removed {removed['id']}")


def send_sample(
    alert: Which, data_dir: DataDir = None, config: Config = None, as_json: AsJson = False
) -> None:
    """Send the receiver of an alert a sample, once.

    Its type ends in .test. Fails unless the receiver answers with a status of 200 to 299.
    """
    settings = desk.load(config, data_dir=data_dir)
    sent = desk.run(settings, desk.ask(settings, "alerts.test", {"alert_id": alert}))
    if as_json:
        print_json(sent)
    answer = f"answered {sent['status']}" if sent["status"] else sent["reason"]
    if not sent["status"] or not 200 <= sent["status"] < 300:
        raise Failure(f"The receiver did not accept {sent['event_id']}: {answer}.")
    if not as_json:
        print(f"sent {sent['event_id']}; the receiver {answer}")


def cells(row: dict[str, Any], *, wide: bool) -> list[object]:
    """A row of `alerts list`."""
    project = "(all)" if row["project"] is None else row["project"]
    return [
        row["id"] if wide else f"…{row['id'][-_SHOWN_OF_ID:]}",
        f"{row['organisation']}/{project}",
        row["interval"],
        row["threshold_usd"],
        row["webhook_url"],
        state(row),
    ]


def state(row: dict[str, Any]) -> str:
    """What became of its last event."""
    event = row["last_event"]
    if not row["enabled"]:
        return "disabled: its receiver is gone (410)"
    if event is None:
        return ""
    said = f"{event['state']} ({event['period'] or 'total'})"
    if event["next_at"] is None or event["attempts"] == 0:
        return said
    return f"{said}, attempt {event['attempts'] + 1} at {local_time(event['next_at'])}"
