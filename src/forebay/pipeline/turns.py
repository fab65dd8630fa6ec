"""④ and ⑬ of the walk: what a call remembers, and what is remembered of it.

A turn is shown if, and only if, its call is settled as completed. The room does not know; the ledger
does. So whoever resolves a call tells its turn at once, before the client hears of the end. What was left
untold (a process died in between, a store failed) is found by asking the ledger: when somebody reads it,
when it is in somebody's way, and by the keeper every ten seconds.

Not here: what fits into the prompt (`forebay.conversation.window`), when (`interactive.py`, `worker.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from forebay.conversation import (
    Conversations,
    ConversationSettings,
    Dialogue,
    Turns,
    divide,
)
from forebay.core.call import Call, Message, Remembrance
from forebay.core.clock import IdSource
from forebay.core.dialogue import (
    Conversation,
    Ending,
    Item,
    Page,
    Past,
    Turn,
    TurnState,
    Window,
)
from forebay.core.errors import (
    CallerError,
    ConversationLocked,
    InternalError,
    InvalidRequest,
    NotFound,
    StoreUnavailable,
)
from forebay.core.event import Admitted
from forebay.core.hold import UsageQuery
from forebay.core.job import Job
from forebay.core.principal import Principal
from forebay.core.usage import Outcome, UsageRow
from forebay.ledger import Ledger
from forebay.pipeline.report import Reporter

_SYSTEM = ("system", "developer")


@dataclass(frozen=True, slots=True)
class Recalled:
    """What a call goes on from. `conversation_id`: of the conversation that it will be a turn of,
    `renewed` if that is to be made because the one asked for is gone; `locked`: another call works
    on it."""

    wish: Remembrance
    dialogue: Dialogue
    revision: int = 0
    locked: bool = False
    conversation_id: str | None = None
    renewed: bool = False

    def messages(self, turns: int) -> tuple[Message, ...]:
        """The prompt with this many of the newest turns of the past."""
        said = (*self.dialogue.newest(turns), *self.wish.input)
        first = [self.wish.instructions] if self.wish.instructions else []
        leading = 0
        while leading < len(said) and said[leading].role in _SYSTEM:
            first.append(said[leading].text)
            leading += 1
        if self.dialogue.block:
            first.append(self.dialogue.block)
        # Most templates take one system message, at the start.
        head = [Message("system", "\n\n".join(first))] if first else []
        return (*head, *(Message(_role(item), item.text) for item in said[leading:]))

    def within(self, most_bytes: int) -> int:
        """How many of the newest turns have no more text than this, beside what is always there."""
        always = len(self.wish.instructions.encode()) + len(self.dialogue.block.encode())
        left = most_bytes - always - _bytes(self.dialogue.head) - _bytes(self.wish.input)
        turns = 0
        for turn in reversed(self.dialogue.turns):
            left -= _bytes(turn)
            if left < 0:
                break
            turns += 1
        return turns

    def whole(self) -> Recalled:
        """Without its summary."""
        return replace(self, dialogue=self.dialogue.whole())

    def window(self, kept: int) -> Window:
        """What the client is told of it."""
        dialogue = self.dialogue
        return Window(
            kept=kept,
            dropped=len(dialogue.turns) - kept,
            summarised=len(dialogue.covered),
            conversation_id=self.conversation_id,
            renewed=self.renewed,
        )


class CallTurns:
    """The turns of this process's calls. Shared by its gateway, worker and keeper."""

    def __init__(
        self,
        conversations: Conversations,
        turns: Turns,
        ledger: Ledger,
        report: Reporter,
        ids: IdSource,
        settings: ConversationSettings,
    ) -> None:
        self.settings = settings
        self._conversations = conversations
        self._turns = turns
        self._ledger = ledger
        self._report = report
        self._ids = ids
        # Turns by call: of calls that are answered here, and of those that are generated here.
        self._open: dict[str, str] = {}
        self._served: dict[str, str] = {}

    async def recall(self, call: Call, wish: Remembrance) -> Recalled:
        """④ what was said before. Raises NotFound, InvalidRequest for a past that is gone."""
        organisation_id = call.principal.scopes.organisation_id
        past, conversation_id, renewed = Past(), wish.conversation_id, False
        try:
            if conversation_id is not None or wish.previous_id is not None:
                past = await self._past(organisation_id, wish)
        except KeyError:
            if conversation_id is None or not wish.fresh:
                raise _gone(wish, conversation_id) from None
            conversation_id, renewed = self._ids.new("conv"), True
        dialogue = divide(past.items, past.summary)
        return Recalled(wish, dialogue, past.revision, past.locked, conversation_id, renewed)

    async def recall_free(self, call: Call, wish: Remembrance) -> Recalled:
        """The same for a call that is to be its next turn. Raises ConversationLocked: it is refused
        before it holds money (`begin` refuses it, too, if another one is faster)."""
        recalled = await self.recall(call, wish)
        if recalled.locked and await self.recover():
            recalled = await self.recall(call, wish)
        if recalled.locked:
            raise ConversationLocked
        return recalled

    async def begin(
        self, call: Call, recalled: Recalled, admitted: Admitted, *, job: bytes = b""
    ) -> None:
        """The call holds money: store its turn, if it has one, with the job if nobody waits for it.
        Raises ConversationLocked and ConversationFull; the call must not run then."""
        wish = recalled.wish
        if wish.turn_id is None:
            return
        turn = replace(self.turn_of(call, admitted), job=job)
        self._open[call.id] = turn.id  # first: whoever resolves the call from now on drops the turn
        try:
            await self._begin(turn, recalled)
        except KeyError:
            if wish.fresh:  # asked for again, the call begins it anew
                raise ConversationLocked from None
            raise _gone(wish, recalled.conversation_id) from None

    def turn_of(self, call: Call, admitted: Admitted) -> Turn:
        """The turn of a call that has one, as it is when the call begins. Raises InternalError."""
        wish, window, now = call.remembrance, admitted.window, admitted.created_at
        if wish is None or wish.turn_id is None or window is None:
            raise InternalError(f"The call {call.id} is no turn.")
        return Turn(
            id=wish.turn_id,
            organisation_id=call.principal.scopes.organisation_id,
            call_id=call.id,
            created_at=now,
            expires_at=now + self.settings.ttl_seconds,
            input=wish.input,
            conversation_id=window.conversation_id,
            previous_id=wish.previous_id,
            record=wish.record,
            background=call.background,
            window="" if window.is_whole else str(window),
        )

    async def _begin(self, turn: Turn, recalled: Recalled) -> None:
        if recalled.renewed and turn.conversation_id is not None:
            ttl = self.settings.ttl_seconds
            conversation = Conversation(
                turn.conversation_id, turn.organisation_id, turn.created_at, ttl, turn.expires_at
            )
            await self._conversations.create(conversation, ())
        await self._turns.begin(turn, revision=recalled.revision)

    def adopt(self, turn: Turn) -> None:
        """This process goes on with the turn's call, which another one began."""
        self._open[turn.call_id] = turn.id

    def serve(self, job: Job) -> None:
        """A worker of this process runs the job: if it resolves its call, it tells the turn."""
        if job.turn_id:
            self._served[job.id] = job.turn_id

    def served(self, job: Job) -> None:
        """The worker has nothing to do with the job any more."""
        self._served.pop(job.id, None)

    def forget(self, call_id: str) -> None:
        """The gateway has nothing to do with the call any more."""
        self._open.pop(call_id, None)

    async def concluded(self, row: UsageRow) -> None:
        """A call was resolved: show its turn, or drop it. Never fails."""
        turn_id = self._open.pop(row.call_id, None) or self._served.get(row.call_id)
        if turn_id is not None:
            await self.tell(turn_id, row)

    async def recover(self) -> int:
        """Forget what has expired, and tell all turns whose calls are resolved; how many."""
        told = 0
        for pending in await self._turns.sweep():
            if pending.call_id not in self._open and pending.call_id not in self._served:
                row = await self._resolution(pending.organisation_id, pending.call_id)
                if row is not None:
                    await self.tell(pending.turn_id, row)
                    told += 1
        return told

    async def find(self, organisation_id: str, turn_id: str) -> Turn:
        """A turn that its organisation may see: one whose call is settled as completed, or in the
        background any. Raises KeyError."""
        turn = await self._turns.find(organisation_id, turn_id)
        if turn.state.is_pending:
            row = await self._resolution(organisation_id, turn.call_id)
            if row is not None:
                await self.tell(turn_id, row)
                turn = await self._turns.find(organisation_id, turn_id)
                if turn.state.is_pending:  # the store does not take it just now
                    turn = _told(turn, row)
        if turn.state is not TurnState.SHOWN and not turn.background:
            raise KeyError(turn_id)
        return turn

    async def tell(self, turn_id: str, row: UsageRow) -> None:
        """Show a turn whose call was resolved like this, or drop it. Never fails."""
        try:
            if row.outcome is Outcome.COMPLETED:
                await self._turns.show(turn_id)
            else:
                await self._turns.drop(turn_id, _ending(row))
        except StoreUnavailable as fault:
            self._report.log.error("turn_not_told", request_id=row.call_id, error=str(fault))

    async def _past(self, organisation_id: str, wish: Remembrance) -> Past:
        where = {"conversation_id": wish.conversation_id, "previous_id": wish.previous_id}
        try:
            return await self._turns.past(organisation_id, **where)
        except KeyError:
            if wish.previous_id is None:
                raise
            turn = await self.find(organisation_id, wish.previous_id)
            if turn.state is not TurnState.SHOWN:
                raise _unanswered(turn) from None
            return await self._turns.past(organisation_id, **where)

    async def _resolution(self, organisation_id: str, call_id: str) -> UsageRow | None:
        query = UsageQuery(organisation_id=organisation_id, call_id=call_id, limit=1)
        rows = await self._ledger.usage(query)
        return rows[0] if rows else None


