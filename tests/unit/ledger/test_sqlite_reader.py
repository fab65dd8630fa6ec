"""A reading thread of the SQLite ledger: it cannot keep a ledger from closing."""

from __future__ import annotations

import asyncio
import threading

import apsw
import pytest

from forebay.core.errors import StoreUnavailable
from forebay.ledger.sqlite_reader import Reader

ENDLESS = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"


async def test_closing_breaks_off_the_question_that_runs_and_refuses_those_behind_it() -> None:
    reader = Reader(apsw.Connection(":memory:"), "reader")
    begun = threading.Event()

    def endless(store: apsw.Connection) -> None:
        begun.set()
        store.execute(ENDLESS).fetchall()

    running = asyncio.ensure_future(reader.ask(endless))
    behind = asyncio.ensure_future(reader.ask(lambda store: threading.current_thread().name))
    await asyncio.to_thread(begun.wait)
    closing = asyncio.ensure_future(reader.close())
    with pytest.raises(StoreUnavailable, match="InterruptError"):
        await running
    with pytest.raises(StoreUnavailable, match="closed"):
        await behind
    await closing
    with pytest.raises(StoreUnavailable, match="closed"):
        await reader.ask(lambda store: None)
    await reader.close()


async def test_a_question_runs_on_its_own_thread_and_its_error_is_ours() -> None:
    reader = Reader(apsw.Connection(":memory:"), "reader")
    name = await reader.ask(lambda store: threading.current_thread().name)
    assert name.startswith("reader")
    with pytest.raises(StoreUnavailable, match="SQLError"):
        await reader.ask(lambda store: store.execute("SELECT nothing"))
    with pytest.raises(KeyError):
        await reader.ask(lambda store: {}["key"])
    await reader.close()
