"""Limits on the outside: their headers on every answer, and that no route forgets them."""

from __future__ import annotations

import asyncio
import re

import pytest
from starlette.routing import Route

from forebay.admission import Allowance, Standing
from forebay.core.errors import InvalidRequest, ModelNotFound, Overloaded, RateLimited
from forebay.gateway.app import Front, Methods, build_admin, build_public
from forebay.gateway.meter import duration, queue_deadline_seconds

STANDS = Standing(Allowance(60, 59, 1.0), Allowance(10_000, 9_000, 6.0))
SHOWN = {
    "x-ratelimit-limit-requests": "60",
    "x-ratelimit-remaining-requests": "59",
    "x-ratelimit-reset-requests": "1s",
    "x-ratelimit-limit-tokens": "10000",
    "x-ratelimit-remaining-tokens": "9000",
    "x-ratelimit-reset-tokens": "6s",
}


def shown(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.startswith("x-ratelimit-")}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.0001, "1ms"), (0.12, "120ms"), (0.9991, "1s"), (1, "1s"), (8.64, "8.64s"),
     (59.9999, "1m0s"), (60, "1m0s"), (360, "6m0s"), (62.5, "1m2.5s"), (3600, "1h0m0s"),
     (86_399.5, "23h59m59.5s"), (86_400, "24h0m0s")],
)  # fmt: skip
def test_rule_50_a_duration_is_written_as_openai_does_and_never_less_than_it_is(seconds, text):
    assert duration(seconds) == text


# -- every answer


async def test_rule_50_whole_answers_streams_and_lists_say_what_is_left(gateway):
    gateway.pipeline.stands = STANDS
    for answer in (
        await _scripted(gateway, gateway.chat),
        await _scripted(gateway, gateway.stream),
        await gateway.request("GET", "/v1/models"),
        await gateway.request("GET", "/v1/models/tiny"),
    ):
        assert (answer.status, shown(answer.headers)) == (200, SHOWN)
    assert gateway.pipeline.knocks == 4


async def _scripted(gateway, verb):
    gateway.script("Hi")
    return await verb()


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidRequest("no"), 400),
        (ModelNotFound("no"), 404),
        (RateLimited("no", retry_after_seconds=None), 429),
        (Overloaded("no", retry_after_seconds=2.0), 503),
        (RuntimeError("no"), 500),
    ],
)
@pytest.mark.parametrize("verb", ["chat", "stream"])
async def test_rule_50_errors_say_it_too(gateway, verb, error, status):
    gateway.pipeline.stands = STANDS
    gateway.script(error)
    answer = await getattr(gateway, verb)()
    assert (answer.status, shown(answer.headers)) == (status, SHOWN)


async def test_also_what_is_refused_at_the_door_and_before_its_body_is_read(gateway):
    gateway.pipeline.stands = STANDS
    gateway.pipeline.refusal = RateLimited("no", retry_after_seconds=1.25)
    answer = await gateway.chat()
    assert (answer.status, shown(answer.headers)) == (429, SHOWN)
    assert (answer.headers["retry-after"], answer.headers["retry-after-ms"]) == ("2", "1250")
    assert gateway.pipeline.weights == []
    gateway.pipeline.refusal = None
    answer = await gateway.request("POST", "/v1/chat/completions", body=b"{")
    assert (answer.status, shown(answer.headers)) == (400, SHOWN)


async def test_rule_50_a_dimension_without_a_limit_has_no_headers(gateway):
    gateway.pipeline.stands = Standing(tokens=STANDS.tokens)
    answer = await gateway.request("GET", "/v1/models")
    assert set(shown(answer.headers)) == {name for name in SHOWN if name.endswith("-tokens")}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/nowhere", "/livez", "/v1"])
