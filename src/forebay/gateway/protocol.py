"""One HTTP/1.1 connection: uvicorn's httptools protocol, with limits and errors in our shape.

Added to uvicorn's:
- the head of a request is bounded in bytes, lines and time; 431 and 408, in our error shape;
- HTTP/1.1 needs one Host that is a host; nobody here reads it, but others on the way do;
- what cannot be parsed as HTTP gets 400 in our error shape and the connection is closed;
- an Upgrade is ignored: what follows the head is the body that the head declares, never a request;
- a request body that nobody reads (its request was refused) is swallowed up to a bound, so that
  the client gets to see the refusal, and no further;
- a client that takes no byte of what waits for it, for `slow_client_seconds`, is cut off, whatever
  the answer is and also while the connection closes; its request sees the client leave;
- whoever answers learns that the client has left although more of its requests wait behind;
- connections are counted (`connections.py`): one too many is refused before it has said anything;
- an idle connection has `idle_seconds` from the end of its last answer until its next request
  begins, whatever else it sends.

Not here: limits of bodies that are read (`body.py`), routes.
"""

from __future__ import annotations

import asyncio
import re
from http import HTTPStatus
from typing import ClassVar

import httptools
import msgspec
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from forebay.core.clock import IdSource
from forebay.gateway.connections import Connections
from forebay.gateway.errors import doc_url
from forebay.gateway.peers import UNKNOWN, Peers, counted
from forebay.gateway.schema import ErrorAnswer, WireError
from forebay.gateway.services import GatewaySettings

# A refused upload may go on this far. Closing at once would reset the connection under a client
# that is still sending, and it would never read why.
MAX_UNREAD_BYTES = 16 * 1024 * 1024
# A name, an IPv4 address or an IPv6 one in brackets, and a port.
_HOST = re.compile(rb"([A-Za-z0-9._~%!$&'()*+,;=-]*|\[[0-9A-Za-z:.%]+\])(:[0-9]*)?")
# Of answers that say when to come back; all others are the client's fault alone.
_TYPES = {429: "rate_limit_exceeded", 503: "server_error"}


class HeadRefused(Exception):
    """The head of the request is not acceptable; stops the parser."""


