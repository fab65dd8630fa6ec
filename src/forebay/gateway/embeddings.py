"""POST /v1/embeddings: no pool here makes embeddings, and that is said, not hidden behind a 404."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from forebay.core.errors import InvalidRequest
from forebay.gateway.meter import enter
from forebay.gateway.services import Services


class NoEmbeddings:
    """Answers who may call at all."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await enter(scope, self._services)
        raise InvalidRequest(
            "There is no embedding pool: the models of this server generate text "
            "(POST /v1/chat/completions, POST /v1/completions). Use another server for embeddings.",
            param="model",
            code="unsupported_endpoint",
        )
