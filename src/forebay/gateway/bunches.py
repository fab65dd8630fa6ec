"""Iterate an async generator in bunches: what is ready together leaves together.

While the reader of a stream was busy, several events may have piled up. Written one by one each
would cost a wake-up and a system call. An async generator cannot be asked whether its next item is
ready, but its `__anext__` can be *started*: either it answers without waiting, or it hands out the
future that it waits for. In that case the bunch so far is delivered first and the started step is
finished by the next call. No task, no queue, nothing per event but the step itself.

Not here: what the events are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")

# Bounds one write (about 64 chunks of 250 bytes) and the time the event loop is not given back.
MAX_BUNCH = 64


class _Rest(Generic[T]):
    """Awaits the rest of a step that was started by hand and gave out `waiting_for`.

    `cancelled`: instead of waiting, throw a cancellation in, and see the step to its end.
    """

    __slots__ = ("_cancelled", "_step", "_waiting_for")

    def __init__(
        self, step: Coroutine[Any, Any, T], waiting_for: Any, *, cancelled: bool = False
    ) -> None:
        self._step = step
        self._waiting_for = waiting_for
        self._cancelled = cancelled

    def cancelled(self) -> _Rest[T]:
        """The same rest, to be awaited for its end only."""
        return _Rest(self._step, self._waiting_for, cancelled=True)

    def __await__(self) -> Generator[Any, Any, T]:
        step, waiting_for = self._step, self._waiting_for
        sent: Any = None
        thrown: BaseException | None = asyncio.CancelledError() if self._cancelled else None
        if waiting_for is not None:
            # Tells the task that this future was awaited. It was set when the step gave the
            # future out, but another task awaiting the same one may have cleared it since.
            waiting_for._asyncio_future_blocking = True
        while True:
            if thrown is None:
                try:
                    sent = yield waiting_for
                except BaseException as fault:
                    thrown = fault
            try:
                waiting_for = step.send(sent) if thrown is None else step.throw(thrown)
            except StopIteration as done:
                value: T = done.value
                return value
            thrown = None


class Bunches(Generic[T]):
    """One reader's view of a generator. Must be closed; closing it closes the generator.

    An error of the generator is raised after the items that came before it were delivered.
    """

    __slots__ = ("_ended", "_error", "_events", "_rest")

    def __init__(self, events: AsyncGenerator[T, None]) -> None:
        self._events = events
        self._rest: _Rest[T] | None = None
        self._error: BaseException | None = None
        self._ended = False

    async def next(self) -> list[T]:
        """At least one item, with all that are ready behind it; empty only at the end."""
        if self._error is not None:
            error, self._error = self._error, None
            self._ended = True
            raise error
        if self._ended:
            return []
        rest, self._rest = self._rest, None
        try:
            bunch = [await (self._events.__anext__() if rest is None else rest)]
        except StopAsyncIteration:
            self._ended = True
            return []
        while len(bunch) < MAX_BUNCH and self._start_next(bunch):
            pass
        return bunch

    async def drain(self) -> None:
        """Run the generator to its end; for when only its own cleaning up is left."""
        while await self.next():
            pass

    async def aclose(self) -> None:
        """Close the generator now, also in the middle of a started step."""
        rest, self._rest = self._rest, None
        task = asyncio.current_task()
        before = task.cancelling() if task is not None else 0
        if rest is not None:
            try:
                await rest.cancelled()
            except StopAsyncIteration:
                pass
            except asyncio.CancelledError:
                if task is not None and task.cancelling() > before:
                    raise  # not the one we threw in
        await self._events.aclose()

    def _start_next(self, bunch: list[T]) -> bool:
        """Start one more step; whether it was ready."""
        step: Coroutine[Any, Any, T] = self._events.__anext__()
        try:
            waiting_for = step.send(None)
        except StopIteration as ready:
            bunch.append(ready.value)
            return True
        except StopAsyncIteration:
            self._ended = True
        except BaseException as error:
            self._error = error
        else:
            self._rest = _Rest(step, waiting_for)
        return False
