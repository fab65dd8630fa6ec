"""`forebay demo fairness`: what the fair queue is worth, measured on this machine.

A greedy project keeps a deep backlog of calls, a polite one asks again a second after each answer:
first in the order of arrival, then in the fair one. Both halves are the real server with the same
settings but `queue.order`, and real HTTP calls.

Not here: a half (`demo_phase.py`), its clients (`demo_clients.py`), how it looks (`demo_view.py`).
"""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from forebay.cli import desk
from forebay.cli.failure import WRONG_USE, Failure
from forebay.cli.options import AsJson, DataDir
from forebay.cli.screen import print_json, say

if TYPE_CHECKING:
    from forebay.cli.demo_clients import Habits
    from forebay.cli.demo_phase import Look, Show
    from forebay.config import Settings

ORDERS: tuple[Literal["arrival", "fair"], ...] = ("arrival", "fair")
GREEDY, POLITE = "greedy", "polite"
GREEDY_CLIENTS = 96
GREEDY_TOKENS = (12, 36)
POLITE_TOKENS = 16
POLITE_PAUSE_SECONDS = 1.0
# Room for the whole backlog: a call that is refused does not wait.
FLOW_JOBS = 1024


def build() -> typer.Typer:
    """The group."""
    group = typer.Typer(
        help="See what Forebay does, on a private server.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    group.command("fairness")(fairness)
    return group


def fairness(
    seconds: Annotated[
        float, typer.Option(min=1.0, metavar="SECONDS", help="Length of each half.")
    ] = 20.0,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Model to use; if not given, the first.")
    ] = None,
    save_svg: Annotated[
        Path | None,
        typer.Option(metavar="FILE", dir_okay=False, help="Save the result as a picture."),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """See what the fair queue is worth.

    A greedy project floods a private server while a polite one has one call at a time: first in
    the order of arrival, then in the fair one. Without --data-dir nothing is left behind.
    """
    if save_svg is not None and not save_svg.absolute().parent.is_dir():
        raise Failure(f"There is no directory {save_svg.parent} to save the picture in.", WRONG_USE)
    with _ended_cleanly(), _directory(data_dir) as directory:
        settings = _settings(model, directory)
        looks = _both(settings, seconds, is_live=sys.stdout.isatty() and not as_json)
    ratio = sooner(looks)
    if as_json:
        print_json(report(settings, looks, ratio))
    _show(settings, looks, ratio, print_it=not as_json, save_svg=save_svg)


@contextlib.contextmanager
def _ended_cleanly() -> Iterator[None]:
    """SIGTERM does what Ctrl-C does: everything is taken down in order."""
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    except KeyboardInterrupt:
        raise Failure("interrupted; the demo's server is stopped") from None


@contextlib.contextmanager
def _directory(chosen: Path | None) -> Iterator[Path]:
    """One that goes when the demo ends, or one of the user's that has nothing in it."""
    if chosen is None:
        with tempfile.TemporaryDirectory(prefix="forebay-demo-") as name:
            yield Path(name)
        return
    if chosen.exists() and any(chosen.iterdir()):
        raise Failure(f"{chosen} is not empty; name a directory of the demo's own.", WRONG_USE)
    yield chosen.absolute()


def _settings(model: str | None, directory: Path) -> Settings:
    """The user's, with one model, free ports, no deadlines and room for the backlog."""
    from forebay.admission import AdmissionSettings

    settings = desk.load(
        None, serve=[model] if model else None, data_dir=directory, port=0, admin_port=0
    )
    return replace(
        settings,
        models=settings.models[:1],
        host="127.0.0.1",
        admin_host="127.0.0.1",
        admission=AdmissionSettings(None, None, None),
        queue=replace(settings.queue, flow_jobs=FLOW_JOBS, lane_jobs=2 * FLOW_JOBS),
    )


def habits() -> tuple[Habits, Habits]:
    """Who calls how."""
    from forebay.cli.demo_clients import Habits

    return (
        Habits(GREEDY, GREEDY_CLIENTS, *GREEDY_TOKENS, pause_seconds=0),
        Habits(POLITE, 1, POLITE_TOKENS, POLITE_TOKENS, pause_seconds=POLITE_PAUSE_SECONDS),
    )


def _both(settings: Settings, seconds: float, *, is_live: bool) -> list[Look]:
    """In the order of arrival first."""
    say(configured(settings))
    looks = []
    for order in ORDERS:
        half = replace(
            settings,
            data_dir=settings.data_dir / order,
            queue=replace(settings.queue, order=order),
        )
        with _screen(order, seconds, is_live=is_live) as show:
            looks.append(_run(half, seconds, show))
    return looks


def _run(half: Settings, seconds: float, show: Show) -> Look:
    """As a server runs: on an event loop of its own, whose end ends all that it left behind."""
    import uvloop

    from forebay.cli.demo_phase import phase

    return uvloop.run(phase(half, habits(), seconds=seconds, show=show))


@contextlib.contextmanager
def _screen(order: str, seconds: float, *, is_live: bool) -> Iterator[Show]:
    """Panels on a terminal, else one line."""
    from rich.live import Live

    from forebay.cli import demo_view

    if not is_live:
        say(f"{demo_view.ORDERS[order]}, {seconds:g} s")
        yield lambda look: None
        return
    with Live(console=demo_view.console(), auto_refresh=False) as live:
        yield lambda look: live.update(demo_view.panels(look), refresh=True)


def sooner(looks: list[Look]) -> float | None:
    """The polite project's median wait for a first token, without over with fairness."""
    without, fair = (look.projects[POLITE].ttft_p50_ms for look in looks)
    return None if without is None or fair is None else without / max(fair, 1)


def configured(settings: Settings) -> str:
    """What the numbers were measured with."""
    model, (greedy, polite) = settings.models[0], habits()
    return (
        f"{model.id}, {model.max_sequences} sequences at once; greedy: {greedy.clients} clients, "
        f"{greedy.least_tokens} to {greedy.most_tokens} tokens a call; polite: one call at a time, "
        f"{polite.most_tokens} tokens, {polite.pause_seconds:g} s apart. No deadlines; up to "
        f"{settings.queue.flow_jobs} calls of a project may wait."
    )


def report(settings: Settings, looks: list[Look], ratio: float | None) -> dict[str, Any]:
    """The line of --json."""
    model = settings.models[0]
    return {
        "model": model.id,
        "max_sequences": model.max_sequences,
        "flow_jobs": settings.queue.flow_jobs,
        "habits": [asdict(each) for each in habits()],
        "phases": [asdict(look) for look in looks],
        "polite_ttft_p50_ratio": ratio,
    }


def _show(
    settings: Settings,
    looks: list[Look],
    ratio: float | None,
    *,
    print_it: bool,
    save_svg: Path | None,
) -> None:
    from forebay.cli import demo_view

    frame = demo_view.summary(looks, configured(settings), ratio)
    if print_it:
        demo_view.console().print(frame)
    if save_svg is not None:
        demo_view.save_svg(save_svg, frame, "forebay demo fairness")
