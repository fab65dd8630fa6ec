"""Lists of the admin API, a page at a time.

Ids begin with their time, so one that has left the list since still has its place in it: who deletes
what a page showed and asks for the next one misses nothing.

Not here: lists that a store pages (`admin_audit.py`), buckets of time (`admin_usage.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from forebay.core.errors import InvalidRequest
from forebay.gateway.admin_schema import Page

T = TypeVar("T")
Wire = TypeVar("Wire")

_TIMED_ID = re.compile("([a-z_]+)_[0-9a-f]{32}")


def page(
    items: Sequence[T], query: Any, wire: Callable[[T], Wire], id_of: Callable[[T], str]
) -> Page[Wire]:
    """The part of a list, oldest first, that was asked for. The query may have an order and cursors."""
    if newest_first := getattr(query, "order", "asc") == "desc":
        items = items[::-1]
    ids = [id_of(item) for item in items]
    least, most = 0, len(items)
    if query.after is not None:
        _, least = _place(ids, query.after, "after", newest_first)
    first, last = least, min(most, least + query.limit)
    if (before := getattr(query, "before", None)) is not None:
        most, _ = _place(ids, before, "before", newest_first)
        first, last = max(least, most - query.limit), most
    shown = items[first:last]
    return Page(
        data=[wire(item) for item in shown],
        first_id=id_of(shown[0]) if shown else None,
        last_id=id_of(shown[-1]) if shown else None,
        has_more=first > least if before is not None else last < most,
    )


def _place(ids: Sequence[str], cursor: str, param: str, newest_first: bool) -> tuple[int, int]:
    """How many items come before this one, and how many with it."""
    if cursor in ids:
        return ids.index(cursor), ids.index(cursor) + 1
    kinds = {id_.rpartition("_")[0] for id_ in ids}
    if kinds - {require_id(cursor, param)}:
        raise _no_place(param)
    ahead = (n for n, id_ in enumerate(ids) if (id_ < cursor if newest_first else id_ > cursor))
    place = next(ahead, len(ids))
    return place, place


def require_id(cursor: str, param: str) -> str:
    """The kind of this id. Raises InvalidRequest for what is none that begins with its time."""
    if (found := _TIMED_ID.fullmatch(cursor)) is None:
        raise _no_place(param)
    return found[1]


def _no_place(param: str) -> InvalidRequest:
    return InvalidRequest(f"{param} is no id of this list. Begin without it.", param=param)
