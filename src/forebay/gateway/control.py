"""DATA_DIR/control.sock: how commands reach the process that owns the data.

One line of JSON asks, one line answers:

    {"verb": "keys.create", "args": {…}}  →  {"ok": …}  or  {"error": {"message", "code", "param"}}

The file has mode 0600 and there is no key: who can open it owns the data anyway. Arguments are
converted to the types that the administration's functions are annotated with.

Invariants
- A socket file that nobody listens on is replaced; one that somebody listens on never.
- Lines, connections and the time a silent client is listened to are bounded.

Not here: what the verbs do (`forebay.pipeline.administration`), their wording (`forebay.cli`).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import socket
import typing
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from forebay.core.errors import ForebayError, InternalError, InvalidRequest, Signal
from forebay.gateway.errors import refusal
from forebay.gateway.report import report_unhandled
from forebay.pipeline.administration import Administration

MAX_LINE_BYTES = 1024 * 1024
# Usage reports are the largest answers: a few hundred bytes per row.
MAX_ANSWER_BYTES = 256 * 1024 * 1024
MAX_CONNECTIONS = 32
IDLE_SECONDS = 60.0
# The kernel's limit of a Unix socket's path, less the closing zero byte.
MAX_PATH_BYTES = 107

Method = Callable[..., Awaitable[Any]]


class ControlFailed(Exception):
    """The server could not be asked: it is not there, or it broke off."""


class ControlServer:
    """Answers on the socket, from `start` to `close`."""

    def __init__(self, path: Path, administration: Administration) -> None:
        self._path = path
        self._verbs = verbs(administration)
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Listen. Raises OSError if another process does, or the path cannot be used."""
        listener = _listen(self._path)
        self._server = await asyncio.start_unix_server(
            self._serve, sock=listener, limit=MAX_LINE_BYTES
        )

    async def close(self) -> None:
        """Stop listening, break off and remove the file. Idempotent."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        self._path.unlink(missing_ok=True)
        serving = list(self._serving)
        for task in serving:
            task.cancel()
        if serving:
            await asyncio.wait(serving)
        await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._serving) >= MAX_CONNECTIONS:
            writer.close()
            return
        self._serving.add(task)
        try:
            while line := await _line(reader):
                writer.write(await self._answer(line) + b"\n")
                await writer.drain()
        except OSError:
            pass  # the client left; nobody waits for an answer
        except asyncio.CancelledError:
            if self._server is not None:
                raise  # not by `close`, which waits for this task and nothing else
        finally:
            self._serving.discard(task)
            writer.close()

    async def _answer(self, line: bytes) -> bytes:
        try:
            request = _decode(line)
            verb = self._verbs.get(request.verb)
            if verb is None:
                known = ", ".join(self._verbs)
                raise InvalidRequest(f"There is no verb {request.verb!r}; there are {known}.")
            return msgspec.json.encode({"ok": await verb(request.args)})
        except Exception as fault:
            return msgspec.json.encode({"error": _error(fault)})


class _Request(msgspec.Struct, forbid_unknown_fields=True):
    verb: str
    args: dict[str, Any] = {}


async def call(
    path: Path, verb: str, args: Mapping[str, Any] | None = None, *, timeout_seconds: float = 60.0
) -> Any:
    """Ask the server that owns the data; the answer as plain data.

    Raises ControlFailed if there is none, InvalidRequest (or InternalError) if it refuses.
    """
    try:
        async with asyncio.timeout(timeout_seconds):
            line = await _ask(path, msgspec.json.encode({"verb": verb, "args": args or {}}))
    except TimeoutError:
        raise ControlFailed(f"The server did not answer within {timeout_seconds:g} s.") from None
    except (ConnectionResetError, BrokenPipeError):
        line = b""
    except OSError as fault:
        raise ControlFailed(f"No server answers on {path} ({fault.strerror or fault}).") from None
    try:
        answer = msgspec.json.decode(line)
    except msgspec.DecodeError:
        raise ControlFailed("The server broke off in the middle of its answer.") from None
    if "error" in answer:
        error = answer["error"]
        if error["code"] == "internal_error":
            raise InternalError(error["message"])
        raise InvalidRequest(error["message"], param=error["param"], code=error["code"])
    return answer["ok"]


async def _ask(path: Path, request: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(path, limit=MAX_ANSWER_BYTES)
    try:
        writer.write(request + b"\n")
        await writer.drain()
        return await reader.readline()
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _listen(path: Path) -> socket.socket:
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise OSError(
            f"The path of the control socket is longer than {MAX_PATH_BYTES} bytes: {path}. "
            "Choose a data directory with a shorter path."
        )
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        # The file must never exist with wider rights, not even for a moment.
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen(MAX_CONNECTIONS)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def _remove_stale(path: Path) -> None:
    """A crash leaves the file behind; nobody listens on it then."""
    if not path.exists():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise OSError(f"Another process answers on {path}.")


async def _line(reader: asyncio.StreamReader) -> bytes:
    """The next request; empty when the client has left, is silent, or talks without end."""
    try:
        async with asyncio.timeout(IDLE_SECONDS):
            return await reader.readline()
    except (TimeoutError, ValueError):
        return b""


def _decode(line: bytes) -> _Request:
    try:
        return msgspec.json.decode(line, type=_Request)
    except (msgspec.DecodeError, RecursionError) as fault:
        raise InvalidRequest(f"The request is not understood: {fault}.") from None


def verbs(administration: Administration) -> dict[str, Callable[[dict[str, Any]], Awaitable[Any]]]:
    """The table of verbs, each taking plain data; the command line uses it when no server runs."""
    books = administration.bookkeeping
    keys, budgets, reports = administration.keys, administration.budgets, administration.reports
    alerts = administration.named_alerts
    table: dict[str, Method] = {
        "keys.create": keys.create,
        "keys.list": keys.list,
        "keys.rotate": keys.rotate,
        "keys.revoke": keys.revoke,
        "keys.create_admin": keys.create_admin,
        "keys.list_admin": keys.list_admin,
        "keys.revoke_admin": keys.revoke_admin,
        "budgets.set": budgets.set,
        "budgets.top_up": budgets.top_up,
        "budgets.list": budgets.list,
        "alerts.list": alerts.list,
        "alerts.add": alerts.add,
        "alerts.remove": alerts.remove,
        "alerts.test": alerts.test,
        "projects.list": administration.projects.list_limits,
        "projects.limit": administration.projects.set_limits,
        "projects.plan": administration.projects.set_plan,
        "projects.archive": administration.projects.archive_named,
        "usage": reports.usage,
        "usage.totals": reports.usage_totals,
        "models": reports.models,
        "status": reports.status,
        "activity": reports.activity,
        "audit.verify": books.verify,
        "reconcile": books.reconcile,
        "usage.outbox": books.outbox,
        "ledger.archivable": books.archivable,
        "ledger.drop": books.drop,
    }
    return {verb: _typed(verb, method) for verb, method in table.items()}


def _typed(verb: str, method: Method) -> Callable[[dict[str, Any]], Awaitable[Any]]:
    """The method, taking plain data for its annotated parameters."""
    hints = typing.get_type_hints(method)
    fields: list[Any] = []
    for name, parameter in inspect.signature(method).parameters.items():
        required = parameter.default is inspect.Parameter.empty
        fields.append((name, hints[name]) if required else (name, hints[name], parameter.default))
    args_type = msgspec.defstruct(verb, fields, forbid_unknown_fields=True, kw_only=True)

    async def invoke(args: dict[str, Any]) -> Any:
        try:
            typed = msgspec.convert(args, args_type)
        except msgspec.ValidationError as fault:
            raise InvalidRequest(f"The arguments of {verb} are wrong: {fault}.") from None
        return await method(**msgspec.structs.asdict(typed))

    return invoke


def _error(fault: Exception) -> dict[str, Any]:
    """The error as the table of HTTP errors has it, without a request id: there is no request."""
    if not isinstance(fault, ForebayError) or isinstance(fault, Signal):
        report_unhandled(fault, "control")
        fault = InternalError()
    body = refusal(fault, "control").body
    return {"message": fault.message, "code": body.code, "param": body.param}
