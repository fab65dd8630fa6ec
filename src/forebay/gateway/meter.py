"""Every request with a key is metered, and every answer to it says what is left of the limits.

Who calls is noted in the request's scope as soon as it is known, and the model once it is read; from
these `Responder` makes the headers of whatever is answered, an error or the head of a stream as well.
A dimension without a limit has no headers: there is no number that would be true.

Not here: the limits themselves (`forebay.admission`), sending (`respond.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from starlette.types import Scope

from forebay.admission import Standing
from forebay.core.errors import InvalidRequest
from forebay.core.principal import Principal
from forebay.gateway.auth import bearer
from forebay.gateway.services import Services

# What is left for this key, and for this model where one is named.
StandingOf = Callable[[Principal, str | None], Standing]

QUEUE_DEADLINE = "X-Forebay-Queue-Deadline"
_PRINCIPAL = "forebay.principal"
_MODEL = "forebay.model"
_SECONDS = re.compile(rb"[0-9]{1,9}(\.[0-9]{1,9})?")


async def enter(scope: Scope, services: Services) -> Principal:
    """① who is calling, ② one of its calls taken. The first thing that a route with a key does."""
    principal = await services.tenancy.authenticate(bearer(scope["headers"]))
    scope[_PRINCIPAL] = principal
    await services.pipeline.knock(principal)
    return principal


def note_model(scope: Scope, name: str) -> None:
    """Its limits count, too, from here on."""
    scope[_MODEL] = name


def limit_headers(scope: Scope, standing_of: StandingOf) -> list[tuple[bytes, bytes]]:
    """`x-ratelimit-…` of a request that has entered; nothing for others."""
    principal = scope.get(_PRINCIPAL)
    if principal is None:
        return []
    standing = standing_of(principal, scope.get(_MODEL))
    headers = []
    for name, allowance in ((b"requests", standing.requests), (b"tokens", standing.tokens)):
        if allowance is not None:
            headers += [
                (b"x-ratelimit-limit-" + name, b"%d" % allowance.limit),
                (b"x-ratelimit-remaining-" + name, b"%d" % allowance.remaining),
                (b"x-ratelimit-reset-" + name, duration(allowance.reset_seconds).encode()),
            ]
    return headers


def duration(seconds: float) -> str:
    """As OpenAI writes it: 120ms, 1s, 8.64s, 6m0s, 1h0m0s. Never less than it is."""
    milliseconds = -int(-seconds * 1000 // 1)
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{milliseconds / 1000:g}s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    return f"{hours}h{text}" if hours else text


def queue_deadline_seconds(headers: Iterable[tuple[bytes, bytes]]) -> float | None:
    """The longest that the client would have its call wait for an engine. Raises InvalidRequest."""
    found = [value.strip() for name, value in headers if name == QUEUE_DEADLINE.lower().encode()]
    if not found:
        return None
    if len(found) == 1 and _SECONDS.fullmatch(found[0]) and float(found[0]) > 0:
        return float(found[0])
    raise InvalidRequest(
        f"The header {QUEUE_DEADLINE} is {b', '.join(found).decode('latin-1')[:40]!r}, but must be "
        "one number of seconds above 0, like 2.5. It can lower the time that the lane allows a call "
        "to wait, never raise it.",
        param=QUEUE_DEADLINE,
    )
