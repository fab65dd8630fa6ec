"""Structured logs: events with fields, JSON or for people, always on stderr.

One canonical line per call (`canonical`) carries everything an operator asks about it. Prompts and
completions are never logged; neither are API keys.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from typing import Any, TextIO, cast

import structlog

get_logger = structlog.get_logger

EVENTS = {
    "call": "The canonical line: one per call that held money, at its end.",
    "call_refused": "A call was refused before it was queued.",
    "bad_keys": "Of one address came more requests without a valid API key than a minute allows.",
    "engine_starting": "The engine child is being started.",
    "engine_ready": "The engine loaded, warmed up and serves.",
    "engine_renewed": "The engine child saw so many JSON schemas that it is replaced, once it is idle.",
    "engine_died": "The engine child ended; it is restarted with back-off.",
    "engine_fault": "A generation ended by a fault of the engine.",
    "generation_stopped": "Debug: a generation was stopped after so many received tokens.",
    "usage_mismatch": "The engine's own token count differed from ours; what was received was billed.",
    "window_failed": "A minute of an engine's counters could not be stored; the next window has it.",
    "hold_swept": "A hold of a dead process was resolved.",
    "settle_failed": "The ledger could not be written when a call ended; it is tried again.",
    "batch_ended": "A batch came to its end, with the counts of its lines and what they cost.",
    "batch_cut_short": "A batch runs no more lines: its time is over, or its file is damaged.",
    "files_unknown": "There are bytes of files that the database does not know: of an upload that a crash "
    "broke off, or the database is an older one.",
    "batch_waits": "A store failed a batch, or its file cannot be read; it is tried again.",
    "batch_store_failed": "What became of a batch's line could not be stored; it is tried again.",
    "batch_sweep_failed": "Batches could not be looked for; it is tried again in ten seconds.",
    "batch_line_failed": "A line of a batch ended with an error of its own process.",
    "batch_line_unreadable": "A line that ran is refused by this version; its answer is lost.",
    "batch_answer_lost": "A line was charged and its answer is not there: the store is an older one.",
    "background_failed": "A response in the background ended with an error of its own process.",
    "beat_failed": "The ledger could not be written by a beat; it is tried again in a second.",
    "sweep_failed": "The keeper could not reap or sweep; it is tried again in a second.",
    "lease_expired": "A worker lost a lease; the owner decides what happens to the job.",
    "alert_fired": "A threshold of spending was reached; its webhook follows.",
    "webhook_delivered": "The receiver of an alert accepted its event.",
    "webhook_failed": "An attempt to deliver an event failed; `next_at` says when it is tried again.",
    "webhook_given_up": "An event is not tried again: its receiver said 410, or failed for a day.",
    "alert_sums_incomplete": "Rows were archived before alerts had counted them; it says what to do.",
    "alerting_failed": "A store failed while alerts were looked at; it is tried again in a second.",
    "turn_not_told": "A turn could not be shown or dropped when its call ended; it is tried again.",
    "summary_made": "What was said first in a dialogue was summarised: so many of its items.",
    "summary_failed": "A summary was not made; it is tried again when a later turn has ended.",
    "task_failed": "A background task ended with an error.",
    "unhandled_error": "A request ended with an unexpected error (500).",
    "server_ready": "Both listeners accept connections.",
    "server_stopping": "No new calls are accepted; running ones finish.",
}


_TRACEBACKS = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
)


class _StandardError(io.TextIOBase):
    """Standard error that never raises: whoever reads it may be gone, its disk may be full, and
    neither may turn a settled call into a failed one."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()


def configure(level: str, *, as_json: bool, colours: bool = False) -> None:
    """Send structlog's events to stderr from `level` on."""
    # Neither may show the local variables of a traceback: prompts and keys are among them.
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if as_json
        else structlog.dev.ConsoleRenderer(
            colors=colours, exception_formatter=structlog.dev.plain_traceback
        )
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _TRACEBACKS if as_json else _plain,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _StandardError())),
        cache_logger_on_first_use=False,
    )


def _plain(_logger: Any, _method: str, event: Any) -> Any:
    return event


def canonical(logger: Any, **fields: Any) -> None:
    """Write the one line of a call."""
    logger.info("call", **fields)
