"""Worlds with batches, and how they are judged: each batch is compared with its two files, with the
ledger, and with what the engines made.

Not here: what is asked of them (`test_batches.py`, `test_batch_faults.py`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from forebay.batch import BatchSettings, WrongWay
from forebay.core.batch import Batch, BatchOrder, BatchState, StoredFile
from forebay.core.call import Message
from forebay.core.errors import StoreUnavailable
from forebay.core.usage import Outcome
from forebay.engine.script import Performance
from forebay.pipeline.batch import BatchLane
from forebay.testing.flaky import FlakyBatches
from forebay.testing.plain_lines import Asked, Told
from forebay.testing.plans import Plan, Scenario, Seen
from forebay.testing.watched import peek
from forebay.testing.world import MODEL, QUIET_SECONDS, Topology, World

SETTINGS = BatchSettings(window_items=6, running_per_key=2)


class Batchery(World):
    """A machine with up to four batches."""

    # Four engines that hang before the first token of a line.
    quiet_seconds = 2 * QUIET_SECONDS
    windows_seconds = (3, 20, 150, 150)

    def __init__(self, seed: int, scenario: Scenario) -> None:
        super().__init__(seed, Topology.MACHINE, scenario)
        self.store_of_batches = self.batches
        if self.scenario.store_failures:
            share = self.scenario.store_failures
            self.batches = FlakyBatches(self.batches, self.random, share=share)
        self.ordered: list[str] = []
        self.ended: Counter[BatchState] = Counter()
        self.lines: Counter[str] = Counter()
        self.repeated = 0

    # -- what is ordered ---------------------------------------------------------------------------

    def asked(self, number: int) -> Asked:
        chance = self.random.random
        length = self.random.choice((1, 3, 10, 30, 60))
        fault = ""
        if chance() < 0.03:
            fault = f" crash_at={self.random.randint(0, length)}"
        elif chance() < 0.03:
            fault = f" hang_at={self.random.randint(0, length)}"
        prompt = f"line-{number} [[script length={length}{fault}]]"
        most = self.random.choice((None, 5, 40, 2_000))  # the last is more than fits
        return Asked(f"id-{number}", prompt, most, seed=7 if chance() < 0.3 else None)

    async def order(
        self, tenant: int, asked: list[Asked], window_seconds: int, foot: bytes = b""
    ) -> Batch:
        """One of a file of these lines, and of whatever is below them."""
        scopes, id_ = self.principals[tenant].scopes, f"batch_{len(self.ordered)}"
        content = b"\n".join(map(msgspec.json.encode, asked)) + foot
        async with self.blobs.create(f"file-{id_}") as upload:
            await upload.write(content)
            await upload.commit()
        now = self.clock.now()
        facts = ("batch", "in.jsonl", upload.size_bytes, upload.sha256, now)
        await self.files.add(StoredFile(f"file-{id_}", scopes.organisation_id, *facts))
        order = BatchOrder(f"file-{id_}", "/plain", f"{window_seconds}s", window_seconds)
        validating = BatchState.VALIDATING
        batch = Batch(id_, scopes, order, validating, now, now + window_seconds, {})
        self.ordered.append(id_)
        return await self.store_of_batches.create(batch)

    def _begin(self, batch: Batch) -> None:
        """Tell the process of it, if there is one; else the next finds it."""

        async def begin(lane: BatchLane) -> None:
            lane.begin(batch)

        for process, lane in self.lanes.items():
            self.loop.start(process, begin(lane))

    async def _patrons(self) -> None:
        for _ in range(self.random.randint(1, 4)):
            await asyncio.sleep(self.random.uniform(0, 4))
            size = self.random.choice((1, 8, 25))
            asked = [self.asked(each) for each in range(size)]
            window = self.random.choice(self.windows_seconds)
            batch = await self.order(self.random.randrange(3), asked, window)
            self._begin(batch)
            if self.random.random() < 0.3:
                self.loop.start("patron", self._canceller(batch))
        if self.random.random() < 0.15:
            await asyncio.sleep(self.random.uniform(0, 10))
            self.revoked.add(f"key{self.random.randrange(3)}")

    async def _canceller(self, batch: Batch) -> None:
        await asyncio.sleep(self.random.uniform(0, 12))
        for _ in range(40):
            await asyncio.sleep(0.2)
            for process, lane in list(self.lanes.items()):
                self.loop.start(process, self._cancel(lane, batch))

    async def _cancel(self, lane: BatchLane, batch: Batch) -> None:
        try:
            await lane.cancel(batch)
        except (WrongWay, StoreUnavailable):
            return

    async def _clients(self) -> None:
        self.loop.start("patron", self._patrons())
        await super()._clients()

    # -- judgement -----------------------------------------------------------------------------------

    def _judge_quiet(self) -> None:
        super()._judge_quiet()
        for id_ in self.ordered:
            self._judge_batch(self.files_and_batches.batches[id_])
        rows = self.ledger.rows.values()
        self.repeated = sum(r.attempt > 1 for r in rows if r.call_id.startswith("batch_req"))

    def _told(self, batch: Batch, id: str | None) -> list[Told]:
        if id is None:
            return []
        file = peek(self.files.find(batch.scopes.organisation_id, id))
        content = b"".join(self.blobs._contents[file.id].splitlines(keepends=True))
        return [msgspec.json.decode(line, type=Told) for line in content.splitlines()]

    def _judge_batch(self, batch: Batch) -> None:
        assert batch.state.is_ended, f"B11: {batch.id} is {batch.state}"
        self.ended[batch.state] += 1
        content = self.blobs._contents[batch.order.input_file_id]
        lines = [line for line in content.splitlines() if line]
        asked = [msgspec.json.decode(line, type=Asked) for line in lines]
        prefix = f"batch_req_{batch.id.removeprefix('batch_')}_"
        rows = {id_: row for id_, row in self.ledger.rows.items() if id_.startswith(prefix)}
        paid = sum(row.amount_nanos for row in rows.values())
        assert paid == batch.spent.amount_nanos, "B11: charged is what the batch says"
        if not batch.counts.total:  # ended before it was accepted
            assert not rows, "B10: something ran"
            return
        answers = self._told(batch, batch.output_file_id)
        errors = self._told(batch, batch.error_file_id)
        told = sorted(each.id for each in (*answers, *errors))
        assert told == sorted(each.id for each in asked), "B11: one outcome for each line"
        assert batch.counts.total == len(asked)
        assert batch.counts.completed == len(answers), "B3"
        assert batch.counts.failed == sum(bool(each.fault) for each in errors), "B3"
        unrun = [each for each in errors if each.unrun]
        assert all(each.unrun == batch.state for each in unrun)
        assert not unrun or batch.state is not BatchState.COMPLETED, "B14"
        prompts = {each.id: each.prompt for each in asked}
        for each in answers:
            row = rows.pop(each.call_id)
            assert row.outcome is Outcome.COMPLETED, "B4"
            assert row.usage.output_tokens == each.output_tokens, "B11"
            self._judge_text(each, prompts[each.id])
        assert not any(row.amount_nanos for row in rows.values()), "B11: charged without an answer"
        self.lines["answered"] += len(answers)
        self.lines["failed"] += batch.counts.failed
        self.lines["unrun"] += len(unrun)

    def _judge_text(self, told: Told, prompt: str) -> None:
        """E8: whatever befell it, the text of an undisturbed run."""
        ids = peek(self.tokens.render(MODEL.id, [Message("user", prompt)])).ids
        undisturbed = Performance(ids)
        decoder = self.tokens.decoder(MODEL.id, ())
        pieces = [decoder.push(undisturbed.token(n)).text for n in range(told.output_tokens)]
        assert told.text == "".join(pieces) + decoder.finish(), "not the undisturbed text"


class Patient(Batchery):
    """Its stores fail so often that a batch takes hours.

    A client that waits is told of a failure after four tries to settle, of which one may have been
    stored: with stores like these that happens, and is not about batches.
    """

    windows_seconds = (20, 2_000, 20_000)

    async def _clients(self) -> None:
        await super()._clients()
        await asyncio.sleep(30.0)  # all are ordered
        async with asyncio.timeout(100_000):
            batches = self.files_and_batches.batches
            while not all(each.state.is_ended for each in batches.values()):  # noqa: ASYNC110
                await asyncio.sleep(10.0)

    def _judge(self, seen: Seen) -> None:
        if seen.failed is None or not isinstance(seen.failed.error, StoreUnavailable):
            super()._judge(seen)


# A world has calls of its own unless it is given some: one that is no matter.
IDLE = (Plan("req_000", 1, 0.1, "Go [[script length=1]]", max_tokens=1),)


class Quiet(Batchery):
    """Nobody dies, and nothing happens but these calls and a story, which begins when all is up."""

    def __init__(
        self,
        story: Callable[[Quiet], Awaitable[None]],
        settings: BatchSettings = SETTINGS,
        plans: Sequence[Plan] = IDLE,
    ) -> None:
        super().__init__(1, Scenario(plans=plans, fate=False, batch=settings))
        self._story = story

    async def _clients(self) -> None:
        await asyncio.gather(World._clients(self), self._live())

    async def _live(self) -> None:
        await asyncio.sleep(1.0)
        await self._story(self)

    @property
    def lane(self) -> BatchLane:
        (lane,) = self.lanes.values()
        return lane

    def row(self, batch: Batch) -> Batch:
        """As it is by now."""
        return self.files_and_batches.batches[batch.id]

    async def begin(
        self,
        tenant: int,
        lines: int,
        *,
        seconds: int = 2_000,
        length: int = 9,
        foot: bytes = b"",
    ) -> Batch:
        """A batch of so many lines, each of so many tokens, ordered and begun."""
        script = f"[[script length={length}]]"
        asked = [Asked(f"id-{n}", f"line-{n} {script}", length + 11) for n in range(lines)]
        batch = await self.order(tenant, asked, seconds, foot)
        self._begin(batch)
        return batch

    async def until(self, happened: Callable[[], bool], seconds: float = 600.0) -> None:
        """Raises TimeoutError if it does not."""
        async with asyncio.timeout(seconds):
            while not happened():  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    async def end(self, batch: Batch, seconds: float = 600.0) -> Batch:
        """It, when it has ended. Raises TimeoutError if it does not."""
        await self.until(lambda: self.row(batch).state.is_ended, seconds)
        return self.row(batch)

    def restart(self) -> None:
        """kill -9, and the next process."""
        for process in list(self.alive):
            self.kill(process)
        self._start("machine")
