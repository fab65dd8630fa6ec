"""Webhooks over HTTP: the one file that calls an address that somebody else named.

So it trusts nothing there: one POST on a connection of its own, at most 10 s in all, no redirect is
followed, no cookie kept, no proxy of the environment asked, and no byte of a body read: the status
is all that counts. What is reported of a failure is its kind, never the address (its path may be
a secret).
"""

from __future__ import annotations

from collections.abc import Mapping

import aiohttp

from forebay import __version__
from forebay.alerts.contract import Courier, Reply

TIMEOUT_SECONDS = 10.0


class HttpCourier(Courier):
    """One per process, made inside its event loop."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS),
            headers={"user-agent": f"forebay/{__version__}"},
            auto_decompress=False,
        )

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Reply:
        try:
            response = await self._session.post(
                url, data=body, headers=headers, allow_redirects=False
            )
            response.close()
        except TimeoutError:
            return Reply(None, f"no answer within {TIMEOUT_SECONDS:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as fault:
            return Reply(None, type(fault).__name__)
        return Reply(response.status)

    async def close(self) -> None:
        await self._session.close()
