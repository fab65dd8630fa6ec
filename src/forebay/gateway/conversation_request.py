"""Bodies of the Conversations API: what they ask for, or an error that says what is wrong with them.

Not here: what is in an item (`items.py`), how long a conversation may live (`forebay.pipeline`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from forebay.core.errors import InvalidRequest
from forebay.gateway.fields import Field, screen, supported, table
from forebay.gateway.items import ITEM_SCHEMA, RoleAndParts, read_items
from forebay.gateway.read import missing, text, wrong_type
from forebay.pipeline.dialogues import MIN_TTL_SECONDS

MAX_ITEMS = 20
MAX_PAIRS, MAX_KEY_CHARACTERS, MAX_VALUE_CHARACTERS = 16, 64, 512

_ITEMS = {"type": "array", "items": ITEM_SCHEMA, "maxItems": MAX_ITEMS}
_ITEMS_NOTE = (
    "messages; roles system, developer, user, assistant; content is a string or an array of text "
    "parts; other items and parts get `unsupported_value`"
)
METADATA_NOTE = (
    f"at most {MAX_PAIRS} strings of at most {MAX_VALUE_CHARACTERS} characters, their names of at "
    f"most {MAX_KEY_CHARACTERS}"
)
METADATA = {
    "type": "object",
    "propertyNames": {"maxLength": MAX_KEY_CHARACTERS},
    "additionalProperties": {"type": "string", "maxLength": MAX_VALUE_CHARACTERS},
    "maxProperties": MAX_PAIRS,
}
CONVERSATION_FIELDS: Mapping[str, Field] = table(
    (
        supported("items", f"at most {MAX_ITEMS} {_ITEMS_NOTE}", _ITEMS),
        supported("metadata", METADATA_NOTE, METADATA),
        supported(
            "ttl_seconds",
            f"{MIN_TTL_SECONDS} to the setting `conversation.max_ttl_seconds`: how long it is kept "
            "after its last use (an extension)",
            {"type": "integer", "minimum": MIN_TTL_SECONDS},
        ),
    ),
)
METADATA_FIELDS: Mapping[str, Field] = table(
    (supported("metadata", f"{METADATA_NOTE}; replaces what was there", METADATA, required=True),)
)
ITEMS_FIELDS: Mapping[str, Field] = table(
    (
        supported(
            "items", f"1 to {MAX_ITEMS} {_ITEMS_NOTE}", _ITEMS | {"minItems": 1}, required=True
        ),
    )
)


class ConversationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A valid body. `ignored` are the names in it that mean nothing to us."""

    items: tuple[RoleAndParts, ...] = ()
    metadata: dict[str, str] = {}
    ttl_seconds: int | None = None
    ignored: tuple[str, ...] = ()


def parse_conversation(body: Mapping[str, Any]) -> ConversationRequest:
    """One that is to be made. Raises InvalidRequest."""
    ignored = screen(body, CONVERSATION_FIELDS)
    items = body.get("items")
    metadata = body.get("metadata")
    return ConversationRequest(
        items=() if items is None else _items(items, ignored),
        metadata={} if metadata is None else read_metadata(metadata),
        ttl_seconds=_ttl_seconds(body.get("ttl_seconds")),
        ignored=_once(ignored),
    )


def parse_metadata(body: Mapping[str, Any]) -> ConversationRequest:
    """What replaces the metadata. Raises InvalidRequest."""
    ignored = screen(body, METADATA_FIELDS)
    metadata = body.get("metadata")
    if metadata is None:
        raise missing("metadata", "Send {} to remove all of it.")
    return ConversationRequest(metadata=read_metadata(metadata), ignored=_once(ignored))


def parse_items(body: Mapping[str, Any]) -> ConversationRequest:
    """What is to be appended. Raises InvalidRequest."""
    ignored = screen(body, ITEMS_FIELDS)
    items = body.get("items")
    if items is None:
        raise missing("items", "Send at least one item.")
    if items == []:
        raise InvalidRequest(
            "items is empty. Send at least one item.", param="items", code="empty_array"
        )
    return ConversationRequest(items=_items(items, ignored), ignored=_once(ignored))


def read_metadata(value: Any) -> dict[str, str]:
    """What a client keeps beside an object: texts by name. Raises InvalidRequest."""
    if not isinstance(value, dict):
        raise wrong_type("metadata", "an object", value)
    if len(value) > MAX_PAIRS:
        raise InvalidRequest(
            f"metadata has {len(value)} pairs; the limit is {MAX_PAIRS}.",
            param="metadata",
            code="array_above_max_length",
        )
    for key, said in value.items():
        path = f"metadata.{key[:MAX_KEY_CHARACTERS]}"
        if len(key) > MAX_KEY_CHARACTERS:
            raise InvalidRequest(
                f"The key {path}… has {len(key)} characters; the limit is {MAX_KEY_CHARACTERS}.",
                param=path,
                code="string_above_max_length",
            )
        text(said, path, low=0, high=MAX_VALUE_CHARACTERS)
    return value


def _items(value: Any, ignored: list[str]) -> tuple[RoleAndParts, ...]:
    if isinstance(value, list) and len(value) > MAX_ITEMS:
        raise InvalidRequest(
            f"items has {len(value)} items; the limit is {MAX_ITEMS}. Append more with further "
            "requests.",
            param="items",
            code="array_above_max_length",
        )
    return tuple(read_items(value, "items", ignored))


def _ttl_seconds(value: Any) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise wrong_type("ttl_seconds", "an integer", value)
    return value


def _once(names: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
