"""`forebay reconcile`: every balance, count and amount computed anew and compared with what is kept.

Not here: what is compared and how (`forebay.ledger`), the engines' windows (`forebay.pipeline.meter`).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from forebay.cli import desk
from forebay.cli.failure import Failure
from forebay.cli.options import AsJson, Config, DataDir
from forebay.cli.screen import counted, print_json


def reconcile(data_dir: DataDir = None, config: Config = None, as_json: AsJson = False) -> None:
    """Compute every balance anew and compare.

    Balances with what was settled and is held, charges with their prices, engines' own counters
    with what was received. Ends with 1 if anything differs.
    """
    settings = desk.load(config, data_dir=data_dir)
    found = desk.run(settings, _reconcile(settings))
    if as_json:
        print_json(found)
    else:
        for line in (*found["differences"], *map(_restart, found["flagged"]), _summary(found)):
            print(line)
    if found["differences"]:
        raise Failure("the books do not agree with themselves")


async def _reconcile(settings: Any) -> dict[str, Any]:
    async with desk.asking(settings) as ask:
        found: dict[str, Any] = await ask("reconcile")
        return found


def _summary(found: dict[str, Any]) -> str:
    compared = (
        counted(found["rows"], "row"),
        counted(found["holds"], "open hold"),
        counted(found["balances"], "balance"),
        counted(found["windows"], "engine minute"),
    )
    flagged = found["flagged_windows"]
    but = f" ({flagged} with a restart, not compared)" if flagged else ""
    differences = counted(len(found["differences"]), "difference")
    return f"{', '.join(compared)}{but}: {differences}"


def _restart(window: dict[str, Any]) -> str:
    minute = datetime.fromtimestamp(window["minute_at"], tz=UTC).strftime("%Y-%m-%d %H:%M")
    received = window["received_tokens"] + window["discarded_tokens"]
    return (
        f"Engine {window['engine']} was started again in the minute at {minute} UTC: it counted "
        f"{window['engine_tokens']} tokens, of which {received} came."
    )
