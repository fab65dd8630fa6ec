"""What the processes of a simulated installation share, and the rooms as each of them sees them.

Not here: the world (`world.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.admission.memory import MemoryAdmission
from forebay.pipeline.resolve import Resolver
from forebay.pipeline.rooms import Rooms
from forebay.pipeline.turns import CallTurns
from forebay.queue.memory import MemoryQueue
from forebay.stream.memory import MemoryStream
from forebay.testing.loop import spawn
from forebay.testing.watched_admission import WatchedAdmission
from forebay.testing.watched_queue import WatchedQueue

if TYPE_CHECKING:
    from forebay.testing.world import World


class Fabric:
    """What the processes of one installation share besides the ledger."""

    def __init__(self, world: World) -> None:
        settings = world.scenario.queue
        self.queue = WatchedQueue(MemoryQueue(settings, world.clock), settings)
        self.stream = MemoryStream(world.clock)
        admission = MemoryAdmission(world.scenario.admission, world.clock, world.ids)
        self.admission = WatchedAdmission(admission, world.clock)

    def rooms(self, world: World) -> Rooms:
        """The rooms as a process sees them."""
        remember = CallTurns(
            world.conversations,
            world.turns,
            world.store,
            world.reporter,
            world.ids,
            world.scenario.conversation,
        )
        return Rooms(
            tenancy=world.tenancy,
            admission=self.admission,
            catalog=world.catalog,
            conversations=world.conversations,
            turns=world.turns,
            logs=world.logs,
            summaries=world.summaries,
            files=world.files,
            blobs=world.blobs,
            batches=world.batches,
            tokens=world.tokens,
            ledger=world.store,
            queue=self.queue,
            stream=self.stream,
            clock=world.clock,
            ids=world.ids,
            spawn=spawn,
            report=world.reporter,
            resolve=Resolver(world.store, spawn, world.reporter, concluded=remember.concluded),
            remember=remember,
        )
