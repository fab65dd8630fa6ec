"""`forebay models list | pull`: the catalogue, and its weights on this machine.

Not here: which models there are (`forebay.catalog`, and the configuration).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forebay.cli import desk
from forebay.cli.failure import WRONG_USE, Failure
from forebay.cli.options import AsJson, Config, DataDir
from forebay.cli.progress import FetchProgress
from forebay.cli.screen import print_json, print_table

if TYPE_CHECKING:
    from forebay.catalog import ModelSettings
    from forebay.config import Settings

_HEADINGS = (
    "model", "~also called", "engine", ">context", ">most output", "fetched", ">USD/M in",
    ">cached", ">out",
)  # fmt: skip


def build() -> typer.Typer:
    """The group."""
    group = typer.Typer(
        help="The catalogue, and its weights on this machine.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    group.command("list")(list_models)
    group.command("pull")(pull)
    return group


def list_models(data_dir: DataDir = None, config: Config = None, as_json: AsJson = False) -> None:
    """The models with their prices.

    In USD per million tokens, of the interactive lane; --json has every lane.
    """
    settings = desk.load(config, data_dir=data_dir)
    rows = desk.run(settings, _models(settings))
    if as_json:
        print_json(rows)
    else:
        print_table(_HEADINGS, map(_cells, rows))


def pull(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help="Models; if none, all.")
    ] = None,
    data_dir: DataDir = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Fetch weights and check them.

    What is here already is not fetched again.
    """
    # Named models may be any that are configured, not only those that are served.
    settings = desk.load(config, data_dir=data_dir, serve=() if names else None)
    models = _chosen(settings, names) if names else settings.models
    fetched = desk.run(settings, _pull(settings, models))
    if as_json:
        print_json(fetched)
        return
    for each in fetched:
        print(f"{each['id']}: {each['path'] or 'needs no weights'}")


async def _models(settings: Settings) -> list[dict[str, Any]]:
    """As the server that runs has them, else as the configuration does (unpublished prices)."""
    from forebay.catalog import price_terms
    from forebay.core.money import Price
    from forebay.gateway.control import ControlFailed, call
    from forebay.wiring import describe_models

    try:
        answer: list[dict[str, Any]] = await call(settings.data_dir / desk.SOCKET, "models")
        return answer
    except ControlFailed:
        terms = [t for m in settings.models for t in price_terms(m, settings.lane_factors)]
    rows = describe_models(settings, [Price(0, each) for each in terms])
    for row in rows:
        for price in row["prices"].values():
            price["version"] = None
    return rows


def _chosen(settings: Settings, names: Sequence[str]) -> list[ModelSettings]:
    """The models of these names, each once. Raises Failure naming those that there are."""
    from forebay.catalog import BUILT_IN

    known = {name: model for model in settings.models for name in model.names()}
    all_names = {name: model for model in BUILT_IN for name in model.names()} | known
    for name in names:
        if name not in all_names:
            raise Failure(
                f"There is no model {name!r}; there are: {', '.join(sorted(known))}.", WRONG_USE
            )
    return list(dict.fromkeys(all_names[name] for name in names))


async def _pull(settings: Settings, models: Sequence[ModelSettings]) -> list[dict[str, Any]]:
    progress = FetchProgress()
    try:
        return [await _fetch(settings, model, progress) for model in models]
    finally:
        progress.close()


async def _fetch(
    settings: Settings, model: ModelSettings, progress: FetchProgress
) -> dict[str, Any]:
    from functools import partial

    from forebay.catalog.fetch import fetch
    from forebay.wiring import fetch_settings

    if model.source is None:
        return {"id": model.id, "path": None}
    weights = await fetch(model.source, fetch_settings(settings), partial(progress, model.id))
    return {"id": model.id, "path": str(weights.path)}


def _cells(row: dict[str, Any]) -> list[object]:
    price = row["prices"]["interactive"]
    return [
        row["id"],
        ", ".join(row["aliases"]),
        row["engine"],
        row["context_tokens"],
        row["max_output_tokens"],
        "yes" if row["fetched"] else "no",
        price["input_usd_per_million"],
        price["cached_input_usd_per_million"],
        price["output_usd_per_million"],
    ]
