"""Every error of Forebay, in four families.

    ForebayError
      CallerError      the call is wrong or not allowed; never retried by us      4xx
        InvalidRequest, UnsupportedParameter, ContextLengthExceeded,
        ConversationFull, StorageFull                                              400
        InvalidKey                                                                 401
        NotAllowed                                                                 403
        ModelNotFound, NotFound                                                    404
        MethodNotAllowed                                                           405
        RequestTimeout, ClientTooSlow                                              408
        IdempotencyKeyInUse, ConversationLocked, BatchConflict                     409
        RequestTooLarge                                                            413
        IdempotencyKeyReused                                                       422
        InsufficientQuota, RateLimited, TooManyOpenCalls, FlowFull                 429
      OverloadError    we cannot serve this now; waiting helps                    503
        Overloaded, LaneFull, QueueDeadline, ShuttingDown
      ServiceError     our fault; alarms; costs nothing                           5xx
        EngineFailed, EngineTimeout, StoreUnavailable, FileDamaged, InternalError
      Signal           between rooms and the corridor; never reaches a client
        LeaseLost, ReaderGone, StreamGap, StaleAttempt, AlreadyResolved, UnknownHold, KeyClaimed,
        EngineFault

The class docstring is the default message. HTTP status, type and code are the gateway's business
(`forebay.gateway.errors`); a test asserts that every leaf outside `Signal` stands in its table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay.core.hold import Remembered
    from forebay.core.usage import UsageRow


class ForebayError(Exception):
    """Something went wrong."""

    def __init__(self, message: str | None = None, *, param: str | None = None) -> None:
        self.message = message or (type(self).__doc__ or "").strip().split("\n")[0]
        self.param = param
        super().__init__(self.message)


class CallerError(ForebayError):
    """The request cannot be served as it is."""


class InvalidRequest(CallerError):
    """The request is not valid."""

    def __init__(
        self, message: str | None = None, *, param: str | None = None, code: str = "invalid_value"
    ) -> None:
        self.code = code
        super().__init__(message, param=param)


class UnsupportedParameter(CallerError):
    """This parameter would change the answer and is not supported."""


class ContextLengthExceeded(CallerError):
    """The prompt does not fit the model's context."""


class InvalidKey(CallerError):
    """The API key is missing, malformed, unknown, expired or revoked."""


class NotAllowed(CallerError):
    """This API key may not do that."""

    def __init__(
        self, message: str | None = None, *, param: str | None = None, code: str = "not_allowed"
    ) -> None:
        self.code = code
        super().__init__(message, param=param)


class ModelNotFound(CallerError):
    """There is no such model."""


class NotFound(CallerError):
    """There is nothing at this address."""


class MethodNotAllowed(CallerError):
    """This address does not take that method."""


class RequestTimeout(CallerError):
    """The request body did not arrive in time."""


class ClientTooSlow(CallerError):
    """The client read its stream too slowly; the generation was stopped."""


class CallCancelled(CallerError):
    """This response was cancelled."""


class IdempotencyKeyInUse(CallerError):
    """A call with this Idempotency-Key is running elsewhere; retry to get its answer."""


class ConversationLocked(CallerError):
    """Another call is working on this conversation; retry when it has ended."""


class ConversationFull(CallerError):
    """No more can be stored: a conversation, or all of an organisation's together, are too large."""


class StorageFull(CallerError):
    """No more can be stored: all files of an organisation together are too large."""


class BatchConflict(CallerError):
    """This cannot be done to a batch, or to a file of one, as it stands now."""


class IdempotencyKeyReused(CallerError):
    """This Idempotency-Key was used for another request."""


class RequestTooLarge(CallerError):
    """The request body is too large."""


class InsufficientQuota(CallerError):
    """The budget does not cover what this call can cost. Waiting does not help."""


class RateLimited(CallerError):
    """Too many calls or tokens in too short a time."""

    def __init__(self, message: str | None = None, *, retry_after_seconds: float | None) -> None:
        self.retry_after_seconds = retry_after_seconds
        super().__init__(message)


class TooManyOpenCalls(RateLimited):
    """Too many calls are running at once for this key, project or organisation."""


class FlowFull(RateLimited):
    """Too many calls of this project are waiting in this lane."""


class OverloadError(ForebayError):
    """The service is overloaded; retry after a while."""

    def __init__(self, message: str | None = None, *, retry_after_seconds: float = 1.0) -> None:
        self.retry_after_seconds = retry_after_seconds
        super().__init__(message)


class Overloaded(OverloadError):
    """The predicted wait is longer than this lane's deadline."""


class LaneFull(OverloadError):
    """This lane's queue is full."""


class QueueDeadline(OverloadError):
    """The call waited longer than its lane's deadline and was not started."""


class ShuttingDown(OverloadError):
    """The server is shutting down."""


class ServiceError(ForebayError):
    """The service failed; the call costs nothing."""


class EngineFailed(ServiceError):
    """The inference engine failed while it served this call; the call costs nothing."""


class EngineTimeout(ServiceError):
    """The inference engine produced nothing for too long; the call costs nothing."""


class StoreUnavailable(ServiceError):
    """A store that this call needs cannot be reached; nothing was charged."""


class FileDamaged(StoreUnavailable):
    """The bytes of a file are not those that were stored, or are not there."""


class InternalError(ServiceError):
    """An unexpected error; the call costs nothing."""


class Signal(ForebayError):
    """Between rooms and the corridor; never shown to a client."""


class LeaseLost(Signal):
    """The lease is not the job's live lease any more; nothing was changed (Q6)."""


class ReaderGone(Signal):
    """Nobody reads this job's events any more."""


class StreamGap(Signal):
    """An event is missing between two that arrived (T1)."""


class StaleAttempt(Signal):
    """A newer attempt of this hold exists; nothing was changed (L7)."""


class UnknownHold(Signal):
    """There is no such hold."""


class EngineFault(Signal):
    """The engine died, hung, broke its protocol or ran out of memory while it served a call."""


class AlreadyResolved(Signal):
    """The hold was resolved before; `row` is how (L4)."""

    def __init__(self, row: UsageRow) -> None:
        self.row = row
        super().__init__(f"hold {row.call_id} was resolved before: {row.outcome}")


class KeyClaimed(Signal):
    """Another hold has claimed this idempotency key; `remembered` says which (L9)."""

    def __init__(self, remembered: Remembered) -> None:
        self.remembered = remembered
        super().__init__(f"the idempotency key is claimed by {remembered.call_id}")
