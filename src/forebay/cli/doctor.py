"""`forebay doctor`: what is installed, configured, running and wrong, and what to do about it.

It changes nothing, and nothing secret is shown: its output can be put into a report.

Not here: the checks themselves (`checks.py`).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from forebay.cli import desk
from forebay.cli.failure import IT_FAILED
from forebay.cli.options import AsJson, Config, DataDir
from forebay.cli.screen import counted, print_json

if TYPE_CHECKING:
    from forebay.cli.checks import Finding
    from forebay.config import Row, Settings


def doctor(data_dir: DataDir = None, config: Config = None, as_json: AsJson = False) -> None:
    """See what is wrong and what to do about it.

    Checks versions, server, weights, stores, ports, disk, permissions and settings. Exit code 1
    if something is wrong; warnings do not count.
    """
    settings = desk.load(config, data_dir=data_dir)
    findings = desk.run(settings, _examine(settings))
    wrong = [each for each in findings if each.level == "wrong"]
    if as_json:
        print_json(_report(settings, findings))
    else:
        _print(settings, findings)
    if wrong:
        raise typer.Exit(IT_FAILED)


async def _examine(settings: Settings) -> list[Finding]:
    from forebay.cli import checks

    status = await checks.server_status(settings.data_dir)
    here = desk.data_here(settings)
    other = None if here is None else await checks.server_status(here)
    return [
        *checks.versions(),
        *checks.server(settings, status),
        *checks.neighbour(settings, status, other),
        *await checks.weights(settings),
        *checks.stores(settings, status),
        *checks.ports(settings, status, other),
        *checks.disk(settings),
        *checks.permissions(settings),
        *checks.choices(settings),
        *checks.continuation(settings),
    ]


def _report(settings: Settings, findings: list[Finding]) -> dict[str, Any]:
    from forebay.config import describe

    return {
        "ok": all(each.level != "wrong" for each in findings),
        "findings": [asdict(each) for each in findings],
        "settings": [row._asdict() for row in describe(settings)],
    }


def _print(settings: Settings, findings: list[Finding]) -> None:
    from forebay.config import describe

    for each in findings:
        print(f"{each.level:<8} {each.topic:<12} {each.text}")
        if each.remedy:
            print(f"{'':<8} {'':<12} → {each.remedy}")
    print("\nSettings that are not the defaults:")
    chosen: list[Row] = [row for row in describe(settings) if row.source != "default"]
    for row in chosen:
        print(f"         {row.name} = {row.value}   ({row.source})")
    if not chosen:
        print("         none")
    counts = {
        level: sum(each.level == level for each in findings) for level in ("wrong", "warning")
    }
    print(f"\n{counts['wrong']} wrong, {counted(counts['warning'], 'warning')}")
