"""GET /v1/models and /v1/models/{id}: what this key may use.

Not here: which models those are (`forebay.catalog`).
"""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from forebay.catalog.contract import ModelCard
from forebay.core.errors import ModelNotFound
from forebay.gateway.meter import enter
from forebay.gateway.respond import Responder
from forebay.gateway.schema import ModelList, WireModel
from forebay.gateway.services import Services

_NAMES_SHOWN, _NAME_CHARACTERS = 10, 100


class ListModels:
    """All of them."""

    def __init__(self, services: Services, responder: Responder) -> None:
        self._services = services
        self._responder = responder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        principal = await enter(scope, self._services)
        cards = self._services.catalog.models(principal)
        await self._responder.json(scope, send, ModelList(data=[_wire(card) for card in cards]))


class GetModel:
    """One, by id or alias; the id may contain slashes."""

    def __init__(self, services: Services, responder: Responder) -> None:
        self._services = services
        self._responder = responder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        principal = await enter(scope, self._services)
        name = scope["path_params"]["id"]
        cards = self._services.catalog.models(principal)
        for card in cards:
            if name == card.id or name in card.aliases:
                await self._responder.json(scope, send, _wire(card))
                return
        names = [known for card in cards for known in (card.id, *card.aliases)]
        shown = names[:_NAMES_SHOWN] + ["…"] * (len(names) > _NAMES_SHOWN)
        known = ", ".join(shown) or "none"
        raise ModelNotFound(
            f"There is no model {name[:_NAME_CHARACTERS]!r}, or this key may not use it. "
            f"Models that it may use: {known}."
        )


def _wire(card: ModelCard) -> WireModel:
    return WireModel(
        id=card.id,
        created=card.created_at,
        owned_by=card.owned_by,
        max_model_len=card.context_tokens,
        max_output_tokens=card.max_output_tokens,
        aliases=card.aliases,
    )
