"""Listeners: sockets, bound first so that a taken port is said plainly, and servers on them.

       bind            start              stop                   stop_now
    ────────▶ BOUND ────────▶ SERVING ────────▶ STOPPING ─────┬──────────▶ STOPPED
                                       accepts nothing more,  └─ the last answer is finished
                                       finishes its answers

Runs inside the process's own event loop; signals, logging and lifespan are not its business.

Not here: what is served (`app.py`), when to stop (`forebay.cli`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
import socket
from collections.abc import Iterator
from dataclasses import replace

import uvicorn
from starlette.types import ASGIApp

from forebay.core.clock import IdSource, Spawn
from forebay.gateway.protocol import connection_class
from forebay.gateway.services import GatewaySettings

BACKLOG = 2048
# Files that are no connections of clients: stores, engines, the control socket, the admin listener.
SPARE_FILES = 256
# A listener on all addresses is found on this one.
_HERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}

# What changes the host of a listener, by the flag that changes its port.
_HOST_OF = {"--port": "--host", "--admin-port": "the setting admin_host (FOREBAY_ADMIN_HOST)"}


class PortUnavailable(OSError):
    """A listener cannot be bound; the message names the port or host, and what changes it."""


def bind(host: str, port: int, *, flag: str) -> socket.socket:
    """A listening socket (port 0: a free one). Raises PortUnavailable."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        # Listening at once is what claims the port: two sockets may be bound to it before that.
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except (OSError, OverflowError, ValueError, TypeError) as fault:  # the last two: no host name
        listener.close()
        raise PortUnavailable(_why(fault, host, port, flag)) from None
    return listener


def with_address(settings: GatewaySettings, bound: socket.socket) -> GatewaySettings:
    """The settings, with this socket's address where they do not say what clients call us.

    A socket on all addresses has none that all clients could use; then it stays unknown.
    """
    host, port = bound.getsockname()[:2]
    if settings.public_url or host in _HERE:
        return settings
    return replace(settings, public_url=_url(host, port))


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _why(fault: Exception, host: str, port: int, flag: str) -> str:
    number = getattr(fault, "errno", None)
    if number == errno.EADDRINUSE:
        return f"Port {port} on {host} is taken by another program. Choose another with {flag}."
    if number == errno.EACCES:
        return f"Port {port} on {host} needs more rights. Choose one above 1023 with {flag}."
    if isinstance(fault, OverflowError):
        return f"Cannot listen on port {port} ({fault}). Choose another with {flag}."
    why = fault.strerror if isinstance(fault, OSError) and fault.strerror else str(fault)
    change = _HOST_OF.get(flag, "another host")
    return f"Cannot listen on {host!r} ({why}). Choose an address of this machine with {change}."


def room_for(connections: int) -> int:
    """As many of these as the system lets this process have, which is asked for what it gives.

    A process that has no file left can neither answer nor write a bill.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + SPARE_FILES
    given = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < given:
        soft = given
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    fits = connections if soft == resource.RLIM_INFINITY else soft - SPARE_FILES
    return max(1, min(connections, fits))


class Listener:
    """One application on one bound socket."""

    def __init__(
        self, app: ASGIApp, bound: socket.socket, *, settings: GatewaySettings, ids: IdSource
    ) -> None:
        self._socket = bound
        self.host, self.port = bound.getsockname()[:2]
        config = uvicorn.Config(
            app,
            http=connection_class(settings, ids, room_for(settings.max_connections)),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            # Everything worth logging is logged by the application, with the request's id.
            log_level=logging.CRITICAL,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=settings.idle_seconds,
        )
        self._server = _Server(config)
        self._running: asyncio.Task[None] | None = None

    @property
    def base_url(self) -> str:
        """Where a client on this machine finds it."""
        return _url(_HERE.get(self.host, self.host), self.port)

    @property
    def open_answers(self) -> int:
        """Requests being answered now."""
        return len(self._server.server_state.tasks)

    async def start(self, spawn: Spawn) -> None:
        """Return when connections are accepted."""
        name = f"listener {self.port}"
        self._running = spawn(self._server.serve(sockets=[self._socket]), name=name)
        self._running.add_done_callback(lambda _: self._server.accepting.set())
        await self._server.accepting.wait()
        if self._running.done():
            await self._running  # raises why it could not start

    async def stop(self) -> None:
        """Accept nothing more; return when the last answer is finished (or `stop_now`)."""
        self._server.leave()
        if self._running is not None:
            await asyncio.shield(self._running)

    def stop_now(self) -> None:
        """Break off all answers. Their clients see the connection end."""
        self._server.force_exit = True
        self._server.leave()
        for task in list(self._server.server_state.tasks):
            task.cancel()


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers, and without its ten wake-ups a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.accepting = asyncio.Event()
        self._leaving = asyncio.Event()

    def leave(self) -> None:
        self.should_exit = True
        self._leaving.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        """Keep the Date header fresh until it is time to leave."""
        while not await self.on_tick(0):
            self.accepting.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._leaving.wait()
        self.accepting.set()
