"""What was said in a chat: kept here, in memory only, or by the server as a conversation.

Each turn asks its dialogue what to send. An unstored one sends all that was said, a stored one only
what is new.

Not here: how it is sent (`answering.py`), how it is shown (`chat_view.py`).
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from forebay.cli.answering import Refused, Target, ask
from forebay.cli.failure import Failure
from forebay.cli.screen import local_time

NEW = "new"
PAGE_ITEMS = 100  # the most that the API lists at once
NO_ENDPOINT = (404, 405)

Message = dict[str, str]


class Unstored:
    """A dialogue that ends with the program."""

    id = None
    # What becomes of an answer that is stopped: its beginning is part of the dialogue.
    when_stopped = "stopped"

    def __init__(self) -> None:
        self._messages: list[Message] = []

    def __str__(self) -> str:
        return "not stored"

    def request(self, text: str) -> dict[str, Any]:
        """The fields of a request that says this next."""
        return {"messages": [*self._messages, {"role": "user", "content": text}]}

    def keep(self, text: str, answer: str) -> None:
        """This was said, and answered."""
        said = {"role": "user", "content": text}
        self._messages += [said, {"role": "assistant", "content": answer}]

    def over(self, code: str) -> bool:
        """Whether an error with this code means that it cannot go on, but a new one could."""
        return code == "context_length_exceeded" and bool(self._messages)

    async def history(self) -> list[Message]:
        """All that was said."""
        return list(self._messages)

    async def anew(self) -> Unstored:
        """A new one."""
        return Unstored()


class Stored:
    """A conversation of the server. `expires_at`: Unix seconds, if nobody uses it until then."""

    when_stopped = "stopped; the conversation keeps nothing of this turn"

    def __init__(self, target: Target, id: str, expires_at: float | None) -> None:
        self.id = id
        self._expires_at = expires_at
        self._target = target

    def __str__(self) -> str:
        until = local_time(self._expires_at)
        return self.id + (f", kept until {until}, longer if it is used" if until else "")

    def request(self, text: str) -> dict[str, Any]:
        """The fields of a request that says this next."""
        return {"messages": [{"role": "user", "content": text}], "conversation": self.id}

    def keep(self, text: str, answer: str) -> None:
        """Nothing: the server keeps what is whole."""

    def over(self, code: str) -> bool:
        """Whether an error with this code means that it cannot go on, but a new one could."""
        return code in ("not_found", "conversation_full")

    async def history(self) -> list[Message]:
        """All that was said, also what the model is not shown any more. Raises Failure."""
        found: list[Message] = []
        after = ""
        while True:
            query = f"/items?order=asc&limit={PAGE_ITEMS}{after}"
            page = await ask(self._target, "GET", _path(self.id) + query)
            found += map(_message, page["data"])
            if not page["has_more"]:
                return found
            after = f"&after={quote(page['last_id'], safe='')}"

    async def anew(self) -> Stored:
        """A new one. Raises Failure."""
        return await _create(self._target)


Dialogue = Unstored | Stored


async def open_dialogue(target: Target, name: str | None) -> Dialogue:
    """The conversation with this id, a `new` one, or without a name one that is not stored.

    Raises Failure if there is none.
    """
    if name is None:
        return Unstored()
    return await (_create(target) if name == NEW else _find(target, name))


async def _create(target: Target) -> Stored:
    try:
        made = await ask(target, "POST", "/conversations", {})
    except Refused as refused:
        if refused.status not in NO_ENDPOINT:
            raise
        raise Failure(f"{target.url} stores no conversations. Leave --conversation out.") from None
    return _stored(target, made)


async def _find(target: Target, id: str) -> Stored:
    try:
        found = await ask(target, "GET", _path(id))
    except Refused as refused:
        if refused.status not in NO_ENDPOINT:
            raise
        raise Failure(
            f"There is no conversation {id!r:.100}: it has expired, was deleted, or is not of this "
            "key's organisation. `--conversation new` begins one."
        ) from None
    return _stored(target, found)


def _stored(target: Target, body: Any) -> Stored:
    if not isinstance(body, dict) or body.get("object") != "conversation":
        raise Failure(f"{target.url} answered with something that is no conversation.")
    return Stored(target, body["id"], body.get("expires_at"))


def _path(id: str) -> str:
    return f"/conversations/{quote(id, safe='')}"


def _message(item: dict[str, Any]) -> Message:
    text = "\n".join(part.get("text", "") for part in item["content"])
    return {"role": item["role"], "content": text}
