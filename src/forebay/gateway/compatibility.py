"""What of OpenAI's API is served, field by field: docs/reference/compatibility.md, from the tables
that the code reads. A test compares the page.

Not here: what may be relied on beside fields (docs/reference/client-rules.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from forebay.core.json_schema import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_ITEMS,
    MAX_LENGTH,
    MAX_NODES,
    MAX_VALUES,
    MAX_WEIGHT,
)
from forebay.core.schema_formats import FORMATS
from forebay.gateway.batch_request import BATCH_FIELDS
from forebay.gateway.chat_fields import CHAT_FIELDS, MESSAGE_FIELDS
from forebay.gateway.completion_fields import COMPLETION_FIELDS
from forebay.gateway.conversation_request import (
    CONVERSATION_FIELDS,
    ITEMS_FIELDS,
    METADATA_FIELDS,
)
from forebay.gateway.fields import NOTHING, Field, Kind
from forebay.gateway.responses_fields import RESPONSES_FIELDS
from forebay.gateway.upload import FILE_FIELDS

COMPATIBILITY_PATH = "/docs/compatibility"
# Of OpenAI's API. `app.py` has the routes; a test compares.
ENDPOINTS = {
    "POST /v1/chat/completions": "supported, streamed and not",
    "POST /v1/completions": "supported, streamed and not",
    "POST /v1/responses": "supported, streamed and not, in the background too; text alone, no tools",
    "POST /v1/responses/input_tokens": "supported; takes the fields of POST /v1/responses",
    "POST /v1/responses/compact": "refused with `unsupported_endpoint`: not built",
    "GET /v1/responses/{id}": "supported, without logprobs; `stream` and `starting_after` for those that "
    "were made with background and stream",
    "DELETE /v1/responses/{id}": "supported",
    "GET /v1/responses/{id}/input_items": "supported; the response's own input, not the past",
    "POST /v1/responses/{id}/cancel": "supported for those in the background; what was generated is "
    "charged",
    "GET /v1/models": "supported",
    "GET /v1/models/{id}": "supported; `{id}` may be an alias",
    "GET /v1/usage/me": "ours alone: what the key has used, its limits and what is left",
    "POST /v1/conversations": "supported; messages of text",
    "GET /v1/conversations/{id}": "supported",
    "POST /v1/conversations/{id}": "supported",
    "DELETE /v1/conversations/{id}": "supported; its items go, too",
    "GET /v1/conversations/{id}/items": "supported; `include` is ignored",
    "POST /v1/conversations/{id}/items": "supported; messages of text",
    "GET /v1/conversations/{id}/items/{item_id}": "supported; `include` is ignored",
    "DELETE /v1/conversations/{id}/items/{item_id}": "supported",
    "GET /v1/files": "supported",
    "POST /v1/files": "supported for the purpose `batch`; a form (`multipart/form-data`)",
    "GET /v1/files/{id}": "supported",
    "DELETE /v1/files/{id}": "supported, but for the input of a batch that has not ended",
    "GET /v1/files/{id}/content": "supported",
    "GET /v1/batches": "supported",
    "POST /v1/batches": "supported for chat completions, completions and responses",
    "GET /v1/batches/{id}": "supported; `cost` is ours",
    "POST /v1/batches/{id}/cancel": "supported; what is done is kept",
    "POST /v1/embeddings": "refused with `unsupported_endpoint`: no pool makes embeddings",
}

_INTRODUCTION = """# Compatibility

What of OpenAI's API is served, endpoint by endpoint and field by field. The running server has the
same as an OpenAPI document at `GET /openapi.json`.

## Endpoints

| endpoint | |
|---|---|
{endpoints}

Other endpoints of OpenAI's get 404 with a message that lists these.

## Fields

Null means absent, for every field. A name that is not listed here is ignored, named in the response
header `x-forebay-ignored`, and counted in the metric `forebay_unknown_request_fields_total`.

A refused field gets 400 `unsupported_parameter` with `param` set to its path, except for values that
ask for nothing: null, false, 0, an empty string, array or object, unless the note says which values
are accepted instead.

A maximum above the model's or the API key's own is lowered to that, not refused: an answer that is
cut there has the `finish_reason` `length`. One that does not fit the model's context is refused with
`context_length_exceeded`.

