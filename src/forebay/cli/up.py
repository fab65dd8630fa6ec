"""`forebay up`: everything in one process, until Ctrl-C.

    starting ──ready──▶ serving ──1st signal──▶ finishing running answers ──2nd──▶ breaking them off
       └── a signal: give up, nothing is left                                 └──3rd──▶ dead at once

Standard output gets what to do next, once calls are accepted; all else goes to standard error.

Not here: what is started and stopped, in which order (`forebay.wiring`).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forebay.cli import desk
from forebay.cli.failure import IT_FAILED, WRONG_USE, Failure, explain
from forebay.cli.options import AsJson, Config, DataDir
from forebay.cli.progress import FetchProgress
from forebay.cli.screen import has_colours, print_json, say

if TYPE_CHECKING:
    import asyncio

    from forebay.catalog.download import Progress
    from forebay.config import Settings
    from forebay.wiring import Farewell, Ready, Stop

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_QUESTION = "What is the capital of France?"


def up(
    port: Annotated[
        int | None,
        typer.Option(
            "-p", "--port", metavar="PORT", help="Port of the API [8080]; 0 takes a free one."
        ),
    ] = None,
    admin_port: Annotated[
        int | None,
        typer.Option(metavar="PORT", help="Port of metrics and health [8081]; free with -p 0."),
    ] = None,
    host: Annotated[
        str | None, typer.Option(metavar="HOST", help="Address the API listens on [127.0.0.1].")
    ] = None,
    data_dir: DataDir = None,
    config: Config = None,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Serve this model; may be repeated."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Serve the API, with queue and engines.

    The first start prints an API key, once. Ctrl-C finishes running answers; a second one breaks
    them off.
    """
    if port == 0 and admin_port is None:
        admin_port = 0
    settings = desk.load(
        config, port=port, admin_port=admin_port, host=host, data_dir=data_dir, serve=model or None
    )
    terminal = Terminal(settings, as_json=as_json)
    try:
        farewell = _run(settings, terminal)
    except Exception as fault:
        failure = explain(fault)
        if failure is None:
            raise
        if settings.log_level == "debug":
            traceback.print_exc()
        # Whatever it was, before "ready" it means: it cannot start.
        raise Failure(str(failure), IT_FAILED if terminal.is_ready else WRONG_USE) from None
    if farewell is None:
        say("stopped before it was ready, bye")
        return
    broken_off = f"{farewell.broken_off} broken off, " if farewell.broken_off else ""
    left = f"{farewell.left} left to the next start, " if farewell.left else ""
    words = f"{farewell.finished} finished, {broken_off}{left}{farewell.open_holds} holds open, bye"
    print(words, file=sys.stderr, flush=True)


def _run(settings: Settings, terminal: Terminal) -> Farewell | None:
    import uvloop

    from forebay.observe.log import configure

    as_json = settings.log_format == "json"
    configure(settings.log_level, as_json=as_json, colours=has_colours())
    try:
        return uvloop.run(_serve(settings, terminal))
    finally:
        terminal.progress.close()


async def _serve(settings: Settings, terminal: Terminal) -> Farewell | None:
    """None if it was stopped before it was ready."""
    import asyncio

    from forebay.wiring import Stop, serve

    task = asyncio.current_task()
    assert task is not None
    stop = Stop(asyncio.Event(), asyncio.Event())
    presses = Presses(task, terminal, stop)
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, presses)
    try:
        return await serve(settings, watcher=terminal, stop=stop)
    except asyncio.CancelledError:
        if presses.count and not terminal.is_ready:
            return None
        raise
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


class Presses:
    """Counts Ctrl-C and SIGTERM, and does what each next one asks for."""

    def __init__(self, task: asyncio.Task[Any], terminal: Terminal, stop: Stop) -> None:
        self.count = 0
        self._task = task
        self._terminal = terminal
        self._stop = stop

    def __call__(self) -> None:
        self.count += 1
        if self.count > 1 + self._terminal.is_ready:
            # Whatever it waits for: engines end with this process, and the next start resolves
            # what is open.
            os._exit(1)
        if not self._terminal.is_ready:
            self._task.cancel()
        elif self.count == 1:
            say("finishing running answers; once more breaks them off")
            self._stop.graceful.set()
        else:
            self._stop.now.set()


class Terminal:
    """Shows how the start goes (`wiring.Watcher`)."""

    def __init__(self, settings: Settings, *, as_json: bool) -> None:
        self.is_ready = False
        self.progress = FetchProgress()
        self._settings = settings
        self._as_json = as_json

    def fetching(self, model: str, progress: Progress) -> None:
        self.progress(model, progress)

    def starting(self, model: str) -> None:
        self.progress.close()
        say(f"starting the engine of {model}")

    def ready(self, ready: Ready) -> None:
        self.is_ready = True
        if self._as_json:
            print_json(
                {
                    "base_url": f"{ready.base_url}/v1",
                    "admin_url": ready.admin_url,
                    "api_key": ready.api_key,
                    "models": list(ready.models),
                }
            )
        else:
            print(announcement(ready, self._settings), flush=True)


def announcement(ready: Ready, settings: Settings) -> str:
    """What to do now: for a person to read, and to copy from."""
    also = [alias for model in settings.models for alias in model.aliases]
    names = ", ".join(ready.models) + (f" (also called {', '.join(also)})" if also else "")
    key = (
        ["API key, shown once:", ready.api_key]
        if ready.api_key
        else [
            "API key: use the key from the first start (shown once), or make one: "
            + desk.hint(settings, "keys", "create"),
            "Then, for the command below: export FOREBAY_API_KEY=…",
        ]
    )
    return "\n".join(
        [
            f"Forebay is ready and serves {names}.",
            "",
            f"Base URL: {ready.base_url}/v1",
            *key,
            "",
            _curl(ready, "default" if "default" in also else ready.models[0]),
            "",
            f"Talk: {desk.hint(settings, 'chat')}",
            f"What it cost: {desk.hint(settings, 'usage')}",
            f"Metrics: {ready.admin_url}/metrics",
        ]
    )


def _curl(ready: Ready, model: str) -> str:
    """Three lines that run as they are; the key stands in double quotes to let a shell fill it in."""
    body = {
        "model": model,
        "stream": True,
        "messages": [{"role": "user", "content": _QUESTION}],
    }
    return (
        f"curl -N {ready.base_url}/v1/chat/completions \\\n"
        f'  -H "Authorization: Bearer {ready.api_key or "$FOREBAY_API_KEY"}"'
        ' -H "Content-Type: application/json" \\\n'
        f"  -d '{json.dumps(body, separators=(',', ':'))}'"
    )
