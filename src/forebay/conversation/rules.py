"""What stored dialogues count, what is too much (C6), and how it is told. Pure; both stores use it.

An organisation's bytes are: of every conversation, of every item (once, however many ways lead to
it), of every turn what its record, its job and its log take, and of every summary. A chain of turns is
bounded as a conversation is.

The answer to a turn is not refused, it has been paid for, and neither is its log; so its item is
counted beforehand, and bytes may exceed their bounds by the answers of the calls that run.

Not here: the sums (`memory_state`, `sql_rows`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from forebay.conversation.settings import ConversationSettings
from forebay.core.dialogue import Item, Turn
from forebay.core.errors import ConversationFull, ConversationLocked

# A row with its indexes, about; `Item.size_bytes` counts the same.
ROW_BYTES = 100
# A conversation does not expire under its own call, and none takes longer: also in the batch lane.
CALL_SECONDS = 24 * 60 * 60


class Size(NamedTuple):
    """Of a conversation, or of a chain of turns."""

    items: int = 0
    bytes: int = 0


def items_bytes(items: Iterable[Item]) -> int:
    """What these items count."""
    return sum(item.size_bytes for item in items)


def conversation_bytes(metadata: Mapping[str, str]) -> int:
    """What a conversation without its items counts."""
    return ROW_BYTES + sum(len(each.encode()) for pair in metadata.items() for each in pair)


def turn_bytes(turn: Turn) -> int:
    """What a turn without its items and its log counts."""
    return ROW_BYTES + len(turn.record) + len(turn.job)


def summary_bytes(text: str) -> int:
    """What a summary counts."""
    return ROW_BYTES + len(text.encode())


def emptied(item: Item) -> Item:
    """What is left of a turn's answer when its item was removed from the conversation."""
    return replace(item, parts=())


def require_room(settings: ConversationSettings, size: Size) -> None:
    """Raises ConversationFull if a conversation may not become so large."""
    if size.items > settings.max_items:
        raise ConversationFull(
            f"This conversation would have {size.items} items; at most {settings.max_items} are "
            "kept. Remove some of them, or begin a new conversation."
        )
    if size.bytes > settings.max_bytes:
        raise ConversationFull(
            f"This conversation would have {size.bytes} bytes of text; at most "
            f"{settings.max_bytes} are kept. Remove items, or begin a new conversation."
        )


def require_organisation_room(settings: ConversationSettings, stored_bytes: int) -> None:
    """Raises ConversationFull if an organisation may not have so much."""
    if stored_bytes > settings.organisation_bytes:
        raise ConversationFull(
            f"The conversations and stored responses of this organisation would take {stored_bytes} "
            f"bytes; at most {settings.organisation_bytes} are kept. Delete some, wait until "
            "they expire, or send store: false."
        )


def require_revision(present: int, expected: int) -> None:
    """Raises ConversationLocked if the conversation has changed since it was read (C4)."""
    if present != expected:
        raise ConversationLocked(
            "This conversation was changed while the call was prepared; send the call again."
        )


def require_covered(first: Sequence[str], covered: Sequence[str]) -> None:
    """Raises KeyError if a past does not begin with the items that a summary covers (C8)."""
    if list(first) != list(covered):
        raise KeyError(covered[-1])


def exists_already(id: str) -> ValueError:
    """Ids are fresh; one that is not is a mistake of ours."""
    return ValueError(f"the conversation {id} exists already")