class ShownTurns:
    """Stored responses, as their organisation may see them."""

    def __init__(self, turns: Turns, calls: CallTurns) -> None:
        self._turns = turns
        self._calls = calls

    async def response(self, principal: Principal, id: str) -> Turn:
        """A completed one, or one in the background. Raises NotFound."""
        try:
            turn = await self._calls.find(principal.scopes.organisation_id, id)
        except KeyError:
            raise unknown("Response", id) from None
        if not turn.record:  # a chat's
            raise unknown("Response", id)
        return turn

    async def forget(self, principal: Principal, id: str) -> None:
        """Delete it. Raises NotFound."""
        await self.response(principal, id)
        try:
            await self._turns.delete(principal.scopes.organisation_id, id)
        except KeyError:
            raise unknown("Response", id) from None

    async def input_items(self, principal: Principal, id: str, page: Page) -> list[Item]:
        """What it was made from: its own input, not the past. Raises NotFound."""
        turn = await self.response(principal, id)
        items = turn.input[::-1] if page.newest_first else turn.input
        return list(_after(items, id, page))


def unknown(what: str, id: str) -> NotFound:
    """As for an id that never was, also if it is another organisation's (C1)."""
    return NotFound(f"{what} with id {id!r:.100} not found.")


def _unanswered(turn: Turn) -> InvalidRequest:
    """Of a response in the background."""
    state = "is still being made; wait until it is completed"
    if not turn.state.is_pending:
        state = "failed" if turn.state is TurnState.FAILED else "was cancelled"
        state += ", so it has no answer to go on from"
    return InvalidRequest(
        f"Previous response with id {turn.id!r:.100} {state}.",
        param="previous_response_id",
        code="previous_response_not_found",
    )


