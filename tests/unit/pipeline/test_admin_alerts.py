"""Spend alerts by ids, on the rooms in memory: an admin key sees its own organisation's only."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forebay.core.errors import InvalidRequest, NotFound
from forebay.core.money import MAX_NANOS
from forebay.pipeline.admin_alerts import AlertRequest
from forebay.pipeline.administration import Administration
from forebay.pipeline.desk import Actor, Desk
from forebay.tenancy import ChangeQuery
from forebay.testing.clock import FakeClock
from forebay.testing.desk import memory_desk

URL = "https://a.example/hook"
REQUEST = AlertRequest(5, URL, ("a@x.example",), "Spend")


class Place:
    """Two organisations; the first has the projects web and batch."""

    def __init__(self, desk: Desk, clock: FakeClock) -> None:
        self.desk, self.clock = desk, clock

    async def open(self) -> None:
        ensure = self.desk.tenancy.ensure
        self.web = await ensure("acme", "web", plan="standard")
        self.batch = await ensure("acme", "batch", plan="standard")
        self.other = await ensure("other", "web", plan="standard")
        self.mine = Administration(self.desk, Actor("adm_1", self.web.organisation_id)).alerts
        self.theirs = Administration(self.desk, Actor("adm_2", self.other.organisation_id)).alerts


@pytest.fixture
async def place() -> Place:
    clock = FakeClock()
    place = Place(memory_desk(clock), clock)
    await place.open()
    return place


async def test_alerts_of_an_organisation_and_of_its_projects_are_apart(place: Place) -> None:
    web, batch = place.web.project_id, place.batch.project_id
    whole = await place.mine.create(None, REQUEST)
    of_web = await place.mine.create(web, REQUEST)
    assert (whole.organisation_id, whole.project_id) == (place.web.organisation_id, None)
    assert (whole.recipients, whole.subject_prefix) == (("a@x.example",), "Spend")
    assert await place.mine.list(None) == [whole]
    assert await place.mine.list(web) == [of_web]
    assert await place.mine.list(batch) == []
    assert await place.mine.one(web, of_web.id) == of_web


async def test_l14_alerts_of_another_organisation_are_none(place: Place) -> None:
    """L14: their ids answer as ids that do not exist."""
    web = place.web.project_id
    whole, of_web = await place.mine.create(None, REQUEST), await place.mine.create(web, REQUEST)
    assert await place.theirs.list(None) == []
    for project, alert in ((None, whole.id), (None, of_web.id), (web, of_web.id)):
        for verb in (
            place.theirs.one(project, alert),
            place.theirs.update(project, alert, REQUEST),
            place.theirs.delete(project, alert),
        ):
            with pytest.raises(NotFound):
                await verb
    with pytest.raises(NotFound):
        await place.theirs.create(web, REQUEST)
    assert len(await place.desk.alerts.alerts()) == 2


async def test_an_update_keeps_the_id_and_enables_again(place: Place) -> None:
    alert = await place.mine.create(None, REQUEST)
    now = place.clock.now()
    await place.desk.alerts.put(replace(alert, enabled=False), at=now, since="2027-01")
    changed = await place.mine.update(None, alert.id, replace(REQUEST, threshold_nanos=7))
    assert changed == replace(alert, threshold_nanos=7)


@pytest.mark.parametrize(
    "request_",
    [
        AlertRequest(0, URL),
        AlertRequest(MAX_NANOS + 1, URL),
        AlertRequest(5, "http://a.example/"),
        AlertRequest(5, "mailto:a@x.example"),
    ],
)
async def test_what_could_never_work_is_refused(place: Place, request_: AlertRequest) -> None:
    with pytest.raises(InvalidRequest):
        await place.mine.create(None, request_)
    assert await place.mine.list(None) == []


async def test_changes_are_in_the_journal(place: Place) -> None:
    web = place.web.project_id
    alert = await place.mine.create(web, REQUEST)
    await place.mine.delete(web, alert.id)
    changes = await place.desk.journal.changes(ChangeQuery(place.web.organisation_id))
    assert [(each.type, each.subject_id, each.project_id) for each in changes] == [
        ("project.updated", alert.id, web)
    ] * 2
    assert [each.details["changes_requested"]["spend_alert_usd"] for each in changes] == [
        None,
        "0.000000005",
    ]


async def test_each_alert_has_a_secret_of_its_own(place: Place) -> None:
    first, second = await place.mine.create(None, REQUEST), await place.mine.create(None, REQUEST)
    assert place.mine.secret(first.id) == place.mine.secret(first.id)
    assert place.mine.secret(first.id) != place.mine.secret(second.id)
