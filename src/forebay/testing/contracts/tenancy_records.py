"""What every Journal must do. Fixture: `journal`, empty, with the
organisations org_1 and org_2 and the project proj_1 of the first in their store.
"""

from __future__ import annotations

from dataclasses import replace

from forebay.tenancy import Change, ChangeQuery, Journal

OURS = ChangeQuery("org_1")


def change(number: int, organisation_id: str = "org_1", **changes: object) -> Change:
    made = Change(
        id=f"audit_{number}",
        at=float(number),
        organisation_id=organisation_id,
        project_id="proj_1" if number % 2 else None,
        actor_id=f"adm_{number % 3}",
        type="project.created" if number % 2 else "organization.updated",
        subject_id=f"thing_{number}",
        details={"name": "für Zoë", "n": number},
    )
    return replace(made, **changes)  # type: ignore[arg-type]


async def test_changes_are_read_newest_first_as_they_were_recorded(journal: Journal) -> None:
    for number in (1, 2, 3):
        await journal.record(change(number))
    assert await journal.changes(OURS) == [change(3), change(2), change(1)]


async def test_l14_changes_of_another_organisation_are_never_read(journal: Journal) -> None:
    """L14: not by a cursor of theirs either, which is answered as an id that is none."""
    for number in range(1, 5):
        await journal.record(change(number, f"org_{number % 2 + 1}"))
    assert [each.id for each in await journal.changes(OURS)] == ["audit_4", "audit_2"]
    behind = [await journal.changes(replace(OURS, after=each)) for each in ("audit_3", "audit_25")]
    assert [[change.id for change in each] for each in behind] == [["audit_2"], ["audit_2"]]
    assert await journal.changes(replace(OURS, after="audit_1")) == []


async def test_changes_are_filtered_and_paged(journal: Journal) -> None:
    for number in range(1, 8):
        await journal.record(change(number))

    async def ids(**asked: object) -> list[int]:
        found = await journal.changes(replace(OURS, **asked))  # type: ignore[arg-type]
        return [int(each.id.removeprefix("audit_")) for each in found]

    assert await ids(limit=2) == [7, 6]
    assert await ids(after="audit_6", limit=2) == [5, 4]
    assert await ids(types=("organization.updated",)) == [6, 4, 2]
    assert await ids(project_ids=("proj_1", "proj_2")) == [7, 5, 3, 1]
    assert await ids(actor_ids=("adm_0",)) == [6, 3]
    assert await ids(subject_ids=("thing_4",)) == [4]
    assert await ids(since=3.0, until=5.0) == [4, 3]
    assert await ids(types=(), limit=5) == []
