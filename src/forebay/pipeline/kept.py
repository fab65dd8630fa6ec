"""Calls with an Idempotency-Key: asked again, they are not run again.

A keyed call has its own task, which walks it (`interactive.py`) and writes its events into a log; its
client reads the log. So the call does not end with its client, and whoever sends the same key with the
same request reads the same log from the first event.

       first request             Finished, settled
    ─────────────────▶ RUNNING ─────────────────────▶ ANSWERED   in the ledger, for 24 hours
                          │ refused, failed, or no reader for `detach_seconds`
                          └────────────────────────▶ forgotten: the key is as new

- The ledger decides whose a key is, in the hold's transaction (L9), and keeps the answer in the
  settlement's: an answer is told again only if it was settled, and the other way round.
- A call without readers is stopped as if its client had left: what was generated is charged, and a
  later request with its key is a new call.
- A request that finds its key's call costs its own knock and nothing else: no tokens of a limit, no
  money and no place in the queue.

Not here: the walk itself, what is stored (`kept_answer.py`), the header (`forebay.gateway`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from forebay.core.call import Call
from forebay.core.errors import IdempotencyKeyInUse
from forebay.core.event import Admitted, CallEvent, Finished
from forebay.core.hold import Claim
from forebay.pipeline.kept_answer import key_refusal, told_again
from forebay.pipeline.rooms import Rooms
from forebay.stream import EventLog

Walk = Callable[[Call], AsyncGenerator[list[CallEvent], None]]
Name = tuple[str, str]
"""An organisation and a key of its own."""


@dataclass(frozen=True, slots=True)
class IdempotencySettings:
    """How long a keyed call outlives its client, and how much is kept of the answers."""

    detach_seconds: float = field(
        default=30.0,
        metadata={
            "help": "How long a call with an Idempotency-Key runs on after its client has left, for "
            "the client to come back to it; then it is stopped and charged as any other."
        },
    )
    kept_bytes: int = field(
        default=256 * 1024 * 1024,
        metadata={
            "help": "Most bytes of answers that are kept for their keys (24 hours each); beyond, "
            "the oldest are forgotten."
        },
    )

    def __post_init__(self) -> None:
        if not 0 <= self.detach_seconds < float("inf"):
            raise ValueError(f"idempotency.detach_seconds is {self.detach_seconds}; use 0 or more")
        if self.kept_bytes < 0:
            raise ValueError(f"idempotency.kept_bytes is {self.kept_bytes}; use 0 or more")


class _Kept:
    """One running keyed call."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.log = EventLog()
        self.walk: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.stopped = False

    def stop(self) -> None:
        """Nobody came back."""
        self.stopped = True
        if self.walk is not None:
            self.walk.cancel()


class KeptCalls:
    """The keyed calls of one gateway process; `walk` is the walk of any call."""

    def __init__(self, rooms: Rooms, walk: Walk, settings: IdempotencySettings) -> None:
        self._rooms = rooms
        self._walk = walk
        self._settings = settings
        self._running: dict[Name, _Kept] = {}

    async def drain(self) -> None:
        """Wait until no keyed call is left: each has a reader, or ends when its time is over."""
        while self._running:
            walks = [kept.walk for kept in self._running.values() if kept.walk is not None]
            await asyncio.wait(walks)

    async def run(self, call: Call, wanted: Claim) -> AsyncGenerator[list[CallEvent], None]:
        """The events of the call that has this key: of this one, or of one that was asked before."""
        name = (call.principal.scopes.organisation_id, wanted.key)
        kept, replayed = await self._find(name), True
        if kept is None:
            remembered = await self._rooms.ledger.recall(*name)
            kept = await self._find(name)  # another request may have begun it meanwhile
            if kept is None and remembered is not None:
                if remembered.answer is None or remembered.claim.fingerprint != wanted.fingerprint:
                    raise key_refusal(remembered.claim, wanted)
                yield told_again(remembered, remembered.answer)
                return
        if kept is None:
            kept, replayed = self._begin(name, call, wanted), False
        elif kept.claim.fingerprint != wanted.fingerprint:
            raise key_refusal(kept.claim, wanted)
        async with aclosing(self._read(kept)) as bunches:
            async for bunch in bunches:
                yield [_told_again(event) for event in bunch] if replayed else bunch

    async def _find(self, name: Name) -> _Kept | None:
        """The running call of this key; one that is being stopped is waited for, and is none."""
        while (kept := self._running.get(name)) is not None and kept.stopped:
            assert kept.walk is not None
            await asyncio.wait([kept.walk])
        return kept

    def _begin(self, name: Name, call: Call, claim: Claim) -> _Kept:
        kept = self._running[name] = _Kept(claim)
        walk = self._walk_kept(name, kept, call)
        kept.walk = self._rooms.spawn(walk, name=f"keyed {call.id}")
        return kept

    async def _walk_kept(self, name: Name, kept: _Kept, call: Call) -> None:
        """Walk the call into its log. Cancelled: its readers are gone for good."""
        fault: Exception | None = IdempotencyKeyInUse()  # for who comes while it is cancelled
        try:
            async with aclosing(self._walk(call)) as bunches:
                async for bunch in bunches:
                    kept.log.append(bunch)
            fault = None
        except Exception as refusal:
            fault = refusal  # its readers' business
        finally:
            del self._running[name]
            if kept.timer is not None:
                kept.timer.cancel()
            kept.log.end(fault)

    async def _read(self, kept: _Kept) -> AsyncGenerator[list[CallEvent], None]:
        if kept.timer is not None:
            kept.timer.cancel()
            kept.timer = None
        try:
            async with aclosing(kept.log.read()) as bunches:
                async for bunch in bunches:
                    yield bunch
        finally:
            if not kept.log.readers and not kept.log.ended:
                loop = asyncio.get_running_loop()
                kept.timer = loop.call_later(self._settings.detach_seconds, kept.stop)


def _told_again(event: CallEvent) -> CallEvent:
    """As one hears it who did not ask first: it costs nothing."""
    if isinstance(event, Admitted):
        return replace(event, replayed=True)
    return replace(event, amount_nanos=0) if isinstance(event, Finished) else event
