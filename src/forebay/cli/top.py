"""`forebay top`: what a running server is doing now, until Ctrl-C.

It asks the control socket and changes nothing; prompts, answers and keys are not in what it gets.

Not here: how it looks (`top_view.py`), what is counted (`forebay.pipeline.activity`).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forebay.cli import desk
from forebay.cli.failure import Failure
from forebay.cli.options import AsJson, Config, DataDir
from forebay.cli.screen import print_json

if TYPE_CHECKING:
    from forebay.config import Settings

LEAST_INTERVAL_SECONDS = 0.2


def top(
    interval: Annotated[
        float,
        typer.Option(min=LEAST_INTERVAL_SECONDS, metavar="SECONDS", help="Time between two looks."),
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one look and exit.")] = False,
    data_dir: DataDir = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Watch a running server.

    Who waits and runs in each lane, how fast first tokens come, and what it earns. Without a
    terminal, or with --json, it is one look.
    """
    settings = desk.load(config, data_dir=data_dir)
    if as_json:
        print_json(desk.run(settings, _look(settings)))
    elif once or not sys.stdout.isatty():
        from forebay.cli import top_view

        top_view.show(desk.run(settings, _look(settings)))
    else:
        _watch(settings, interval)


async def _look(settings: Settings) -> dict[str, Any]:
    """State and activity together. Raises Failure when no server runs."""
    from forebay.gateway.control import ControlFailed, call

    socket = settings.data_dir / desk.SOCKET
    try:
        status = await call(socket, "status")
        return {**status, **await call(socket, "activity")}
    except ControlFailed:
        start = desk.hint(settings, "up")
        said = [
            f"No server runs on {settings.data_dir}.",
            desk.elsewhere(settings),
            f"Start one with `{start}`.",
        ]
        raise Failure(" ".join(filter(None, said))) from None


def _watch(settings: Settings, interval_seconds: float) -> None:
    """On the whole screen; Ctrl-C is how it is meant to end."""
    import asyncio

    try:
        asyncio.run(_watch_forever(settings, interval_seconds))
    except KeyboardInterrupt:
        return


async def _watch_forever(settings: Settings, interval_seconds: float) -> None:
    import asyncio

    from rich.live import Live

    from forebay.cli import top_view

    look = await _look(settings)  # before the screen is taken: a refusal is to be read
    console = top_view.console()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(top_view.render(look, lines=console.size.height), refresh=True)
            await asyncio.sleep(interval_seconds)
            look = await _look(settings)
