"""Conversations, as their organisation may see and change them.

Not here: the turns that calls make (`turns.py`), HTTP (`forebay.gateway`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forebay.conversation import Conversations, ConversationSettings
from forebay.core.clock import Clock, IdSource
from forebay.core.dialogue import Conversation, Item, Page
from forebay.core.errors import InvalidRequest, NotFound
from forebay.core.principal import Principal

MIN_TTL_SECONDS = 60
_SHOWN_CHARACTERS = 100


class Dialogues:
    """One per process. Every verb raises NotFound for what the organisation does not have.

    Of another organisation's, it says what it says of an id that never was.
    """

    def __init__(
        self,
        conversations: Conversations,
        clock: Clock,
        ids: IdSource,
        settings: ConversationSettings,
    ) -> None:
        self._conversations = conversations
        self._clock = clock
        self._ids = ids
        self._settings = settings

    async def create(
        self,
        principal: Principal,
        items: Sequence[Item],
        *,
        metadata: Mapping[str, str],
        ttl_seconds: int | None,
    ) -> Conversation:
        """Begin one with these items. Raises InvalidRequest for a time to live out of bounds."""
        ttl_seconds = self._ttl_seconds(ttl_seconds)
        now = self._clock.now()
        conversation = Conversation(
            id=self._ids.new("conv"),
            organisation_id=_organisation_id(principal),
            created_at=now,
            ttl_seconds=ttl_seconds,
            expires_at=now + ttl_seconds,
            metadata=metadata,
        )
        await self._conversations.create(conversation, items)
        return conversation

    async def find(self, principal: Principal, id: str) -> Conversation:
        """As it is now."""
        try:
            return await self._conversations.find(_organisation_id(principal), id)
        except KeyError:
            raise _no_conversation(id) from None

    async def annotate(
        self, principal: Principal, id: str, metadata: Mapping[str, str]
    ) -> Conversation:
        """Replace its metadata."""
        try:
            return await self._conversations.annotate(_organisation_id(principal), id, metadata)
        except KeyError:
            raise _no_conversation(id) from None

    async def delete(self, principal: Principal, id: str) -> None:
        """Forget it and all that was said in it."""
        try:
            await self._conversations.delete(_organisation_id(principal), id)
        except KeyError:
            raise _no_conversation(id) from None

    async def add(self, principal: Principal, id: str, items: Sequence[Item]) -> None:
        """Append these."""
        try:
            await self._conversations.add(_organisation_id(principal), id, items)
        except KeyError:
            raise _no_conversation(id) from None

    async def items(self, principal: Principal, id: str, page: Page) -> list[Item]:
        """Some of its items. Raises InvalidRequest if `page.after` is none of them."""
        try:
            return await self._conversations.items(_organisation_id(principal), id, page)
        except KeyError:
            await self.find(principal, id)
            after = (page.after or "")[:_SHOWN_CHARACTERS]
            raise InvalidRequest(
                f"after is '{after}', which is no item of this conversation (any more). Send the "
                "id of one, or leave it out to begin anew.",
                param="after",
            ) from None

    async def item(self, principal: Principal, id: str, item_id: str) -> Item:
        """One of its items."""
        try:
            return await self._conversations.item(_organisation_id(principal), id, item_id)
        except KeyError:
            await self.find(principal, id)
            raise _no_item(id, item_id) from None

    async def remove_item(self, principal: Principal, id: str, item_id: str) -> Conversation:
        """Forget one of its items."""
        organisation_id = _organisation_id(principal)
        try:
            return await self._conversations.remove_item(organisation_id, id, item_id)
        except KeyError:
            await self.find(principal, id)
            raise _no_item(id, item_id) from None

    def _ttl_seconds(self, asked: int | None) -> int:
        if asked is None:
            return self._settings.ttl_seconds
        most = self._settings.max_ttl_seconds
        if MIN_TTL_SECONDS <= asked <= most:
            return asked
        raise InvalidRequest(
            f"ttl_seconds is {str(asked)[:_SHOWN_CHARACTERS]}, but must be between "
            f"{MIN_TTL_SECONDS} and {most}.",
            param="ttl_seconds",
            code=f"integer_{'below_min' if asked < MIN_TTL_SECONDS else 'above_max'}_value",
        )


def _organisation_id(principal: Principal) -> str:
    return principal.scopes.organisation_id


def _no_conversation(id: str) -> NotFound:
    return NotFound(f"Conversation with id '{id[:_SHOWN_CHARACTERS]}' not found.")


def _no_item(id: str, item_id: str) -> NotFound:
    return NotFound(
        f"Item with id '{item_id[:_SHOWN_CHARACTERS]}' not found in conversation "
        f"'{id[:_SHOWN_CHARACTERS]}'."
    )
