"""Group commit: one thread, one connection, and whatever waits goes into one transaction.

A commit with `synchronous=FULL` waits for the disk, and costs the same for one operation as for a
hundred. So the writer takes all that waits, commits once, and only then answers: what was answered is
durable (L6, L13), and what could not be committed was not answered. Operations decide before they
write, so a refusal leaves nothing to undo; if one fails after it wrote, the transaction is rolled
back and each operation gets one of its own, so that the one at fault fails alone. Operations are handed over at once
when none was for 2 ms, else together at the end of these: waking the thread and a commit cost the
processor about 0.2 ms, which lone calls do not notice and a thousand a second would.

The thread shares the interpreter with the event loop. A loop that is never idle lets go of the
interpreter's lock only for the instant of a poll, and a thread that waits for it may never win that
race: measured, with Python's default interval of 5 ms, holds that took 25 s. An interval of 50 µs
makes the loop hand over (`system.share_the_interpreter`); the same load then answers in 25 ms (p99).

Not here: what an operation does (`sqlite_verbs`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

import apsw

from forebay.core.errors import StoreUnavailable

MOST_PER_COMMIT = 256  # bounds how long the first of a batch waits for the last
MOST_WAITING = 65_536  # about three operations for each of 20,000 live streams
LINGER_SECONDS = 0.002

# Nobody's fault: trying each operation alone would only wait for the store once more each time.
_STORE_FAILURES = (
    apsw.BusyError,
    apsw.LockedError,
    apsw.IOError,
    apsw.FullError,
    apsw.ReadOnlyError,
    apsw.CorruptError,
)

T = TypeVar("T")


class _Waiting(NamedTuple):
    operation: Callable[[], Any]
    future: asyncio.Future[Any]


class _Answer(NamedTuple):
    future: asyncio.Future[Any]
    result: Any
    error: Exception | None


class GroupCommit:
    """Used from one event loop; an operation runs in the writer's thread.

    An operation that was accepted is run, also when its caller does not wait any more.
    """

    def __init__(
        self,
        connection: apsw.Connection,
        loop: asyncio.AbstractEventLoop,
        *,
        on_rollback: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._loop = loop
        self._on_rollback = on_rollback
        self._queue: SimpleQueue[list[_Waiting] | None] = SimpleQueue()
        self._gathered: list[_Waiting] = []
        self._handed_over_at = 0.0  # in the loop's time
        self._waiting = 0
        self._ended: asyncio.Future[None] = loop.create_future()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="ledger-writer", daemon=True)
        self._thread.start()

    def submit(self, operation: Callable[[], T]) -> asyncio.Future[T]:
        """Have the operation committed; the future is its answer. Raises StoreUnavailable."""
        if self._closing:
            raise StoreUnavailable("The ledger is closed; nothing was charged.")
        if self._waiting >= MOST_WAITING:
            raise StoreUnavailable(
                "The ledger's disk is too slow for this load; nothing was charged."
            )
        future: asyncio.Future[T] = self._loop.create_future()
        self._waiting += 1
        self._gathered.append(_Waiting(operation, future))
        if len(self._gathered) == 1:
            due = max(self._loop.time(), self._handed_over_at + LINGER_SECONDS)
            self._loop.call_at(due, self._hand_over)
        return future

    def _hand_over(self) -> None:
        if self._gathered:
            gathered, self._gathered = self._gathered, []
            self._handed_over_at = self._loop.time()
            for start in range(0, len(gathered), MOST_PER_COMMIT):
                self._queue.put(gathered[start : start + MOST_PER_COMMIT])

    async def close(self) -> None:
        """Commit what was accepted, then close the connection. Idempotent."""
        if not self._closing:
            self._closing = True
            self._hand_over()
            self._queue.put(None)
        await asyncio.shield(self._ended)

    def _run(self) -> None:
        last = False
        while not last:
            batch, last = self._take()
            if batch:
                self._call(self._answer, self._commit(batch))
        try:
            self._connection.close()
        finally:
            self._call(_end, self._ended)

    def _take(self) -> tuple[list[_Waiting], bool]:
        """Wait for operations, then take what else is there; True if it is the last batch."""
        batch: list[_Waiting] = []
        gathered = self._queue.get()
        try:
            while gathered is not None:
                batch += gathered
                if len(batch) >= MOST_PER_COMMIT:
                    return batch, False
                gathered = self._queue.get_nowait()
        except Empty:
            return batch, False
        return batch, True

    def _commit(self, batch: list[_Waiting]) -> list[_Answer]:
        """One transaction for all. If one operation is at fault, one for each, so that it fails
        alone; a store that is locked, full or broken fails them all, once."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            answers = [self._perform(waiting) for waiting in batch]
            self._connection.execute("COMMIT")
        except Exception as error:
            self._abandon()
            if len(batch) > 1 and not isinstance(error, _STORE_FAILURES):
                return [answer for waiting in batch for answer in self._commit([waiting])]
            fault = translated(error)
            return [_Answer(waiting.future, None, fault) for waiting in batch]
        return answers

    def _perform(self, waiting: _Waiting) -> _Answer:
        """Run one operation; its refusal is an answer, a failure after it wrote is everybody's."""
        before = self._connection.total_changes()
        try:
            return _Answer(waiting.future, waiting.operation(), None)
        except Exception as error:
            if self._connection.total_changes() != before or not self._connection.in_transaction:
                raise
            return _Answer(waiting.future, None, translated(error))

    def _abandon(self) -> None:
        """Roll the batch back; a store that cannot even do that refuses the next batch as well."""
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            self._on_rollback()
        except apsw.Error:
            return

    def _answer(self, answers: list[_Answer]) -> None:
        """In the loop: what was committed is answered."""
        self._waiting -= len(answers)
        for future, result, error in answers:
            if future.done():
                continue  # its caller was cancelled
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

    def _call(self, callback: Callable[..., None], argument: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, argument)
        except RuntimeError:
            return  # the loop is closed: nobody waits any more, and what was committed stays


def translated(error: Exception) -> Exception:
    """Our error for the driver's; anything else as it is."""
    if not isinstance(error, apsw.Error):
        return error
    fault = StoreUnavailable(
        f"The ledger's store failed ({type(error).__name__}: {error}); nothing was charged."
    )
    fault.__cause__ = error
    return fault


def _end(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)
