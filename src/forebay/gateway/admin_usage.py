"""Usage and costs of the admin API: what was used and what it cost, in buckets of time.

A bucket is a whole minute, hour or day of UTC; the range asked for is widened at its start to a
whole one. A call belongs to the moment at which it was admitted, as its money does.

Not here: the sums (`forebay.ledger`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from forebay.core.errors import InvalidRequest
from forebay.core.money import format_usd
from forebay.core.usage import UsageSlice
from forebay.gateway.admin import Asked, Operation
from forebay.gateway.admin_audit import Second
from forebay.gateway.admin_schema import Body
from forebay.gateway.schema import TIERS

_DAY = 86_400
_WIDTHS = {"1m": 60, "1h": 3_600, "1d": _DAY}
# How many buckets an answer has unless told, and at most.
_BUCKETS = {"1m": (60, 1_440), "1h": (24, 168), "1d": (7, 31)}
_MOST_COSTS = 180
_CURSOR = "page_"

Group = Literal["project_id", "api_key_id", "model", "batch", "service_tier"]
CostGroup = Literal["project_id", "api_key_id", "line_item"]


class UsageListing(Body, frozen=True):
    """Which usage, in which buckets."""

    start_time: Second
    end_time: Second | None = None
    bucket_width: Literal["1m", "1h", "1d"] = "1d"
    group_by: list[Group] | None = None
    project_ids: list[str] | None = None
    api_key_ids: list[str] | None = None
    models: list[str] | None = None
    batch: bool | None = None
    limit: Annotated[int, Meta(ge=1, le=1_440)] | None = None
    page: str | None = None


class CostListing(Body, frozen=True):
    """Which costs, in days."""

    start_time: Second
    end_time: Second | None = None
    bucket_width: Literal["1d"] = "1d"
    group_by: list[CostGroup] | None = None
    project_ids: list[str] | None = None
    api_key_ids: list[str] | None = None
    line_items: list[str] | None = None
    limit: Annotated[int, Meta(ge=1, le=_MOST_COSTS)] = 7
    page: str | None = None


class UsageResult(msgspec.Struct, frozen=True):
    """What a group used. What is not grouped by is null."""

    input_tokens: int
    input_cached_tokens: int
    output_tokens: int
    num_model_requests: int
    project_id: str | None = None
    user_id: None = None
    api_key_id: str | None = None
    model: str | None = None
    batch: bool | None = None
    service_tier: str | None = None
    object: Literal["organization.usage.completions.result"] = (
        "organization.usage.completions.result"
    )


class Amount(msgspec.Struct, frozen=True):
    """Money as a number, and exactly."""

    value: float
    usd: str
    currency: Literal["usd"] = "usd"


class CostResult(msgspec.Struct, frozen=True):
    """What a group cost. A line item is a model in a service tier."""

    amount: Amount
    project_id: str | None = None
    api_key_id: str | None = None
    line_item: str | None = None
    object: Literal["organization.costs.result"] = "organization.costs.result"


class UsageBucket(msgspec.Struct, frozen=True):
    """A stretch of time; without results if nothing was used."""

    start_time: int
    end_time: int
    results: list[UsageResult]
    object: Literal["bucket"] = "bucket"


class CostBucket(msgspec.Struct, frozen=True):
    """A day; without results if nothing was used."""

    start_time: int
    end_time: int
    results: list[CostResult]
    object: Literal["bucket"] = "bucket"


class UsagePage(msgspec.Struct, frozen=True):
    """Buckets, oldest first."""

    data: list[UsageBucket]
    has_more: bool
    next_page: str | None
    object: Literal["page"] = "page"


class CostPage(msgspec.Struct, frozen=True):
    """Days, oldest first."""

    data: list[CostBucket]
    has_more: bool
    next_page: str | None
    object: Literal["page"] = "page"


async def usage(asked: Asked) -> UsagePage:
    query: UsageListing = asked.query
    default, most = _BUCKETS[query.bucket_width]
    if query.limit is not None and query.limit > most:
        raise InvalidRequest(
            f"limit is {query.limit}, but at most {most} buckets of {query.bucket_width} can be "
            "asked for at once.",
            param="limit",
            code="integer_above_max_value",
        )
    width = _WIDTHS[query.bucket_width]
    starts, next_page = _starts(asked, width, query.limit or default)
    found = [
        each
        for each in await _slices(asked, starts, width)
        if (query.models is None or each.model in query.models)
        and (query.batch is None or (each.lane == "batch") == query.batch)
    ]
    by_start = _by_start(found)
    data = [
        UsageBucket(start, start + width, _usage(by_start.get(start, ()), query))
        for start in starts
    ]
    return UsagePage(data, next_page is not None, next_page)


async def costs(asked: Asked) -> CostPage:
    query: CostListing = asked.query
    starts, next_page = _starts(asked, _DAY, query.limit)
    found = [
        each
        for each in await _slices(asked, starts, _DAY)
        if query.line_items is None or _line_item(each) in query.line_items
    ]
    by_start = _by_start(found)
    data = [
        CostBucket(start, start + _DAY, _costs(by_start.get(start, ()), query)) for start in starts
    ]
    return CostPage(data, next_page is not None, next_page)


OPERATIONS = (
    Operation("GET", "/v1/organization/usage/completions", "What was used", UsagePage, usage,
              query=UsageListing),
    Operation("GET", "/v1/organization/costs", "What it cost", CostPage, costs,
              query=CostListing),
)  # fmt: skip


def _starts(asked: Asked, width: int, limit: int) -> tuple[list[int], str | None]:
    """Where the buckets of this page begin, and the cursor of the next page if there is one."""
    query = asked.query
    end = int(asked.administration.clock.now()) + 1 if query.end_time is None else query.end_time
    begin = query.start_time if query.page is None else _cursor(query.page)
    first = begin - begin % width
    starts = list(range(first, end, width)[:limit]) if begin < end else []
    following = first + len(starts) * width
    return starts, f"{_CURSOR}{following}" if starts and following < end else None


def _cursor(page: str) -> int:
    digits = page.removeprefix(_CURSOR)
    if not page.startswith(_CURSOR) or not (digits.isascii() and digits.isdigit()):
        raise _no_page()
    if len(digits) > 12:
        raise _no_page()
    return int(digits)


def _no_page() -> InvalidRequest:
    return InvalidRequest("page is not the next_page of an answer. Begin without it.", param="page")


async def _slices(asked: Asked, starts: Sequence[int], width: int) -> list[UsageSlice]:
    """What the buckets hold. One project or one key is asked for by its id, of several all."""
    if not starts:
        return []
    query, end = asked.query, starts[-1] + width
    until = end if query.end_time is None else min(end, query.end_time)
    found = await asked.administration.reports.slices(
        starts[0],
        until,
        width_seconds=width,
        project_id=_only(query.project_ids),
        key_id=_only(query.api_key_ids),
    )
    return [
        each
        for each in found
        if (query.project_ids is None or each.project_id in query.project_ids)
        and (query.api_key_ids is None or each.key_id in query.api_key_ids)
    ]


def _only(ids: list[str] | None) -> str | None:
    return ids[0] if ids is not None and len(ids) == 1 else None


def _by_start(found: Sequence[UsageSlice]) -> dict[int, list[UsageSlice]]:
    slices: dict[int, list[UsageSlice]] = {}
    for each in found:
        slices.setdefault(each.start, []).append(each)
    return slices


_GROUPS: dict[str, Callable[[UsageSlice], Any]] = {
    "project_id": lambda each: each.project_id,
    "api_key_id": lambda each: each.key_id,
    "model": lambda each: each.model,
    "batch": lambda each: each.lane == "batch",
    "service_tier": lambda each: TIERS[each.lane],
    "line_item": lambda each: _line_item(each),
}


def _grouped(
    found: Sequence[UsageSlice], group_by: Sequence[str]
) -> list[tuple[dict[str, Any], list[UsageSlice]]]:
    """The slices of each group, in the order of their names."""
    groups: dict[tuple[Any, ...], list[UsageSlice]] = {}
    for each in found:
        groups.setdefault(tuple(_GROUPS[name](each) for name in group_by), []).append(each)
    return [(dict(zip(group_by, key, strict=True)), groups[key]) for key in sorted(groups)]


def _usage(found: Sequence[UsageSlice], query: UsageListing) -> list[UsageResult]:
    return [
        UsageResult(
            input_tokens=sum(each.input_tokens for each in members),
            input_cached_tokens=sum(each.cached_input_tokens for each in members),
            output_tokens=sum(each.output_tokens for each in members),
            num_model_requests=sum(each.calls for each in members),
            **names,
        )
        for names, members in _grouped(found, query.group_by or ())
    ]


def _costs(found: Sequence[UsageSlice], query: CostListing) -> list[CostResult]:
    results = []
    for names, members in _grouped(found, query.group_by or ()):
        nanos = sum(each.amount_nanos for each in members)
        results.append(CostResult(Amount(nanos / 1e9, format_usd(nanos)), **names))
    return results


def _line_item(each: UsageSlice) -> str:
    return f"{each.model}, {TIERS[each.lane]}"
