"""One HTTP/1.1 connection: uvicorn's httptools protocol, with limits and errors in our shape.

Added to uvicorn's:
- the head of a request is bounded in bytes, lines and time; 431 and 408, in our error shape;
- what cannot be parsed as HTTP gets 400 in our error shape and the connection is closed;
- a request body that nobody reads (its request was refused) is swallowed up to a bound, so that
  the client gets to see the refusal, and no further;
- the connection can be cut off (`forebay.abort` in the scope) when a client takes no bytes.

Not here: limits of bodies that are read (`body.py`), routes.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, ClassVar, cast

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from forebay.core.clock import IdSource
from forebay.gateway.chat import ABORT
from forebay.gateway.schema import ErrorAnswer, WireError
from forebay.gateway.services import GatewaySettings

# A refused upload may go on this far. Closing at once would reset the connection under a client
# that is still sending, and it would never read why.
MAX_UNREAD_BYTES = 16 * 1024 * 1024


class HeadRefused(Exception):
    """The head of the request is not acceptable; stops the parser."""


class Connection(HttpToolsProtocol):
    """Made by uvicorn, one per connection; `connection_class` binds settings and ids."""

    settings: ClassVar[GatewaySettings]
    ids: ClassVar[IdSource]

    _head_timer: asyncio.TimerHandle | None = None
    _head_begun = False
    _head_bytes = 0
    _unread_bytes = 0
    _refusal: tuple[int, str, str] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_begun = True
        self._head_bytes = self._unread_bytes = 0
        if self._head_timer is None:
            self._start_head_timer()
        cast(dict[str, Any], self.scope)[ABORT] = self.transport.abort

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        if len(self.headers) >= self.settings.max_headers:
            raise self._refuse(
                431, "request_head_too_large", f"More than {self.settings.max_headers} headers."
            )
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stop_head_timer()
        self._head_begun = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self.cycle.response_complete:
            self._unread_bytes += len(body)
            if self._unread_bytes > MAX_UNREAD_BYTES:
                self.transport.abort()
            return
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        """Refuse what the parser refused, or what made us stop it. The connection ends."""
        status, code, message = self._refusal or (400, "invalid_http", msg)
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering:
            # Bytes of an answer may be under way; anything written now would be read as part of it.
            self.transport.close()
            return
        self._stop_head_timer()
        self.transport.write(self._error_response(status, code, message))
        self.transport.close()

    def _count(self, size: int) -> None:
        self._head_bytes += size
        limit = self.settings.max_header_bytes
        if self._head_bytes > limit:
            raise self._refuse(
                431, "request_head_too_large", f"The request's head is larger than {limit} bytes."
            )

    def _refuse(self, status: int, code: str, message: str) -> HeadRefused:
        self._refusal = (status, code, message)
        return HeadRefused(message)

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(self.settings.header_seconds, self._head_late)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_late(self) -> None:
        self._head_timer = None
        if self._head_begun:
            seconds = f"{self.settings.header_seconds:g}"
            self._refusal = (
                408,
                "request_timeout",
                f"The request's head did not arrive within {seconds} s.",
            )
            self.send_400_response("")
        else:
            self.transport.close()

    def _error_response(self, status: int, code: str, message: str) -> bytes:
        id_ = self.ids.new("req")
        error = WireError(
            message=f"{message} (request id: {id_})",
            type="invalid_request_error",
            param=None,
            code=code,
        )
        body = msgspec.json.encode(ErrorAnswer(error))
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            f"x-request-id: {id_}\r\nconnection: close\r\n\r\n"
        )
        return head.encode() + body


def connection_class(settings: GatewaySettings, ids: IdSource) -> type[Connection]:
    """The protocol class for uvicorn, which makes instances of it with arguments of its own."""
    return type("Connection", (Connection,), {"settings": settings, "ids": ids})
