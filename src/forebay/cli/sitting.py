"""One sitting of `forebay chat`: a model, a dialogue with it, and what its answers took.

Not here: the prompt and the words that begin with a slash (`conversing.py`).
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from forebay.cli import chat_view, desk
from forebay.cli.answering import Answer, Reading, Refused, Target, answer, ask, finish
from forebay.cli.dialogues import Dialogue
from forebay.cli.failure import Failure
from forebay.cli.screen import print_json, printable, say
from forebay.gateway.control import ControlFailed, call

if TYPE_CHECKING:
    from forebay.config import Settings

# A turn that was just stopped locks its conversation until the server has noticed: some 50 ms.
LOCKED_PAUSES_SECONDS = (0.1, 0.4, 1.5)
STOPPED = "stopped"  # the finish reason of an answer that the person stopped


class Sitting:
    """From the start of the program to its end; `/new` changes the dialogue, not the sitting."""

    def __init__(
        self, settings: Settings, target: Target, dialogue: Dialogue, *, model: str, as_json: bool
    ) -> None:
        self.model = model
        self.dialogue = dialogue
        self.as_json = as_json
        self._settings = settings
        self._target = target
        self._answers: list[Answer] = []
        self._told_of_window = False

    async def say(self, text: str) -> None:
        """One turn. Raises Failure; then the turn never was."""
        reading = Reading()
        try:
            done = await self._answer(text, reading)
        except asyncio.CancelledError:
            self._stopped(text, reading)
            raise
        self.dialogue.keep(text, done.text)
        self._answers.append(done)
        amount_usd = (await self._row(done.call_id)).get("amount_usd")
        if self.as_json:
            print_json({**asdict(done), "amount_usd": amount_usd})
            return
        print("\n" + chat_view.summary(done, amount_usd), flush=True)
        if done.dropped_turns and not self._told_of_window:
            self._told_of_window = True
            say(chat_view.left_out(done.dropped_turns))

    async def anew(self) -> None:
        """Begin a new dialogue of the same kind. Raises Failure; then the old one goes on."""
        self.dialogue = await self.dialogue.anew()
        self._told_of_window = False

    async def usage(self) -> dict[str, Any]:
        """Each answer, all of them, and what the server says of the key. Raises Failure."""
        answers = [await self._took(each) for each in self._answers]
        return {
            "answers": answers,
            "total": chat_view.total(answers),
            "key": await self._own_usage(),
        }

    async def _answer(self, text: str, reading: Reading) -> Answer:
        request = {"model": self.model, **self.dialogue.request(text)}
        for seconds in LOCKED_PAUSES_SECONDS:
            try:
                return await answer(self._target, request, reading, self._show)
            except Refused as refused:
                if refused.code != "conversation_locked":
                    raise
            await asyncio.sleep(seconds)
        return await answer(self._target, request, reading, self._show)

    def _stopped(self, text: str, reading: Reading) -> None:
        if not reading.call_id:
            return
        reading.finish_reason = STOPPED
        done = finish(reading)
        if done.text:
            self.dialogue.keep(text, done.text)
        self._answers.append(done)

    def _show(self, text: str) -> None:
        if not self.as_json:
            print(printable(text), end="", flush=True)

    async def _took(self, done: Answer) -> dict[str, Any]:
        """As it was charged; of another machine's server, as it was told."""
        row = await self._row(done.call_id)
        return {
            "call_id": done.call_id,
            "finish_reason": done.finish_reason,
            "input_tokens": row.get("input_tokens", done.input_tokens),
            "output_tokens": row.get("output_tokens", done.output_tokens),
            "amount_usd": row.get("amount_usd"),
        }

    async def _row(self, call_id: str) -> dict[str, Any]:
        """The usage row, which is durable before the answer ends; empty for other servers, and
        until an answer that was stopped is settled."""
        if not self._target.here:
            return {}
        try:
            socket = self._settings.data_dir / desk.SOCKET
            rows: list[dict[str, Any]] = await call(socket, "usage", {"call_id": call_id})
        except ControlFailed:
            return {}
        return rows[0] if rows else {}

    async def _own_usage(self) -> dict[str, Any] | None:
        """None for a server that has no such page."""
        try:
            found = await ask(self._target, "GET", "/usage/me")
        except Refused as refused:
            if refused.status not in (404, 405):
                raise
            return None
        return found if isinstance(found, dict) and found.get("object") == "usage" else None


def advice(failure: Failure, dialogue: Dialogue, anew: str) -> str:
    """What failed, and where that helps: how to begin `anew`."""
    if isinstance(failure, Refused) and dialogue.over(failure.code):
        return f"{failure} {anew} begins a new conversation."
    return str(failure)
