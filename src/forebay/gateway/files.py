"""/v1/files…: the input and the output of batches, in the shape of OpenAI's Files API.

Whoever asks sees the files of its organisation, nothing else: an id of another organisation's is
answered as one that does not exist. Bytes come and go in pieces, never whole in memory: a file is there
once all of it has come, and whoever leaves before that leaves nothing. Bytes that are not those that
were stored break the answer off before its end.

Not here: an upload's form (`upload.py`), where bytes are kept (`forebay.batch`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from urllib.parse import quote

from starlette.types import ASGIApp, Receive, Scope, Send

from forebay.batch import Listing
from forebay.core.batch import StoredFile
from forebay.core.principal import Principal
from forebay.gateway.admin_read import read_query
from forebay.gateway.admin_schema import Page
from forebay.gateway.answer import ignored_header
from forebay.gateway.body import ClientGone, Patience, declared_bytes, pieces
from forebay.gateway.errors import Headers
from forebay.gateway.file_schema import DeletedFile, FilesQuery, WireFile, wire_file
from forebay.gateway.meter import enter
from forebay.gateway.multipart import boundary_of
from forebay.gateway.request import asks_to_be_strict, require_nothing_ignored
from forebay.gateway.respond import Responder
from forebay.gateway.services import GatewaySettings, Services
from forebay.gateway.upload import FORM_BYTES, UploadForm, UploadRequest, too_large
from forebay.gateway.watch import ClientWatch
from forebay.pipeline.batches import FileDesk, Receiving

_FILES = "/v1/files"
_FILE = "/v1/files/{id}"
_CONTENT = "/v1/files/{id}/content"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: on whose behalf, for which file if for one, and its query."""

    principal: Principal
    files: FileDesk
    id: str
    query: bytes


Do = Callable[[Asked], Awaitable[object]]


class FileEndpoint:
    """Serves one operation that answers with JSON."""

    def __init__(self, do: Do, services: Services, responder: Responder) -> None:
        self._do = do
        self._services = services
        self._responder = responder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        principal = await enter(scope, self._services)
        id_ = scope["path_params"].get("id", "")
        asked = Asked(principal, self._services.files, id_, scope["query_string"])
        await self._responder.json(scope, send, await self._do(asked))


class Upload:
    """Takes a file."""

    def __init__(self, services: Services, settings: GatewaySettings, responder: Responder) -> None:
        self._services = services
        self._settings = settings
        self._responder = responder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        principal = await enter(scope, self._services)
        try:
            file, request = await self._take(scope, receive, principal)
        except ClientGone:
            return
        headers: Headers = []
        if request.ignored:
            headers.append((b"x-forebay-ignored", ignored_header(request.ignored)))
        await self._responder.json(scope, send, wire_file(file), headers=headers)

    async def _take(
        self, scope: Scope, receive: Receive, principal: Principal
    ) -> tuple[StoredFile, UploadRequest]:
        """The whole of it. Raises ClientGone and every refusal; then nothing is left of it."""
        desk = self._services.files
        form = UploadForm(boundary_of(scope["headers"]), desk.settings.max_file_bytes)
        strict = asks_to_be_strict(scope["headers"])
        async with desk.upload(principal) as receiving:
            await self._expect(scope, receiving)
            await self._write(scope, receive, form, receiving)
            request = form.end()
            if strict:
                require_nothing_ignored(request)
            if request.ignored:
                self._services.metrics.unknown_fields.inc(len(request.ignored))
            return await receiving.finish(request.new), request

    async def _expect(self, scope: Scope, receiving: Receiving) -> None:
        """Refuse what is certain not to fit before any of it is read."""
        declared = declared_bytes(scope["headers"])
        if declared is None:
            return
        least, most = max(0, declared - FORM_BYTES), self._services.files.settings.max_file_bytes
        if least > most:
            raise too_large(least, most)
        await receiving.expect(least)

    async def _write(
        self, scope: Scope, receive: Receive, form: UploadForm, receiving: Receiving
    ) -> None:
        limit = self._services.files.settings.max_file_bytes + FORM_BYTES
        patience = Patience(self._settings)
        async with aclosing(pieces(scope, receive, limit, patience)) as arriving:
            async for piece in arriving:
                for part in form.take(piece):
                    await receiving.write(part)


class Download:
    """Sends the bytes of a file."""

    def __init__(self, services: Services, responder: Responder) -> None:
        self._services = services
        self._responder = responder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services = self._services
        principal = await enter(scope, services)
        id_ = scope["path_params"]["id"]
        file, content = await services.files.content(principal, id_)
        watch = ClientWatch(receive, services.spawn)
        try:
            async with watch:
                first = await anext(content, b"")  # if that fails, it can still be said
                await self._responder.start(scope, send, 200, _headers(file))
                if scope["method"] != "HEAD":
                    await _send(send, first)
                    async for piece in content:
                        await _send(send, piece)
                watch.finished = True
                await _send(send, b"", more=False)
        finally:
            if isinstance(content, AsyncGenerator):
                await content.aclose()


async def _send(send: Send, body: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


def _headers(file: StoredFile) -> Headers:
    """Something to be saved, under its name (RFC 6266); never something that a browser shows."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._- ") else "_" for c in file.name)
    named = f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(file.name, safe='')}"
    return [
        (b"content-type", b"application/octet-stream"),
        (b"content-length", b"%d" % file.size_bytes),
        (b"content-disposition", named.encode("ascii")),
    ]


def file_endpoints(
    services: Services, settings: GatewaySettings, responder: Responder
) -> Iterator[tuple[str, dict[str, ASGIApp]]]:
    """Each path with its endpoints by method."""

    def answered(do: Do) -> FileEndpoint:
        return FileEndpoint(do, services, responder)

    yield _FILES, {"get": answered(_list), "post": Upload(services, settings, responder)}
    yield _FILE, {"get": answered(_retrieve), "delete": answered(_delete)}
    yield _CONTENT, {"get": Download(services, responder)}


async def _list(asked: Asked) -> Page[WireFile]:
    query = read_query(asked.query, FilesQuery)
    listing = Listing(query.limit + 1, query.after or None, query.order == "desc", query.purpose)
    found = await asked.files.page(asked.principal, listing)
    shown = found[: query.limit]
    return Page(
        data=[wire_file(file) for file in shown],
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
        has_more=len(found) > query.limit,
    )


async def _retrieve(asked: Asked) -> WireFile:
    return wire_file(await asked.files.find(asked.principal, asked.id))


async def _delete(asked: Asked) -> DeletedFile:
    await asked.files.delete(asked.principal, asked.id)
    return DeletedFile(id=asked.id)
