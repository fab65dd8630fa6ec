"""One HTTP request becomes one call, for every endpoint that takes what a model is to be asked.

Not here: what requests of one endpoint look like (a `Shape`), what becomes of the call (`answer.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from starlette.types import Receive, Scope

from forebay.core.call import Call, Idempotency
from forebay.core.principal import Principal
from forebay.gateway.body import decode_object, read_body
from forebay.gateway.idempotency import idempotency, is_keyed
from forebay.gateway.meter import enter, note_model, queue_deadline_seconds
from forebay.gateway.request import ApiRequest, asks_to_be_strict, require_nothing_ignored
from forebay.gateway.respond import request_id
from forebay.gateway.services import GatewaySettings, Services


class Reader(Protocol):
    """How one endpoint's requests are read."""

    def parse(self, body: Mapping[str, Any]) -> ApiRequest:
        """Check every field. Raises InvalidRequest, UnsupportedParameter."""


class Intake:
    """Of one endpoint. Any number of requests at once."""

    def __init__(self, reader: Reader, services: Services, settings: GatewaySettings) -> None:
        self._reader = reader
        self._services = services
        self._settings = settings

    async def read(self, scope: Scope, receive: Receive) -> tuple[ApiRequest, Call]:
        """Who calls, and for what. Raises ClientGone and every refusal that needs no queue."""
        services = self._services
        principal = await enter(scope, services)  # ① ②
        sent = await read_body(scope, receive, self._settings)
        if not is_keyed(scope["headers"]):  # it may be answered already: the pipeline knows
            await services.pipeline.weigh(principal, len(sent))
        body = decode_object(sent)
        request = self._reader.parse(body)
        note_model(scope, request.model)
        if asks_to_be_strict(scope["headers"]):
            require_nothing_ignored(request)
        if request.ignored:
            services.metrics.unknown_fields.inc(len(request.ignored))
        key = idempotency(scope["headers"], scope["path"], body)
        return request, self._call(scope, principal, request, key, len(sent))

    def _call(
        self,
        scope: Scope,
        principal: Principal,
        request: ApiRequest,
        key: Idempotency | None,
        body_bytes: int,
    ) -> Call:
        id_, continued = request_id(scope), request.continued
        return Call(
            id=id_,
            principal=principal,
            model=request.model,
            lane=request.lane,
            streamed=request.streamed and not request.background,
            messages=request.messages,
            prompt=request.prompt,
            max_output_tokens=request.max_output_tokens,
            choices=request.choices,
            sampling=request.sampling,
            remembrance=continued.remembrance(id_, self._services.ids.new) if continued else None,
            idempotency=key,
            queue_deadline_seconds=queue_deadline_seconds(scope["headers"]),
            body_bytes=body_bytes,
            background=request.background,
            logged=request.streamed and request.background,
        )
