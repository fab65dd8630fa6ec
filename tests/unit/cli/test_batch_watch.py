from __future__ import annotations

from typing import Any

import pytest

from forebay.cli.answering import Refused, Target
from forebay.cli.batch_watch import INTERVAL_SECONDS, PATIENCE_SECONDS, Look, Pace, watch
from forebay.cli.batching import Batch, batch_of
from forebay.cli.failure import Failure
from forebay.testing.clock import FakeClock
from tests.unit.cli.batch_server import KEY, BatchServer, a_batch, serving

HERE = Target("http://host", KEY)


def batch(*state: Any, **more: Any) -> Batch:
    return batch_of(HERE, a_batch(*state, **more))


class Watching:
    """Somebody who watches in no time: each pause moves the clock."""

    def __init__(self, pause_seconds: float = INTERVAL_SECONDS) -> None:
        self.looks: list[Look] = []
        self.pauses: list[float] = []
        self._pause_seconds = pause_seconds
        self._clock = FakeClock()

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self._clock.advance(self._pause_seconds)

    async def watch(self, target: Target, first: Batch) -> Batch:
        return await watch(target, first, self.looks.append, self._clock, self.pause)


@pytest.mark.parametrize("ending", ["completed", "failed", "expired", "cancelled"])
async def test_a_batch_is_watched_until_it_has_ended(ending):
    server = BatchServer(a_batch("in_progress", 4), a_batch("finalizing", 10), a_batch(ending, 10))
    watching = Watching()
    async with serving(server) as target:
        last = await watching.watch(target, batch("validating"))
    seen = [(look.batch.status, look.batch.done) for look in watching.looks]
    assert seen == [("validating", 0), ("in_progress", 4), ("finalizing", 10), (ending, 10)]
    assert (last.status, server.seen) == (ending, 3)
    assert watching.pauses == [INTERVAL_SECONDS] * 3


async def test_one_that_has_ended_is_looked_at_once():
    watching = Watching()
    last = await watching.watch(HERE, batch("completed", 10))
    assert [look.batch for look in watching.looks] == [last]


async def test_a_server_that_is_started_again_is_waited_for():
    """It hangs up, is not there for its proxy, has too much to do, and goes on."""
    server = BatchServer(
        a_batch("in_progress", 2), None, 502, 429, a_batch("in_progress", 4), a_batch("completed")
    )
    watching = Watching()
    async with serving(server) as target:
        last = await watching.watch(target, batch("in_progress"))
    assert last.status == "completed"
    *before, fourth, ended = watching.looks
    assert [look.batch.done for look in (*before[:2], fourth)] == [0, 2, 4]
    assert not any(look.trouble for look in (*before[:2], fourth, ended))
    assert len(before[2:]) >= 2, "a client may ask once more by itself where a server hangs up"
    assert all(look.trouble and look.batch.done == 2 for look in before[2:]), "what was seen stays"


async def test_a_server_that_does_not_come_back_is_given_up():
    async with serving(BatchServer(a_batch())) as gone:
        pass
    watching = Watching(PATIENCE_SECONDS / 4)
    with pytest.raises(Failure, match="Cannot connect"):
        await watching.watch(gone, batch("in_progress", 1))
    assert len(watching.looks) == 5
    assert all(look.trouble for look in watching.looks[1:])


@pytest.mark.parametrize("status", [401, 404])
async def test_a_server_that_says_no_is_not_asked_again(status):
    server = BatchServer(status)
    async with serving(server) as target:
        with pytest.raises(Refused):
            await Watching().watch(target, batch("in_progress"))
    assert server.seen == 1


def test_rates_are_of_the_last_minute():
    pace = Pace()
    slow = [pace.look(batch("in_progress", 1), at) for at in (0.0, 30.0)]
    assert all(look.left_seconds is look.output_tokens_per_second is None for look in slow)
    # Three lines in the minute from 30 s on, seven to go.
    look = pace.look(batch("in_progress", 4), 90.0)
    assert look.output_tokens_per_second == pytest.approx(300 / 60)
    assert look.left_seconds == pytest.approx(6 / (3 / 60))
    # What was before the last minute counts no more.
    look = pace.look(batch("in_progress", 5), 150.0)
    assert look.left_seconds == pytest.approx(5 / (1 / 60))
    assert pace.look(batch("in_progress", 5), 211.0).left_seconds is None


def test_time_before_the_work_is_no_time_of_work():
    pace = Pace()
    pace.look(batch("validating"), 0.0)
    pace.look(batch("in_progress", 0), 50.0)
    look = pace.look(batch("in_progress", 5), 52.0)
    assert look.left_seconds == pytest.approx(2.0)
    ended = pace.look(batch("completed", 10), 54.0)
    assert (ended.output_tokens_per_second, ended.left_seconds) == (None, None)
