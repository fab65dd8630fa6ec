"""Streams inside one process: a deque and at most one waiting future for each open stream.

`publish` appends and wakes the reader; no task and no queue stands between them. A reader that has
several events ready gets them one after the other without going through the event loop.

A stream that is abandoned still hands its reader what was buffered, then one Failed that says why
(T2); what its worker learns is kept for a while, because the worker may not have looked yet.

Not here: a process boundary between the two (another backend's business).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Sequence

from forebay.core.clock import Clock
from forebay.core.errors import (
    ClientTooSlow,
    ForebayError,
    InternalError,
    ReaderGone,
    ShuttingDown,
    StreamGap,
)
from forebay.core.event import (
    Abandonment,
    AbandonReason,
    Delta,
    Failed,
    Finished,
    LeaseExpired,
    StreamEvent,
)
from forebay.core.job import Job
from forebay.stream.contract import TokenStream

# T4: beats come once a second, so this is two lost ones and some delay.
OWNER_SILENT_SECONDS = 3.0
# Abandonments kept for workers that have not asked yet; they ask within a second of their lease.
_KEPT_ABANDONMENTS = 4096


class _Channel:
    """One job's stream. `backlog` is what the reader has not taken; `attempt` the newest seen."""

    __slots__ = (
        "attempt", "backlog", "backlog_bytes", "backlog_tokens", "closed", "confirmed_tokens", "gap",
        "job_id", "owner", "sequence", "waiter", "watchers",
    )  # fmt: skip

    def __init__(self, job: Job) -> None:
        self.job_id = job.id
        self.owner = job.owner
        self.attempt = job.attempt
        self.sequence = job.resume.sequence
        self.backlog: deque[StreamEvent] = deque()
        self.backlog_tokens = 0
        self.backlog_bytes = 0
        self.confirmed_tokens = 0
        self.gap = False
        # No more events are taken in: a terminal one is in the backlog, or was taken.
        self.closed = False
        self.waiter: asyncio.Future[None] | None = None
        self.watchers: list[asyncio.Future[Abandonment]] = []

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


class _Reader:
    """The one reader of a channel; used by one task at a time."""

    __slots__ = ("_channel", "_ended", "_stream")

    def __init__(self, stream: MemoryStream, channel: _Channel) -> None:
        self._stream = stream
        self._channel = channel
        self._ended = False

    def __aiter__(self) -> _Reader:
        return self

    async def __anext__(self) -> StreamEvent:
        channel = self._channel
        while not self._ended and not channel.backlog:
            if channel.gap:
                raise StreamGap(f"job {channel.job_id}: no event {channel.sequence + 1}")
            await self._arrival(channel)
        if self._ended:
            raise StopAsyncIteration
        return self._take(channel)

    def ready(self) -> StreamEvent | None:
        return self._take(self._channel) if self._channel.backlog and not self._ended else None

    def _take(self, channel: _Channel) -> StreamEvent:
        event = channel.backlog.popleft()
        if type(event) is Delta:
            channel.backlog_tokens -= _weight(event)
            channel.backlog_bytes -= _text_bytes(event)
            channel.confirmed_tokens += len(event.token_ids)
        elif isinstance(event, Finished | Failed):
            self._ended = True
            self._stream._forget(channel)
        return event

    async def aclose(self) -> None:
        """Stop reading. Before the terminal event was published, this abandons the job."""
        if not self._ended:
            self._ended = True
            self._stream._abandon(self._channel, AbandonReason.CLIENT_GONE)
            self._stream._forget(self._channel)

    async def _arrival(self, channel: _Channel) -> None:
        # An event is only ever taken by the code after this wait, so cancelling it loses nothing.
        if channel.waiter is not None:
            raise RuntimeError(f"job {channel.job_id} is read by two tasks at once")
        channel.waiter = asyncio.get_running_loop().create_future()
        try:
            await channel.waiter
        finally:
            channel.waiter = None


