"""⑤ of the walk: the prompt of a call, counted exactly, with as much of the past as fits (C3).

Not here: which turns the past has (`turns.py`), what M₀ is afterwards lowered to (`terms.py`).
"""

from __future__ import annotations

from forebay.admission import BODY_BYTES_PER_TOKEN
from forebay.conversation import Search
from forebay.core.call import Call, Prompt, Route
from forebay.core.dialogue import Window
from forebay.core.errors import ContextLengthExceeded, InvalidRequest
from forebay.pipeline.rooms import Rooms
from forebay.pipeline.terms import limit_tokens, too_long
from forebay.pipeline.turns import Recalled


class Fitting:
    """Stateless; shared by all calls of a process."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms

    async def count(
        self, call: Call, route: Route, recalled: Recalled | None
    ) -> tuple[Prompt, Window | None]:
        """The prompt, and what of the past it shows. Raises InvalidRequest, ContextLengthExceeded."""
        scope = call.principal.scopes.organisation_id
        if recalled is not None:
            return await self._fitting(call, route, recalled)
        if call.messages:
            return await self._rooms.tokens.render(route.model, call.messages, scope=scope), None
        return await self._rooms.tokens.encode(route.model, call.prompt, scope=scope), None

    async def _fitting(self, call: Call, route: Route, recalled: Recalled) -> tuple[Prompt, Window]:
        """The prompt with as much of the past as fits context − M₀ (C3), or with all of it if the
        client does not want it cut."""
        limit, turns = limit_tokens(route, call), len(recalled.dialogue.turns)
        if not recalled.wish.cut:
            try:
                return await self._showing(call, route, recalled, turns), recalled.window(turns)
            except ContextLengthExceeded:
                raise too_long(call, route, "far more") from None
        within = recalled.within(limit * BODY_BYTES_PER_TOKEN)
        search = Search(turns, min(self._rooms.remember.settings.recent_turns, within))
        fitting: Prompt | None = None
        while (tried := search.next()) is not None:
            try:
                prompt = await self._showing(call, route, recalled, tried)
            except (ContextLengthExceeded, InvalidRequest):  # too large even to be counted
                if tried == 0:
                    raise too_long(call, route, "far more") from None
                search.tell(tried, fits=False)
                continue
            fits = len(prompt.ids) <= limit - route.ceiling_tokens
            search.tell(tried, fits)
            if fits or tried == 0:
                fitting = prompt
        assert fitting is not None, "no turn at all was tried at last"
        return fitting, recalled.window(search.found or 0)

    async def _showing(self, call: Call, route: Route, recalled: Recalled, turns: int) -> Prompt:
        scope = call.principal.scopes.organisation_id
        return await self._rooms.tokens.render(route.model, recalled.messages(turns), scope=scope)