async def test_who_has_not_shown_a_key_is_told_nothing(gateway, path):
    gateway.pipeline.stands = STANDS
    wrong = {"authorization": "Bearer wrong"}
    for method in ("GET", "POST", "OPTIONS"):
        assert shown((await gateway.request(method, path, headers=wrong)).headers) == {}
    assert gateway.pipeline.knocks == 0


async def test_the_model_that_was_asked_for_counts_once_it_is_known(gateway):
    gateway.script("Hi")
    await gateway.chat({"model": "tiny"})
    await gateway.request("POST", "/v1/chat/completions", body=b"{")
    assert gateway.pipeline.asked == ["tiny", None]


async def test_a_body_is_weighed_as_it_came_before_it_is_decoded(gateway):
    await gateway.request("POST", "/v1/chat/completions", body=[b"{{", b"{"])
    assert gateway.pipeline.weights == [3]


# -- every route


def _metered_routes() -> list[tuple[bool, str]]:
    return [(admin, path) for admin in (False, True) for path in _paths(admin)]


def _paths(admin: bool) -> list[str]:
    # Routes need no running services to be listed.
    from tests.unit.gateway.conftest import Gateway

    made: list[str] = []

    async def look() -> None:
        gateway = Gateway()
        app = (build_admin if admin else build_public)(gateway.services, gateway.settings)
        assert isinstance(app, Front)
        for route in app.routes:
            assert isinstance(route, Route)
            assert isinstance(route.endpoint, Methods)
            made.extend(f"{method} {route.path}" for method in route.endpoint.methods)

    asyncio.run(look())
    return made


@pytest.mark.parametrize(("admin", "route"), _metered_routes())
async def test_every_route_of_the_api_takes_a_calls_permit_or_refuses_the_key(
    gateway, admin, route
):
    """Below /v1/ a good key is either metered, and told so, or not let in at all. Elsewhere there
    are no keys: nobody's limits are spent or shown."""
    gateway.pipeline.stands = STANDS
    method, path = route.split(" ")
    path = re.sub(r"\{[^}]*\}", "tiny", path)
    answer = await gateway.request(method, path, body=b"{}", admin=admin)
    if not path.startswith("/v1/"):
        assert (gateway.pipeline.knocks, shown(answer.headers)) == (0, {})
    elif answer.status in (401, 403):
        assert gateway.pipeline.knocks == 0
    else:
        assert (gateway.pipeline.knocks, shown(answer.headers)) == (1, SHOWN)


def test_there_are_routes_to_walk():
    assert (False, "POST /v1/chat/completions") in _metered_routes()
    assert (True, "GET /metrics") in _metered_routes()


# -- X-Forebay-Queue-Deadline


@pytest.mark.parametrize(("value", "seconds"), [("2.5", 2.5), (" 10 ", 10.0), ("0.001", 0.001)])
async def test_a_client_may_say_how_long_its_call_may_wait(gateway, value, seconds):
    gateway.script("Hi")
    await gateway.chat(headers={"x-forebay-queue-deadline": value})
    assert gateway.call.queue_deadline_seconds == seconds


async def test_who_does_not_say_it_leaves_it_to_the_lane(gateway):
    gateway.script("Hi")
    await gateway.chat()
    assert gateway.call.queue_deadline_seconds is None


@pytest.mark.parametrize(
    "value", ["", "0", "0.0", "-1", "+1", "1s", "1e3", "nan", "inf", "1,5", ".5", "1.", "9" * 10]
)
async def test_a_deadline_that_is_no_time_above_zero_is_refused(gateway, value):
    answer = await gateway.chat(headers={"x-forebay-queue-deadline": value})
    assert (answer.status, answer.error["param"]) == (400, "X-Forebay-Queue-Deadline")
    assert f"{value!r}" in answer.error["message"]
    assert gateway.pipeline.calls == []


def test_two_deadlines_are_refused():
    header = (b"x-forebay-queue-deadline", b"1")
    with pytest.raises(InvalidRequest, match="'1, 1'"):
        queue_deadline_seconds([header, (b"host", b"x"), header])
