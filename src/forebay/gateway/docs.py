"""GET /docs/…, /llms.txt and /openapi.json: what the running server says of itself.

For people who followed an error's `doc_url`, and for programs that look for /llms.txt
(llmstxt.org). Markdown, without a key, made once when the server starts.

Not here: what the pages say (`manual.py`, `compatibility.py`, `openapi.py`).
"""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from forebay.core.errors import NotFound
from forebay.gateway.compatibility import COMPATIBILITY_PATH, markdown
from forebay.gateway.errors import DOCS_PATH
from forebay.gateway.manual import article, codes, page
from forebay.gateway.respond import Responder

_MARKDOWN = b"text/markdown; charset=utf-8"
_CACHED = (b"cache-control", b"public, max-age=3600")
_CODE_CHARACTERS = 100

# A test compares them with the route table.
_ENDPOINTS = {
    "/v1/chat/completions": "POST: a chat completion, whole or streamed (`stream: true`).",
    "/v1/completions": "POST: the continuation of a text, whole or streamed.",
    "/v1/batches": (
        "POST: many calls that are written in a file; one of them: `/v1/batches/{id}`; POST "
        "`/v1/batches/{id}/cancel` ends it."
    ),
    "/v1/conversations": (
        "POST: a dialogue that is remembered; one of them: `/v1/conversations/{id}`, its messages: "
        "`/v1/conversations/{id}/items`, one of these: `/v1/conversations/{id}/items/{item_id}`."
    ),
    "/v1/files": (
        "POST: upload the file of a batch; one of them: `/v1/files/{id}`, its bytes: "
        "`/v1/files/{id}/content`."
    ),
    "/v1/responses": (
        "POST: a response, whole or streamed; a stored one: `/v1/responses/{id}`, what it was made "
        "from: `/v1/responses/{id}/input_items`."
    ),
    "/v1/responses/input_tokens": "POST: how many tokens the prompt of a response would have.",
    "/v1/models": "GET: the models that the key may use; one of them: `/v1/models/{id}`.",
    "/v1/usage/me": "GET: what the key has used, its limits, what it may still spend.",
    "/livez": "GET: whether the process answers; no key needed.",
    "/readyz": "GET: whether calls would be served now; no key needed.",
}
_PAGES = {
    DOCS_PATH: (
        "every error code with its status, its headers, its meaning and what to do; one of them: "
        f"`{DOCS_PATH}/{{code}}`."
    ),
    COMPATIBILITY_PATH: "what of OpenAI's API is served, field by field.",
    "/openapi.json": "the same as an OpenAPI 3.1 document.",
}


class Document:
    """One page that never changes while the server runs."""

    def __init__(self, body: bytes, responder: Responder, content_type: bytes = _MARKDOWN) -> None:
        self._body = body
        self._headers = ((b"content-type", content_type), _CACHED)
        self._responder = responder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._responder.body(scope, send, 200, self._body, self._headers)


class ErrorDocuments:
    """One page for each code."""

    def __init__(self, responder: Responder) -> None:
        self._documents = {code: Document(article(code).encode(), responder) for code in codes()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        code: str = scope["path_params"]["code"]
        document = self._documents.get(code)
        if document is None:
            raise NotFound(
                f"There is no error code {code[:_CODE_CHARACTERS]!r}. "
                f"All codes are at GET {DOCS_PATH}."
            )
        await document(scope, receive, send)


def error_page(responder: Responder) -> Document:
    """The whole reference."""
    return Document(page().encode(), responder)


def compatibility_page(responder: Responder) -> Document:
    """Field by field."""
    return Document(markdown().encode(), responder)


def openapi(document: bytes, responder: Responder) -> Document:
    """/openapi.json of one listener."""
    return Document(document, responder, b"application/json")


def overview(responder: Responder) -> Document:
    """/llms.txt. Its links are absolute where the server knows its address."""
    return Document(overview_text(responder.public_url.rstrip("/")).encode(), responder)


def overview_text(address: str) -> str:
    """What this server is, and where to read and ask more."""
    base = f"`{address}/v1`" if address else "this server's address + `/v1`"
    lines = [
        "# Forebay",
        "",
        "> An OpenAI-compatible LLM API: chat, completions, responses (in the background, too), conversations, batches "
        "and models. The base URL of a client is "
        f"{base}, its API key goes into the header `Authorization: Bearer fbk_live_…`.",
        "",
        'Every error is `{"error": {…}}` with a `code` that is explained below. What a field or '
        "endpoint does not support is refused with an error; request fields never heard of are "
        "ignored and named in the header `x-forebay-ignored`.",
    ]
    for title, paths in (("Docs", _PAGES), ("Endpoints", _ENDPOINTS)):
        lines += ["", f"## {title}", ""]
        lines += [f"- [{path}]({address}{path}): {what}" for path, what in paths.items()]
    return "\n".join([*lines, ""])
