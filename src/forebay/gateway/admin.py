"""The admin API: /v1/organization/… on the admin listener, in OpenAI's shapes.

An operation is a row: method, path, what it takes, what it answers, and a function. Whoever asks
presents an admin key (`fba_live_…`) and sees the organisation of that key, nothing else: an id of
another organisation's is answered as one that does not exist, by every operation, because the
functions below look ids up among what the key may see.

Not here: what the operations do (`forebay.pipeline`), their rows (`admin_projects.py` and others).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.types import Receive, Scope, Send

from forebay.gateway.admin_read import names, read_object, read_query
from forebay.gateway.admin_schema import Body
from forebay.gateway.auth import bearer
from forebay.gateway.body import ClientGone, decode_object, read_body
from forebay.gateway.respond import Responder
from forebay.gateway.services import GatewaySettings
from forebay.pipeline.administration import Administration


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: on whose behalf, the ids in its path, what its body and its query say."""

    administration: Administration
    path: Mapping[str, str]
    body: Any
    query: Any

    @property
    def project_id(self) -> str | None:
        return self.path.get("project_id")


@dataclass(frozen=True, slots=True)
class Operation:
    """A row of the route table."""

    method: str
    path: str
    summary: str
    answer: Any
    do: Callable[[Asked], Awaitable[Any]]
    body: type[Body] = Body
    query: type[Body] = Body


class Endpoint:
    """Serves one operation."""

    def __init__(
        self,
        operation: Operation,
        administration: Administration,
        settings: GatewaySettings,
        responder: Responder,
    ) -> None:
        self._operation = operation
        self._administration = administration
        self._settings = settings
        self._responder = responder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        operation = self._operation
        secret = bearer(scope["headers"], example="fba_live_…")
        administration = await self._administration.by(secret)
        query = read_query(scope["query_string"], operation.query)
        try:
            body = await self._body(scope, receive)
        except ClientGone:
            return
        asked = Asked(administration, scope["path_params"], body, query)
        await self._responder.json(scope, send, await operation.do(asked))

    async def _body(self, scope: Scope, receive: Receive) -> Body:
        operation = self._operation
        if operation.method != "POST":
            return Body()
        raw = await read_body(scope, receive, self._settings)
        if not raw.strip() and operation.body is Body:
            return Body()
        example = f'{{"{next(iter(names(operation.body)), "name")}": …}}'
        return read_object(decode_object(raw, example), operation.body)


def seconds(at: float | None) -> int | None:
    """Whole Unix seconds."""
    return None if at is None else int(at)
