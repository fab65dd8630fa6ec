"""The catalogue of one configuration: fixed for the life of the process.

Not here: publishing prices into the ledger; the versions in force are an argument.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from forebay.catalog import choose
from forebay.catalog.contract import Catalog, ModelCard
from forebay.catalog.settings import ModelSettings
from forebay.core.call import Capacity, Route
from forebay.core.job import Lane, Sampling
from forebay.core.money import Price
from forebay.core.principal import Principal


class StaticCatalog(Catalog):
    """Immutable, so any task or thread may ask."""

    def __init__(
        self,
        models: Sequence[ModelSettings],
        prices: Sequence[Price],
        *,
        engine_versions: Mapping[str, str] | None = None,
    ) -> None:
        """`prices` holds the price in force for every model and lane; a missing one is refused,
        because a call without a price could not be billed."""
        self._names = choose.index(models)
        self._models = sorted(models, key=lambda model: model.id)
        self._prices = {price.version: price for price in prices}
        self._versions = {(p.terms.model, p.terms.lane): p.version for p in prices}
        for model in models:
            for lane in Lane:
                if (model.id, lane) not in self._versions:
                    raise ValueError(f"models.{model.id}: no price for the {lane} lane")
        versions = engine_versions or {}
        self._fingerprints = {
            model.id: fingerprint(model, versions.get(model.engine, "")) for model in models
        }

    def choose(
        self, principal: Principal, model: str, lane: Lane, max_output_tokens: int | None
    ) -> Route:
        settings = choose.resolve(self._names, principal, model)
        choose.require_lane(principal, lane)
        ceiling_tokens, asked = choose.output_bound(settings, principal, max_output_tokens)
        return Route(
            model=settings.id,
            pool=settings.id,
            lane=lane,
            price_version=self._versions[settings.id, lane],
            context_tokens=settings.context_tokens,
            ceiling_tokens=ceiling_tokens,
            asked=asked,
            sampling=self.defaults(settings.id),
            fingerprint=self._fingerprints[settings.id],
            pool_kv_tokens=settings.kv_tokens,
            pool_sequences=settings.max_sequences,
            vocabulary=vocabulary(settings),
        )

    def price(self, version: int) -> Price:
        return self._prices[version]

    def defaults(self, model: str) -> Sampling:
        settings = self._names.get(model)
        if settings is None:
            return Sampling()
        return Sampling(temperature=settings.temperature, top_p=settings.top_p)

    def capacity(self, model: str) -> Capacity | None:
        for each in self._models:
            if each.id == model:
                tokens = min(each.context_tokens, each.kv_tokens)
                return Capacity(vocabulary(each), tokens, each.max_sequences)
        return None

    def models(self, principal: Principal) -> list[ModelCard]:
        return [_card(model) for model in self._models if choose.allowed(principal, model)]


def _card(model: ModelSettings) -> ModelCard:
    return ModelCard(
        id=model.id,
        aliases=model.aliases,
        created_at=model.created_at,
        owned_by="forebay",
        context_tokens=model.context_tokens,
        max_output_tokens=model.max_output_tokens,
    )


def vocabulary(model: ModelSettings) -> str:
    """Changes when the same token ids may mean something else: other weights, or another program."""
    facts = (model.engine, model.id, model.source)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:12]


def fingerprint(model: ModelSettings, engine_version: str) -> str:
    """Changes when the same seed may give another answer: engine, weights, template, batching."""
    facts = (
        model.engine,
        engine_version,
        model.id,
        model.source,
        model.context_tokens,
        model.max_batched_tokens,
        model.prefix_cache,
        model.chat_template,
    )
    return f"fp_{hashlib.sha256(repr(facts).encode()).hexdigest()[:12]}"
