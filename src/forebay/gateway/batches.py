"""/v1/batches…: many calls in one file, answered in another, in the shape of OpenAI's Batch API.

Whoever asks sees the batches of its organisation, nothing else. A batch that is asked for is answered at
once, before its file was looked at: what is wrong with that is told by the batch.

Not here: what becomes of a batch (`forebay.pipeline`), bodies (`batch_request.py`), answers
(`batch_schema.py`), lines (`batch_lines.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from forebay.batch import Listing
from forebay.core.batch import Batch
from forebay.core.errors import BatchConflict, IdempotencyKeyReused
from forebay.core.principal import Principal
from forebay.gateway.admin_read import read_query
from forebay.gateway.admin_schema import Page
from forebay.gateway.answer import ignored_header
from forebay.gateway.batch_request import KEY_FIELD, BatchRequest, parse_batch
from forebay.gateway.batch_schema import BatchesQuery, WireBatch, wire_batch
from forebay.gateway.body import ClientGone, decode_object, read_body
from forebay.gateway.errors import Headers
from forebay.gateway.idempotency import KEY_PARAM
from forebay.gateway.meter import enter
from forebay.gateway.request import asks_to_be_strict, require_nothing_ignored
from forebay.gateway.respond import Responder
from forebay.gateway.services import GatewaySettings, Services
from forebay.pipeline.batches import BatchDesk

_BATCHES = "/v1/batches"
_BATCH = "/v1/batches/{id}"
_CANCEL = "/v1/batches/{id}/cancel"
_EXAMPLE = '{"input_file_id": …, "endpoint": …, "completion_window": "24h"}'


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: on whose behalf, for which batch if for one, and its query."""

    principal: Principal
    batches: BatchDesk
    id: str
    query: bytes


Do = Callable[[Asked], Awaitable[object]]


class BatchEndpoint:
    """Serves one operation that has no body."""

    def __init__(self, do: Do, services: Services, responder: Responder) -> None:
        self._do = do
        self._services = services
        self._responder = responder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        principal = await enter(scope, self._services)
        id_ = scope["path_params"].get("id", "")
        asked = Asked(principal, self._services.batches, id_, scope["query_string"])
        await self._responder.json(scope, send, await self._do(asked))


class CreateBatch:
    """Begins one, or finds the one that its key has begun."""

    def __init__(self, services: Services, settings: GatewaySettings, responder: Responder) -> None:
        self._services = services
        self._settings = settings
        self._responder = responder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services = self._services
        principal = await enter(scope, services)
        try:
            sent = await read_body(scope, receive, self._settings)
        except ClientGone:
            return
        windows = services.batches.settings.completion_windows
        body = decode_object(sent, _EXAMPLE)
        request = parse_batch(body, scope["headers"], scope["path"], windows)
        headers: Headers = []
        if asks_to_be_strict(scope["headers"]):
            require_nothing_ignored(request)
        if request.ignored:
            services.metrics.unknown_fields.inc(len(request.ignored))
            headers.append((b"x-forebay-ignored", ignored_header(request.ignored)))
        batch = await self._create(principal, request)
        await self._responder.json(scope, send, wire_batch(batch), headers=headers)

    async def _create(self, principal: Principal, request: BatchRequest) -> Batch:
        try:
            return await self._services.batches.create(principal, request.order)
        except IdempotencyKeyReused as reused:
            if request.keyed_by == KEY_FIELD:
                raise BatchConflict(reused.message, param=KEY_FIELD) from None
            raise IdempotencyKeyReused(reused.message, param=KEY_PARAM) from None


def batch_endpoints(
    services: Services, settings: GatewaySettings, responder: Responder
) -> Iterator[tuple[str, dict[str, ASGIApp]]]:
    """Each path with its endpoints by method."""

    def answered(do: Do) -> BatchEndpoint:
        return BatchEndpoint(do, services, responder)

    yield _BATCHES, {"get": answered(_list), "post": CreateBatch(services, settings, responder)}
    yield _BATCH, {"get": answered(_retrieve)}
    yield _CANCEL, {"post": answered(_cancel)}


async def _list(asked: Asked) -> Page[WireBatch]:
    query = read_query(asked.query, BatchesQuery)
    listing = Listing(query.limit + 1, query.after or None)
    found = await asked.batches.page(asked.principal, listing)
    shown = found[: query.limit]
    return Page(
        data=[wire_batch(batch) for batch in shown],
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
        has_more=len(found) > query.limit,
    )


async def _retrieve(asked: Asked) -> WireBatch:
    return wire_batch(await asked.batches.find(asked.principal, asked.id))


async def _cancel(asked: Asked) -> WireBatch:
    return wire_batch(await asked.batches.cancel(asked.principal, asked.id))
