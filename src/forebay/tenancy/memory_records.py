"""The journal in memory: what other implementations are compared with."""

from __future__ import annotations

from forebay.tenancy.contract import Change, ChangeQuery, Journal


class MemoryJournal(Journal):
    """A list."""

    def __init__(self) -> None:
        self._changes: list[Change] = []

    async def record(self, change: Change) -> None:
        self._changes.append(change)

    async def changes(self, query: ChangeQuery) -> list[Change]:
        mine = [c for c in self._changes if c.organisation_id == query.organisation_id]
        if query.after is not None:
            ids = [change.id for change in mine]
            if query.after in ids:
                mine = mine[: ids.index(query.after)]
            else:
                mine = [change for change in mine if change.id < query.after]
        return [change for change in reversed(mine) if _matches(query, change)][: query.limit]


def _matches(query: ChangeQuery, change: Change) -> bool:
    return (
        (query.types is None or change.type in query.types)
        and (query.project_ids is None or change.project_id in query.project_ids)
        and (query.actor_ids is None or change.actor_id in query.actor_ids)
        and (query.subject_ids is None or change.subject_id in query.subject_ids)
        and (query.since is None or change.at >= query.since)
        and (query.until is None or change.at < query.until)
    )
