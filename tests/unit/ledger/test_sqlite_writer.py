"""Group commit: one transaction for what waits, one answer for each (L6, L13)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import apsw
import pytest

from forebay.core.errors import StoreUnavailable
from forebay.ledger import sqlite_writer
from forebay.ledger.sqlite_writer import GroupCommit


class Bench:
    """A writer on an empty table, with a count of its commits."""

    def __init__(self) -> None:
        self.connection = apsw.Connection(":memory:")
        self.connection.execute("CREATE TABLE written (number INTEGER PRIMARY KEY)")
        self.commits = self.rollbacks = 0
        self.connection.set_commit_hook(self._committed)
        self.writer = GroupCommit(
            self.connection, asyncio.get_running_loop(), on_rollback=self._rolled_back
        )

    def _committed(self) -> bool:
        self.commits += 1
        return False

    def _rolled_back(self) -> None:
        self.rollbacks += 1

    def write(self, *numbers: int) -> Callable[[], str]:
        def operation() -> str:
            for number in numbers:
                self.connection.execute("INSERT INTO written VALUES (?)", (number,))
            return threading.current_thread().name

        return operation

    async def written(self) -> list[int]:
        statement = "SELECT number FROM written ORDER BY number"
        return await self.writer.submit(
            lambda: [number for (number,) in self.connection.execute(statement)]
        )


async def test_what_waits_together_is_committed_together_and_off_the_event_loop() -> None:
    bench = Bench()
    gate = threading.Event()
    held_up = bench.writer.submit(gate.wait)
    futures = [bench.writer.submit(bench.write(number)) for number in range(100)]
    gate.set()
    assert await asyncio.gather(*futures) == ["ledger-writer"] * 100
    assert await held_up is True
    assert bench.commits <= 2
    await bench.writer.close()


async def test_a_batch_is_bounded() -> None:
    bench = Bench()
    gate = threading.Event()
    count = 3 * sqlite_writer.MOST_PER_COMMIT
    futures = [bench.writer.submit(gate.wait)]
    futures += [bench.writer.submit(bench.write(number)) for number in range(count)]
    gate.set()
    await asyncio.gather(*futures)
    assert bench.commits >= 3
    assert len(await bench.written()) == count
    await bench.writer.close()


async def test_a_failing_operation_takes_back_only_its_own_writes() -> None:
    bench = Bench()
    operations = [bench.write(1), bench.write(2, 1), bench.write(3)]
    answers: list[Any] = await asyncio.gather(
        *map(bench.writer.submit, operations), return_exceptions=True
    )
    assert isinstance(answers[1], StoreUnavailable)
    assert "ConstraintError" in answers[1].message
    assert await bench.written() == [1, 3]
    assert bench.rollbacks == 2  # the batch's, then the one at fault's own
    await bench.writer.close()


async def test_an_error_that_is_not_the_stores_arrives_as_it_is() -> None:
    bench = Bench()

    def faulty() -> None:
        raise KeyError("price")

    with pytest.raises(KeyError, match="price"):
        await bench.writer.submit(faulty)
    await bench.writer.close()


async def test_a_commit_that_fails_answers_nobody_with_success() -> None:
    bench = Bench()
    bench.connection.set_commit_hook(lambda: True)  # turns COMMIT into a rollback
    with pytest.raises(StoreUnavailable):
        await bench.writer.submit(bench.write(1))
    bench.connection.set_commit_hook(None)
    assert await bench.written() == []
    await bench.writer.close()


async def test_a_caller_that_left_is_not_answered_but_served() -> None:
    bench = Bench()
    gate = threading.Event()
    bench.writer.submit(gate.wait)
    left = bench.writer.submit(bench.write(1))
    left.cancel()
    gate.set()
    assert await bench.written() == [1]
    await bench.writer.close()


async def test_more_waiting_operations_than_the_bound_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sqlite_writer, "MOST_WAITING", 10)
    bench = Bench()
    started, gate = threading.Event(), threading.Event()
    first = bench.writer.submit(lambda: started.set() or gate.wait())
    await asyncio.to_thread(started.wait)
    accepted = [bench.writer.submit(bench.write(number)) for number in range(9)]
    with pytest.raises(StoreUnavailable, match="too slow"):
        bench.writer.submit(bench.write(10))
    gate.set()
    await asyncio.gather(first, *accepted)
    await bench.writer.close()


async def test_close_commits_what_was_accepted_and_refuses_the_rest() -> None:
    bench = Bench()
    futures = [bench.writer.submit(bench.write(number)) for number in range(1_000)]
    await asyncio.gather(bench.writer.close(), bench.writer.close())
    assert all(future.done() and not future.exception() for future in futures)
    with pytest.raises(StoreUnavailable, match="closed"):
        bench.writer.submit(bench.write(1))


def test_a_loop_that_ended_first_does_not_stop_the_commit() -> None:
    async def leave() -> tuple[Bench, threading.Event]:
        bench, gate = Bench(), threading.Event()
        bench.writer.submit(gate.wait)
        bench.writer.submit(bench.write(7))
        return bench, gate

    bench, gate = asyncio.run(leave())
    gate.set()
    bench.writer._queue.put(None)
    bench.writer._thread.join(10)
    assert not bench.writer._thread.is_alive()
    assert bench.commits >= 1
