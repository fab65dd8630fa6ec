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
        scope = call.text_scope
        if recalled is not None:
            return await self._fitting(call, route, recalled)
        if call.messages:
            return await self._rooms.tokens.render(route.model, call.messages, scope=scope), None
        return await self._rooms.tokens.encode(route.model, call.prompt, scope=scope), None

    async def _fitting(self, call: Call, route: Route, recalled: Recalled) -> tuple[Prompt, Window]:
        """The prompt with as much of the past as fits context − M₀ (C3), or with all of it if the
        client does not want it cut."""
        if not recalled.wish.cut:
            recalled = recalled.whole()
            turns = len(recalled.dialogue.turns)
            try:
                return await self._showing(call, route, recalled, turns), recalled.window(turns)
            except ContextLengthExceeded:
                raise too_long(call, route, "far more") from None
        prompt, kept = await self._most(call, route, recalled)
        if not kept and recalled.dialogue.summary and (kept is None or recalled.dialogue.turns):
            # It does not fit beside what is new, or it is in the way of the newest turn.
            whole = recalled.whole()
            fuller, more = await self._most(call, route, whole)
            if kept is None or more:
                recalled, prompt, kept = whole, fuller, more
        if prompt is None:
            raise too_long(call, route, "far more")
        return prompt, recalled.window(kept or 0)

    async def _most(
        self, call: Call, route: Route, recalled: Recalled
    ) -> tuple[Prompt | None, int | None]:
        """The prompt with the most turns that fit, and how many these are. If not even none do: the
        prompt without any, and None; no prompt if that is too large to be counted."""
        limit, turns = limit_tokens(route, call), len(recalled.dialogue.turns)
        within = recalled.within(limit * BODY_BYTES_PER_TOKEN)
        search = Search(turns, min(self._rooms.remember.settings.recent_turns, within))
        fitting: Prompt | None = None
        while (tried := search.next()) is not None:
            try:
                prompt = await self._showing(call, route, recalled, tried)
            except (ContextLengthExceeded, InvalidRequest):  # too large even to be counted
                search.tell(tried, fits=False)
                continue
            fits = len(prompt.ids) <= limit - route.ceiling_tokens
            search.tell(tried, fits)
            if fits or tried == 0:
                fitting = prompt
        return fitting, search.found

    async def _showing(self, call: Call, route: Route, recalled: Recalled, turns: int) -> Prompt:
        said = recalled.messages(turns)
        return await self._rooms.tokens.render(route.model, said, scope=call.text_scope)