class MemoryStream(TokenStream):
    """Owned by one process; any number of tasks of its event loop.

    `max_tokens` and `max_bytes` (of text) bound what one reader may leave unread (T3).
    """

    def __init__(self, clock: Clock, *, max_tokens: int = 4096, max_bytes: int = 262_144) -> None:
        if max_tokens < 1 or max_bytes < 1:
            raise ValueError("a stream's bounds are at least one token and one byte")
        self._clock = clock
        self._max_tokens = max_tokens
        self._max_bytes = max_bytes
        self._channels: dict[str, _Channel] = {}
        self._owners: dict[str, dict[str, _Channel]] = {}
        self._seen: dict[str, float] = {}
        self._heard_at = clock.monotonic()
        self._abandonments: OrderedDict[str, Abandonment] = OrderedDict()

    def read(self, job: Job) -> _Reader:
        if job.id in self._channels:
            raise RuntimeError(f"job {job.id} has a reader already")
        channel = self._channels[job.id] = _Channel(job)
        self._owners.setdefault(job.owner, {})[job.id] = channel
        self._seen[job.owner] = self._clock.monotonic()
        self._abandonments.pop(job.id, None)
        return _Reader(self, channel)

    async def publish(self, job: Job, attempt: int, events: Sequence[StreamEvent]) -> None:
        channel = self._channels.get(job.id)
        if channel is None or channel.closed:
            raise ReaderGone
        if attempt < channel.attempt:
            return  # T1: a worker that lost its lease and does not know it yet
        channel.attempt = attempt
        for event in events:
            if not self._append(channel, event):
                break
        channel.wake()
        if channel.job_id in self._abandonments:
            raise ReaderGone

    async def fail(self, job_id: str, error: ForebayError) -> None:
        channel = self._channels.get(job_id)
        if channel is not None and not channel.closed:
            self._append(channel, Failed(channel.sequence + 1, channel.attempt, error))
            channel.wake()

    async def notify(self, job: Job, event: LeaseExpired) -> bool:
        channel = self._channels.get(job.id)
        if channel is None or channel.closed:
            return False
        if event.attempt >= channel.attempt:
            # From here on that attempt is an older one: its worker may still be alive, but the
            # owner is about to resume from what it has read so far.
            channel.attempt = event.attempt + 1
            channel.backlog.append(event)
            channel.wake()
        return True

    async def abandon(self, job_id: str, reason: AbandonReason) -> None:
        channel = self._channels.get(job_id)
        if channel is not None:
            self._abandon(channel, reason)

    def abandoned(self, job: Job) -> asyncio.Future[Abandonment]:
        future: asyncio.Future[Abandonment] = asyncio.get_running_loop().create_future()
        channel = self._channels.get(job.id)
        if channel is not None and not channel.closed:
            channel.watchers = [each for each in channel.watchers if not each.done()]
            channel.watchers.append(future)
            return future
        confirmed = 0 if channel is None else channel.confirmed_tokens
        gone = Abandonment(AbandonReason.CLIENT_GONE, confirmed)
        future.set_result(self._abandonments.get(job.id, gone))
        return future

    async def presence(self, process: str) -> None:
        now = self._clock.monotonic()
        if now - self._heard_at >= OWNER_SILENT_SECONDS:
            # Nobody beat for so long: this whole machine was stopped, and no owner is to blame.
            self._seen = dict.fromkeys(self._seen, now)
        self._heard_at = now
        self._seen[process] = now
        silent = [each for each, at in self._seen.items() if now - at >= OWNER_SILENT_SECONDS]
        for each in silent:
            del self._seen[each]
            for channel in list(self._owners.get(each, {}).values()):
                self._abandon(channel, AbandonReason.OWNER_GONE)

    def open_streams(self, owner: str) -> int:
        """How many streams of this process are open, for whoever wants to know that none leaked."""
        return len(self._owners.get(owner, ()))

    # -- one channel ------------------------------------------------------------------------------

    def _append(self, channel: _Channel, event: StreamEvent) -> bool:
        """Take an event in; False if the stream takes no more (T1, T2, T3)."""
        if channel.closed or isinstance(event, LeaseExpired):
            return not channel.closed
        if event.sequence <= channel.sequence:
            return True  # T1: a repeat
        if event.sequence != channel.sequence + 1 or channel.gap:
            channel.gap = True
            return False
        if type(event) is Delta:
            tokens = channel.backlog_tokens + _weight(event)
            text_bytes = channel.backlog_bytes + _text_bytes(event)
            if channel.backlog and (tokens > self._max_tokens or text_bytes > self._max_bytes):
                self._abandon(channel, AbandonReason.CLIENT_TOO_SLOW)
                return False
            channel.backlog_tokens, channel.backlog_bytes = tokens, text_bytes
        elif isinstance(event, Finished | Failed):
            channel.closed = True
        channel.sequence = event.sequence
        channel.backlog.append(event)
        return True

    def _abandon(self, channel: _Channel, reason: AbandonReason) -> None:
        """End the stream unless it has ended: tell its workers, and its reader if it still reads."""
        if channel.closed:
            return
        gone = Abandonment(reason, channel.confirmed_tokens)
        self._abandonments[channel.job_id] = gone
        if len(self._abandonments) > _KEPT_ABANDONMENTS:
            self._abandonments.popitem(last=False)
        for watcher in channel.watchers:
            if not watcher.done():
                watcher.set_result(gone)
        channel.watchers.clear()
        channel.closed, channel.gap = True, False
        channel.sequence += 1
        channel.backlog.append(Failed(channel.sequence, channel.attempt, _error(reason)))
        channel.wake()

    def _forget(self, channel: _Channel) -> None:
        """Its reader has what it wanted; later publishers are told that it is gone."""
        del self._channels[channel.job_id]
        owned = self._owners[channel.owner]
        del owned[channel.job_id]
        if not owned:
            del self._owners[channel.owner]


def _weight(event: Delta) -> int:
    """A delta's part of the token bound; an empty one is not free, or they could pile up."""
    return len(event.token_ids) or 1


def _text_bytes(event: Delta) -> int:
    text = event.text
    return len(text) if text.isascii() else len(text.encode())


def _error(reason: AbandonReason) -> ForebayError:
    if reason is AbandonReason.CLIENT_TOO_SLOW:
        return ClientTooSlow()
    if reason is AbandonReason.SHUTDOWN:
        return ShuttingDown()
    return InternalError(f"The stream of this call was abandoned ({reason}).")
