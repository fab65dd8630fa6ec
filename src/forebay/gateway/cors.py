"""Which other web sites' scripts may read our answers: CORS, off unless origins are named.

A browser asks first (a preflight: OPTIONS with the method and headers that it means to send),
without the key, so that question is answered before anybody looks at keys. Every answer then says
again which origin may read it. Nobody may send cookies with it: there are none.

- An origin that is not named gets no CORS header at all; its request is answered as ever.
- What is reflected is bounded, and made of names of headers alone.
- A preflight of a path that does not exist is granted: only so can the script read its 404.

Not here: OPTIONS that is no preflight (`app.py`), who may call (keys, for whatever origin).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

ANY = "*"
# What scripts may read besides the few that browsers always show.
EXPOSED = (
    "x-request-id",
    "retry-after",
    "retry-after-ms",
    "x-should-retry",
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-tokens",
    "x-forebay-model",
    "x-forebay-ignored",
    "x-forebay-cost-usd",
    "x-forebay-window",
    "x-forebay-conversation",
    "x-forebay-conversation-renewed",
    "idempotency-hit",
)
# Chromium believes no answer for longer; within it, each path costs one preflight a browser.
MAX_AGE_SECONDS = 7200
# OpenAI's SDK asks for about 15 headers; 300 bytes.
MAX_REFLECTED_BYTES = 4096

Headers = list[tuple[bytes, bytes]]

_METHOD, _NAMES = b"access-control-request-method", b"access-control-request-headers"
_HEADER_NAME = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
# As browsers write it: no path, lower case, no port where it is the scheme's own.
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")
_OWN_PORTS = {"http": ":80", "https": ":443"}


def check_origins(origins: Sequence[str]) -> None:
    """Raises ValueError, naming the origin that no browser would send."""
    for origin in origins:
        if origin == ANY:
            if len(origins) > 1:
                raise ValueError(f"{ANY!r} means every origin and stands alone")
            continue
        match = _ORIGIN.fullmatch(origin)
        if match is None:
            raise ValueError(
                f"{origin!r:.100} is no origin; write scheme://host[:port] in lower case, without "
                f"a path, as https://app.example.org, or {ANY!r} alone for every origin"
            )
        if match[3] and match[3] == _OWN_PORTS.get(match[1]):
            raise ValueError(f"{origin!r} matches nothing: browsers leave {match[3]} out")


class Cors:
    """The policy of an application. Pure: headers in, headers out."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._any = ANY in origins
        self._origins = frozenset(origin.encode() for origin in origins)
        self._exposed = (b"access-control-expose-headers", ", ".join(EXPOSED).encode())

    def preflight(self, headers: Headers, methods: Sequence[str]) -> Headers | None:
        """What an OPTIONS is granted beside `answer`; None if it is no preflight that we grant."""
        if self._allowed(headers) is None or not any(name == _METHOD for name, _ in headers):
            return None
        granted = [
            (b"access-control-allow-methods", ", ".join(methods).encode()),
            (b"access-control-max-age", b"%d" % MAX_AGE_SECONDS),
        ]
        if names := _reflected(headers):
            granted.append((b"access-control-allow-headers", names))
        return granted

    def answer(self, headers: Headers) -> Headers:
        """What every answer to a request with these headers says."""
        # Caches must know that it depends on the origin, also where this one is not allowed.
        said = [] if self._any else [(b"vary", b"origin")]
        allowed = self._allowed(headers)
        if allowed is not None:
            said += [(b"access-control-allow-origin", allowed), self._exposed]
        return said

    def _allowed(self, headers: Headers) -> bytes | None:
        for name, value in headers:
            if name == b"origin":
                if self._any:
                    return ANY.encode()
                return value if value in self._origins else None
        return None


def _reflected(headers: Headers) -> bytes:
    """The headers that the script means to send, as far as they are names."""
    asked = b",".join(value for name, value in headers if name == _NAMES)[:MAX_REFLECTED_BYTES]
    names = (name.strip() for name in asked.split(b","))
    return b", ".join(name for name in names if _HEADER_NAME.fullmatch(name))
