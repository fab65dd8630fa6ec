"""Endpoints of OpenAI's that nothing serves here: that is said, with what to do, not hidden behind a 404."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import Receive, Scope, Send

from forebay.core.errors import InvalidRequest
from forebay.gateway.meter import enter
from forebay.gateway.services import Services

# By path: what is missing and what is there instead, and the parameter that this is about.
UNSERVED: Mapping[str, tuple[str, str | None]] = {
    "/v1/embeddings": (
        "There is no embedding pool: the models of this server generate text "
        "(POST /v1/chat/completions, POST /v1/completions). Use another server for embeddings.",
        "model",
    ),
    "/v1/responses/compact": (
        "Compaction is not built yet. Go on with previous_response_id or conversation instead: the "
        "oldest turns of a past that does not fit the model's context are left out.",
        None,
    ),
}


class Unserved:
    """Refuses one of these to whoever may call at all."""

    def __init__(self, path: str, services: Services) -> None:
        self._message, self._param = UNSERVED[path]
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await enter(scope, self._services)
        raise InvalidRequest(self._message, param=self._param, code="unsupported_endpoint")