def _gone(wish: Remembrance, conversation_id: str | None) -> CallerError:
    if conversation_id is not None:
        return unknown("Conversation", conversation_id)
    return InvalidRequest(
        f"Previous response with id {wish.previous_id!r:.100} not found.",
        param="previous_response_id",
        code="previous_response_not_found",
    )


def _after(items: Sequence[Item], id: str, page: Page) -> Iterable[Item]:
    if page.after is None:
        return items[: page.limit]
    for number, item in enumerate(items):
        if item.id == page.after:
            return items[number + 1 : number + 1 + page.limit]
    raise NotFound(f"Item with id {page.after!r:.100} not found in response {id!r:.100}.")


def _ending(row: UsageRow) -> Ending | None:
    """What there is to tell of a call without an answer: nothing of one that never began."""
    if row.outcome is Outcome.REJECTED:
        return None
    cancelled = row.outcome is Outcome.CANCELLED
    return Ending(TurnState.CANCELLED if cancelled else TurnState.FAILED, row.reason)


def _told(turn: Turn, row: UsageRow) -> Turn:
    """A pending turn as it is once it was told. Raises KeyError if it is forgotten then."""
    if row.outcome is Outcome.COMPLETED and turn.said is not None:
        return replace(turn, state=TurnState.SHOWN)
    if (ending := _ending(row)) is None or row.outcome is Outcome.COMPLETED:
        raise KeyError(turn.id)
    return replace(turn, state=ending.state, reason=ending.reason, said=None)


def _role(item: Item) -> str:
    return "system" if item.role in _SYSTEM else item.role


def _bytes(items: Iterable[Item]) -> int:
    return sum(len(part.encode()) for item in items for part in item.parts)
