from __future__ import annotations

from forebay.admission import Standing
from forebay.core.errors import StoreUnavailable
from forebay.gateway.respond import REQUEST_ID, Responder, started
from forebay.observe.metrics import Metrics


async def test_a_response_is_marked_counted_and_has_its_id():
    metrics, sent = Metrics(), []
    scope = {REQUEST_ID: "req_1"}

    async def send(message):
        sent.append(message)

    responder = Responder(metrics, standing_of=lambda *_: Standing())
    assert not started(scope)
    await responder.error(scope, send, StoreUnavailable(), [(b"x-more", b"1")])
    assert started(scope)
    headers = dict(sent[0]["headers"])
    assert headers[b"x-request-id"] == b"req_1"
    assert headers[b"retry-after"] == b"1"
    assert headers[b"x-more"] == b"1"
    assert int(headers[b"content-length"]) == len(sent[1]["body"])
    counted = 'forebay_http_responses_total{route="none",status="503"} 1.0'
    assert counted in metrics.exposition().decode()
