"""Which models exist, where they run and what they cost.

The configuration is the truth; this room holds it at run time. `choose.py` is the pure decision,
`fetch.py` brings weights to this machine.

Not here: the rights of a key (they come with the principal), stored price versions
(`forebay.ledger`), the engines themselves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from forebay.core.call import Capacity, Route
from forebay.core.job import Lane, Sampling
from forebay.core.money import Price
from forebay.core.principal import Principal


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One model as the API lists it."""

    id: str
    aliases: tuple[str, ...]
    created_at: int
    owned_by: str
    context_tokens: int
    max_output_tokens: int


class Catalog(ABC):
    """Read by gateways and workers; no verb waits."""

    @abstractmethod
    def choose(
        self, principal: Principal, model: str, lane: Lane, max_output_tokens: int | None
    ) -> Route:
        """Resolve a name or alias to a route with M₀ and the price version in force.

        Raises ModelNotFound naming the nearest models this key may use (also for models it may
        not use: they look unknown), NotAllowed for a lane outside its plan.
        """

    @abstractmethod
    def price(self, version: int) -> Price:
        """The price of a route that was chosen."""

    @abstractmethod
    def defaults(self, model: str) -> Sampling:
        """How a call of this name or alias is sampled if it says nothing; of one that does not
        exist, anyhow."""

    @abstractmethod
    def capacity(self, model: str) -> Capacity | None:
        """Of the model of this id; None if there is none any more."""

    @abstractmethod
    def models(self, principal: Principal) -> list[ModelCard]:
        """The models this key may use, by id."""
