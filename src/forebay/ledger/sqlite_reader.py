"""A thread with a connection that cannot write: questions to the SQLite ledger, off the event loop.

A question runs alone on its connection. The ledger has three such threads: for what calls ask, for
reports, which may take seconds, and for audits, which may take minutes. Closing breaks off the
question that is running.

Not here: the questions (`sqlite_reads`, `sqlite_audits`), writing (`sqlite_writer`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import apsw

from forebay.core.errors import StoreUnavailable
from forebay.ledger.sqlite_writer import translated

STEPS_BETWEEN_LOOKS = 50_000  # of SQLite's machine, so about a millisecond

T = TypeVar("T")


class Reader:
    """Asked from one event loop, by any number of its tasks."""

    def __init__(self, connection: apsw.Connection, name: str) -> None:
        self._connection = connection
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._closed = False
        connection.set_progress_handler(lambda: self._closed, STEPS_BETWEEN_LOOKS)

    async def ask(self, question: Callable[[apsw.Connection], T]) -> T:
        """The question's answer. Raises StoreUnavailable."""
        self._check_open()
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, self._run, question)
        except apsw.Error as error:
            raise translated(error) from error

    def _run(self, question: Callable[[apsw.Connection], T]) -> T:
        self._check_open()  # it may have waited behind one that was broken off
        return question(self._connection)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("The ledger is closed.")

    async def close(self) -> None:
        """Idempotent."""
        if not self._closed:
            self._closed = True
            self._thread.submit(self._connection.close)
            await asyncio.to_thread(self._thread.shutdown)
