"""Everything HTTP and nothing else: OpenAI's wire format outside, our own words inside.

`app.py` has the route tables. A request goes: `protocol.py` (bytes, limits) → `app.py` (path, id,
last resort for errors) → one callable per resource (`chat.py`, `responses.py`, `models.py`, …). What
generates is read by `intake.py` and answered by `answer.py`, or by `background.py`. OpenAI's names
stop here: a request becomes a `core.call.Call`, and `core.event` events become its answer.

    fields.py    which request fields exist and what becomes of each (one table, also the docs)
    body.py      bytes → JSON object, within bounds        request.py   JSON object → ChatRequest
    multipart.py forms with files in them                  batch_lines.py  lines of batches
    schema.py    the answers' wire types                   sse.py       the same as server-sent events
    errors.py    error class → status, type, code, headers  manual.py    what each code means
    cors.py      scripts of other web sites                inflate.py   gzip bodies
    docs.py      /docs/errors, /llms.txt
    watch.py     clients that leave, and timers
    serve.py     listeners                                 control.py   DATA_DIR/control.sock

Not here: the walk of a call (`forebay.pipeline`), who may do what (`forebay.tenancy`).
"""

from forebay.gateway.services import GatewaySettings, KeepAlive, Pipeline, Readiness, Services

__all__ = ["GatewaySettings", "KeepAlive", "Pipeline", "Readiness", "Services"]