Of the headers only those listed in docs/reference/http.md are read. All others are ignored.
"""

_JSON = f"""## JSON

With `response_format` the engine can make nothing but a document of the schema: every token is
chosen among those that keep it one. `json_object` is the schema of any object.

- The document is complete unless the answer ends with the `finish_reason` `length`, or by a `stop`
  string of yours. Strings, arrays, objects of any name and recursion without bounds may go on until
  the maximum: small models do. `maxLength`, `maxItems`, `minimum` and `maximum` keep them short.
- The model is not shown the schema. Say in the prompt what you want.
- Properties come in the schema's order; those that are not required may be left out. In an object of
  any names one may come twice.
- Between values stand at most a space, or a line break and some spaces.

| | |
|---|---|
| types | string, number, integer, boolean, null, array, object; a list of them |
| any type | `enum`, `const`, `anyOf`, `$ref` within the schema, also recursive |
| | `oneOf` where no document can be of two alternatives; `allOf` of one |
| string | `minLength`, `maxLength` (at most {MAX_LENGTH}) |
| | `format`: {", ".join(FORMATS)}; beside one the `pattern` that zod writes |
| number, integer | `minimum`, `maximum`, `exclusiveMinimum`, `exclusiveMaximum` |
| array | `items`, `minItems`, `maxItems` (at most {MAX_ITEMS}); `prefixItems`: exactly these |
| object | `properties`, `required`, `additionalProperties`; no others where some are listed |
| ignored | annotations: `title`, `description`, `default`, `examples`, `x-…` and the like |
| limits | bounds of numbers and lengths weigh together at most {MAX_WEIGHT}: see the error's message |
| | {MAX_BYTES // 1024} KiB, {MAX_DEPTH} levels, {MAX_NODES} subschemas, {MAX_VALUES} `enum` values |

Everything else (`pattern`, `not`, `multipleOf`, `uniqueItems`, …) could not be enforced, and gets
400 `invalid_schema` with its place in `param`.

## Which calls can be continued

A call whose engine fails, or that is preempted for a higher lane, is continued from its output's
prefix, on any engine, and is charged once. That needs a call whose state is all in its token ids:

| call | continued |
|---|---|
| greedy, or sampled without a `seed` | yes |
| `seed` with a temperature above 0 | no: the random generator's state is lost |
| `presence_penalty`, `frequency_penalty`, `repetition_penalty` | no: they count what the engine has seen as output |
| `response_format` with JSON | no: the grammar's state is lost, and a second document would begin |
| `logprobs` | no |
| `n` above 1 | no |

A call that cannot be continued is never preempted once it has shown output. If its engine fails
before that, it starts again; afterwards it ends with an error event and costs nothing.
"""


def markdown() -> str:
    """The text of docs/reference/compatibility.md."""
    endpoints = "\n".join(f"| `{name}` | {what} |" for name, what in ENDPOINTS.items())
    parts = [_INTRODUCTION.format(endpoints=endpoints)]
    tables: Mapping[str, Mapping[str, Field]] = {
        "POST /v1/chat/completions": CHAT_FIELDS,
        "A message of chat": MESSAGE_FIELDS,
        "POST /v1/completions": COMPLETION_FIELDS,
        "POST /v1/responses": RESPONSES_FIELDS,
        "POST /v1/conversations": CONVERSATION_FIELDS,
        "POST /v1/conversations/{id}": METADATA_FIELDS,
        "POST /v1/conversations/{id}/items": ITEMS_FIELDS,
        "POST /v1/files": FILE_FIELDS,
        "POST /v1/batches": BATCH_FIELDS,
    }
    for title, fields in tables.items():
        rows = "\n".join(_rows(fields.values()))
        parts.append(f"## {title}\n\n| field | | note |\n|---|---|---|\n{rows}\n")
    return "\n".join([*parts, _JSON])


def _rows(fields: Iterable[Field]) -> list[str]:
    return [f"| `{field.name}` | {field.kind} | {_documented(field)} |" for field in fields]


def _documented(field: Field) -> str:
    if field.kind is not Kind.REFUSED or field.harmless == NOTHING:
        return field.note
    also = "also accepted" if field.takes_nothing else "accepted"
    return f"{field.note}; {also}: {', '.join(f'`{v}`' for v in field.special()) or 'only null'}"
