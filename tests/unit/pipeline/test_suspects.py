"""The line of those that may have killed an engine."""

from __future__ import annotations

import asyncio

from forebay.core.job import Flow, Job, Lane, Lease, Sampling
from forebay.pipeline.run import Interruption, Run
from forebay.pipeline.suspects import Suspects

JOB = Job(
    id="req_1",
    attempt=1,
    owner="gw",
    pool="m",
    model="m",
    flow=Flow(Lane.INTERACTIVE, "org", "proj"),
    weight=1,
    prompt_ids=(1,),
    ceiling_tokens=10,
    sampling=Sampling(),
    streamed=True,
    resumable=True,
)


class Line:
    """So many runs that asked for their turn, in this order."""

    def __init__(self, count: int) -> None:
        self.suspects = Suspects()
        self.runs = [
            Run(Lease(JOB, "w", n, 0.0, 0.0), started_at=0.0, order=n) for n in range(count)
        ]
        self.tasks = [asyncio.create_task(self.suspects.turn(run)) for run in self.runs]

    async def returned(self) -> list[int]:
        for _ in range(5):
            await asyncio.sleep(0)
        return [n for n, task in enumerate(self.tasks) if task.done()]


async def test_each_waits_until_the_one_before_is_cleared() -> None:
    line = Line(3)
    assert await line.returned() == [0]
    line.suspects.cleared(line.runs[1])  # not first: nothing happens
    assert await line.returned() == [0]
    for number in range(3):
        line.suspects.cleared(line.runs[number])
        line.suspects.cleared(line.runs[number])
        assert await line.returned() == list(range(min(number + 2, 3)))
    await line.suspects.turn(Run(Lease(JOB, "w", 9, 0.0, 0.0), started_at=0.0, order=9))


async def test_who_is_interrupted_leaves_the_line_and_holds_nobody_up() -> None:
    line = Line(4)
    await line.returned()
    line.runs[1].interrupt(Interruption.ABANDONED)
    assert await line.returned() == [0, 1]
    line.suspects.cleared(line.runs[1])
    assert await line.returned() == [0, 1], "it was not first"
    line.suspects.cleared(line.runs[0])
    line.runs[2].interrupt(Interruption.PREEMPTED)  # in the moment in which it was woken
    assert await line.returned() == [0, 1, 2, 3]
    assert line.runs[3].interruption is None


async def test_a_task_that_is_cancelled_in_line_holds_nobody_up() -> None:
    line = Line(3)
    await line.returned()
    line.tasks[1].cancel()
    await line.returned()
    line.suspects.cleared(line.runs[0])
    assert await line.returned() == [0, 1, 2]
