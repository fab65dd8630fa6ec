"""The catalogue as operators see it: plain rows, prices in USD per million tokens. Pure.

Not here: the API's model list (`static.py`, `forebay.gateway`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from forebay.catalog.settings import ModelSettings
from forebay.core.money import Price, format_usd


def describe(
    models: Sequence[ModelSettings],
    prices: Sequence[Price],
    is_here: Callable[[ModelSettings], bool],
) -> list[dict[str, Any]]:
    """One row a model. `is_here`: whether its weights are on this machine.

    `control_token_safe`: text can never become a control token (K2), as for every embedded engine.
    """
    return [
        {
            "id": model.id,
            "aliases": list(model.aliases),
            "engine": model.engine,
            "context_tokens": model.context_tokens,
            "max_output_tokens": model.max_output_tokens,
            "prefix_cache": model.prefix_cache,
            "control_token_safe": True,
            "fetched": is_here(model),
            "prices": {
                price.terms.lane.value: _price(price)
                for price in prices
                if price.terms.model == model.id
            },
        }
        for model in models
    ]


def _price(price: Price) -> dict[str, Any]:
    def per_million(nanos: int) -> str:
        return format_usd(nanos * 1_000_000)

    return {
        "version": price.version,
        "input_usd_per_million": per_million(price.terms.input_nanos),
        "cached_input_usd_per_million": per_million(price.terms.cached_input_nanos),
        "output_usd_per_million": per_million(price.terms.output_nanos),
    }
