"""The models that these tests know."""

from __future__ import annotations

from typing import Any

from forebay.catalog.contract import Catalog, ModelCard
from forebay.core.call import Capacity, Route
from forebay.core.job import Lane, Sampling
from forebay.core.money import Price
from forebay.core.principal import Principal


class FakeCatalog(Catalog):
    def __init__(self) -> None:
        self.cards = [
            ModelCard("org/model-a", ("small",), 1_700_000_000, "forebay", 8192, 2048),
            ModelCard("tiny-1", ("tiny",), 1_700_000_001, "forebay", 100, 20),
        ]

    def choose(self, principal: Any, model: str, lane: Lane, max_output_tokens: Any) -> Route:
        raise NotImplementedError

    def defaults(self, model: str) -> Sampling:
        return Sampling(temperature=0.2)

    def capacity(self, model: str) -> Capacity | None:
        raise NotImplementedError

    def price(self, version: int) -> Price:
        raise NotImplementedError

    def models(self, principal: Principal) -> list[ModelCard]:
        return self.cards