class Connection(HttpToolsProtocol):
    """Made by uvicorn, one per connection; `connection_class` binds settings and ids."""

    settings: ClassVar[GatewaySettings]
    ids: ClassVar[IdSource]
    everyone: ClassVar[Connections]
    peers: ClassVar[Peers]

    _head_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None
    _head_begun = False
    _in_body = False
    _head_bytes = 0
    _unread_bytes = 0
    _refusal: tuple[int, str, str] | None = None
    # The request being answered. uvicorn's `cycle` is the one that was read last.
    _running: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Any byte that the kernel does not take pauses writing, so that no client can hold a
        # connection with a rest that is smaller than a buffer.
        transport.set_write_buffer_limits(high=0)
        host = self.client[0] if self.client else UNKNOWN
        full = self.everyone.enter(self, "" if self.peers.trusts(host) else counted(host))
        if full is None:
            self._start_head_timer()
        else:
            self._refuse_connection(full)

    def connection_lost(self, exc: Exception | None) -> None:
        self.everyone.leave(self)
        self._stop_head_timer()
        self._stop_stall_timer()
        self.pipeline.clear()
        if self._running is not None:
            self._leave(self._running)
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Finish the answer that is under way; what was pipelined behind it was not begun."""
        if self._running is not None:
            self._running.keep_alive = False
        super().shutdown()

    def make_room(self) -> None:
        """It is idle and another one needs its place."""
        self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_stall_timer()

    def resume_writing(self) -> None:
        self._stop_stall_timer()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return  # it was refused
        unread: bytes | memoryview = data
        try:
            while unread:
                unread = self._parse(unread)
        except httptools.HttpParserError:
            self.send_400_response("This is not a valid HTTP/1.1 request.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._unset_keepalive_if_required()
        self.everyone.busy(self)
        self._head_begun = True
        self._head_bytes = self._unread_bytes = 0
        if self._head_timer is None:
            self._start_head_timer()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        if not self._head_begun:
            return  # A trailer: nobody checked it as a header, so it must not become one.
        if len(self.headers) >= self.settings.max_headers:
            raise self._refuse(
                431, "request_head_too_large", f"More than {self.settings.max_headers} headers."
            )
        if name.lower() == b"transfer-encoding" and value.strip().lower() != b"chunked":
            raise self._refuse(
                400, "invalid_http", "The only Transfer-Encoding that is understood is chunked."
            )
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise self._refuse(400, "invalid_http", "This is no proxy: CONNECT is refused.")
            return  # `_parse` reads this head again.
        self._check_host()
        self._stop_head_timer()
        self._unset_keepalive_if_required()  # an answer that ended meanwhile has set it
        self._head_begun = False
        self._in_body = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self.cycle.response_complete:
            self._unread_bytes += len(body)
            if self._unread_bytes > MAX_UNREAD_BYTES:
                self.transport.abort()
            return
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._in_body:
            self._in_body = False
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.timeout_keep_alive_task is not None and not self._head_begun:
            self.everyone.idle(self)

    def send_400_response(self, msg: str) -> None:
        """Refuse what the parser refused, or what made us stop it. The connection ends."""
        status, code, message = self._refusal or (400, "invalid_http", msg)
        self._stop_head_timer()
        if self._may_refuse():
            self.transport.write(self._error_response(status, code, message))
            if self._running is not None:
                self._leave(self._running)
        self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _parse(self, data: bytes | memoryview) -> bytes | memoryview:
        """Feed the parser; answers what it left because a head asked for an upgrade."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._read_head_again()
            return memoryview(data)[upgrade.args[0] :]
        return b""

    def _read_head_again(self) -> None:
        """Go on with a parser that has read the same head without its Upgrade.

        The one that has seen it takes what follows for another protocol, even a declared body,
        and then for requests.
        """
        version = self.parser.get_http_version().encode()
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/" + version]
        lines += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self.parser.feed_data(b"\r\n".join([*lines, b"", b""]))

    def _check_host(self) -> None:
        hosts = [value for name, value in self.headers if name == b"host"]
        if not hosts and self.parser.get_http_version() == "1.0":
            return
        if len(hosts) != 1:
            raise self._refuse(400, "invalid_http", f"The request has {len(hosts)} Host headers.")
        if not _HOST.fullmatch(hosts[0]):
            raise self._refuse(400, "invalid_http", "The Host header is no host.")

    def _may_refuse(self) -> bool:
        """Whether what is written now would be read as the answer to what is refused."""
        running = self._running
        if self._in_body:
            return running is self.cycle and not self.cycle.response_started
        return running is None or running.response_complete

    def _refuse_connection(self, full: str) -> None:
        if full == "address":
            most, status, code = self.everyone.most_per_address, 429, "rate_limit_exceeded"
            message = f"Your address has {most} connections open, which is the limit. Use fewer."
        else:
            status, code = 503, "server_is_overloaded"
            message = "The server has as many connections open as it can. Try again in a while."
        self.transport.write(self._error_response(status, code, message))
        self.transport.close()

    @staticmethod
    def _leave(cycle: RequestResponseCycle) -> None:
        """Whoever answers this request finds the client gone."""
        if not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

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

    def _start_stall_timer(self) -> None:
        self._stall_timer = self.loop.call_later(
            self.settings.slow_client_seconds,
            self._write_stalled,
            self.transport.get_write_buffer_size(),
        )

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _write_stalled(self, waiting: int) -> None:
        """Cut the client off, unless it took some of the `waiting` bytes: slow is not stuck."""
        if self.transport.get_write_buffer_size() < waiting:
            self._start_stall_timer()
        else:
            self._stall_timer = None
            self.transport.abort()

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
            type=_TYPES.get(status, "invalid_request_error"),
            param=None,
            code=code,
            doc_url=doc_url(self.settings.public_url, code),
        )
        body = msgspec.json.encode(ErrorAnswer(error))
        wait = "retry-after: 1\r\nretry-after-ms: 1000\r\n" if status in _TYPES else ""
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            f"x-request-id: {id_}\r\n{wait}connection: close\r\n\r\n"
        )
        return head.encode() + body


def connection_class(
    settings: GatewaySettings, ids: IdSource, most_connections: int
) -> type[Connection]:
    """The protocol class for uvicorn, which makes instances of it with arguments of its own."""
    bound = {
        "settings": settings,
        "ids": ids,
        "everyone": Connections(most_connections, settings.max_connections_per_ip),
        "peers": Peers(settings.trusted_proxies),
    }
    return type("Connection", (Connection,), bound)
