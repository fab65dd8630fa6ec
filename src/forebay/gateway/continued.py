"""What a request goes on from, and what of it is to be remembered: `conversation`, and its turn.

Reading a request makes no ids: its messages get theirs when it becomes a call.

Not here: which requests can go on (`chat_request.py`, `responses_request.py`), remembering
(`forebay.pipeline`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from forebay.core.call import Remembrance
from forebay.core.dialogue import Item
from forebay.core.errors import InvalidRequest
from forebay.gateway.items import RoleAndParts
from forebay.gateway.read import missing, seen, text, wrong_type

MAX_ID_CHARACTERS = 64
CONVERSATION_SCHEMA: Mapping[str, Any] = {
    "anyOf": [
        {"type": "string", "minLength": 1, "maxLength": MAX_ID_CHARACTERS},
        {
            "type": "object",
            "properties": {
                "id": {"type": "string", "minLength": 1, "maxLength": MAX_ID_CHARACTERS},
                "on_expired": {"enum": ["error", "new", None]},
            },
            "required": ["id"],
        },
    ]
}


class Continued(msgspec.Struct, frozen=True, kw_only=True):
    """`spoken` is what is new. `turn_prefix` begins the id of the turn that is kept; without it none
    is. The rest as in `Remembrance`."""

    spoken: tuple[RoleAndParts, ...]
    field: str
    turn_prefix: str = ""
    conversation_id: str | None = None
    previous_id: str | None = None
    instructions: str = ""
    record: bytes = b""
    fresh: bool = False
    cut: bool = True

    def remembrance(self, call_id: str, new_id: Callable[[str], str]) -> Remembrance:
        """The same of one call."""
        turn_id = self.turn_prefix + call_id.removeprefix("req_")
        return Remembrance(
            input=tuple(Item(new_id("msg"), role, parts) for role, parts in self.spoken),
            turn_id=turn_id if self.turn_prefix else None,
            conversation_id=self.conversation_id,
            previous_id=self.previous_id,
            instructions=self.instructions,
            record=self.record,
            fresh=self.fresh,
            cut=self.cut,
            field=self.field,
        )


def conversation(body: Mapping[str, Any], ignored: list[str]) -> tuple[str, bool] | None:
    """Its id, and whether one that is gone is begun anew; None where there is none."""
    value = body.get("conversation")
    if value is None:
        return None
    if isinstance(value, str):
        return _id(value, "conversation"), False
    if not isinstance(value, dict):
        raise wrong_type("conversation", "a string or an object", value)
    ignored += [f"conversation.{name}" for name in value if name not in ("id", "on_expired")]
    id_ = value.get("id")
    if id_ is None:
        raise missing("conversation.id", "POST /v1/conversations makes one.")
    return _id(id_, "conversation.id"), _begins_anew(value.get("on_expired"))


def _id(value: Any, path: str) -> str:
    return text(value, path, low=1, high=MAX_ID_CHARACTERS)


def _begins_anew(value: Any) -> bool:
    if value in (None, "error", "new"):
        return bool(value == "new")
    raise InvalidRequest(
        f"conversation.on_expired is {seen(value)}, but must be error or new.",
        param="conversation.on_expired",
        code="invalid_value" if isinstance(value, str) else "invalid_type",
    )
