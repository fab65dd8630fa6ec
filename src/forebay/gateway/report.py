"""What the gateway logs and counts of requests that went wrong. Never prompts, never keys.

An unexpected error is logged by its type and stack alone: its message may quote what a client
sent, and so may local variables.

Not here: the canonical line of a call (`forebay.pipeline`), names of events (`forebay.observe`).
"""

from __future__ import annotations

import traceback

from forebay.core.errors import ForebayError
from forebay.gateway.errors import refusal
from forebay.observe.log import get_logger
from forebay.observe.metrics import Metrics

_log = get_logger("forebay.gateway")


def report_refusal(metrics: Metrics, error: ForebayError, request_id: str) -> None:
    """A call ended before it was queued."""
    seen = refusal(error, request_id)
    code = seen.body.code or "none"
    metrics.refusals.labels(code).inc()
    _log.info("call_refused", request_id=request_id, status=seen.status, code=code)


def report_unhandled(fault: BaseException, request_id: str) -> None:
    """A request met an error that nobody foresaw."""
    stack = traceback.format_list(traceback.extract_tb(fault.__traceback__, limit=-20))
    kind = f"{type(fault).__module__}.{type(fault).__qualname__}"
    _log.error("unhandled_error", request_id=request_id, error=kind, stack="".join(stack))
