"""What every Alerts must do. Fixture: `alerts`, empty, with a CountingIds of its own."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from forebay.alerts import AlertEvent, Alerts, EventState, Posting, SpendAlert
from forebay.core.hold import Period

NOW = 1_800_000_000.0
MONTH, NEXT, LAST = "2027-01", "2027-02", "2026-12"
ALERT = SpendAlert("alert_1", "org", None, 100, "https://a.example/", ("a@x",), "Spend", NOW)
PROJECT = replace(
    ALERT,
    id="alert_2",
    project_id="proj",
    webhook_url="https://b.example/",
    recipients=(),
    subject_prefix=None,
)


SINCE = {Period.DAY: "2027-01-15", Period.MONTH: MONTH, Period.TOTAL: ""}


async def put(alerts: Alerts, alert: SpendAlert, at: float = NOW) -> SpendAlert:
    """In January."""
    return await alerts.put(alert, at=at, since=SINCE[alert.interval])


async def spend(alerts: Alerts, amount: int, *places: tuple[str, str]) -> list[AlertEvent]:
    """One outbox row that posts this amount to each (scope, period)."""
    after = await alerts.cursor()
    postings = [Posting(scope, period_id, amount) for scope, period_id in places]
    return await alerts.fold(postings, after=after, through=after + 1, at=NOW)


async def test_what_was_put_is_listed_oldest_first_until_it_is_removed(alerts: Alerts) -> None:
    assert await put(alerts, ALERT) == ALERT
    await put(alerts, PROJECT)
    assert await alerts.alerts() == [ALERT, PROJECT]
    assert await alerts.remove("alert_1") == ALERT
    assert await alerts.alerts() == [PROJECT]
    with pytest.raises(KeyError):
        await alerts.remove("alert_1")


async def test_replacing_keeps_whose_it_is_and_when_it_was_made(alerts: Alerts) -> None:
    await put(alerts, ALERT)
    await put(alerts, PROJECT)
    wanted = replace(
        ALERT, organisation_id="other", created_at=0.0, threshold_nanos=7, webhook_url="u"
    )
    stored = replace(ALERT, threshold_nanos=7, webhook_url="u")
    assert await put(alerts, wanted) == stored
    assert await alerts.alerts() == [stored, PROJECT]


async def test_the_threshold_fires_once_a_period(alerts: Alerts) -> None:
    await put(alerts, ALERT)
    assert await spend(alerts, 99, ("org", MONTH)) == []
    (event,) = await spend(alerts, 1, ("org", MONTH))
    assert event == AlertEvent(event.id, "alert_1", MONTH, 100, 100, NOW, next_at=NOW)
    assert await spend(alerts, 500, ("org", MONTH)) == []
    (second,) = await spend(alerts, 100, ("org", NEXT))
    assert (second.period_id, second.spent_nanos) == (NEXT, 100)
    assert second.id != event.id
    assert await alerts.events("alert_1") == [second, event]


async def test_an_alert_sees_its_own_scope_and_interval_only(alerts: Alerts) -> None:
    await put(alerts, ALERT)
    await put(alerts, PROJECT)
    day = replace(ALERT, id="alert_3", interval=Period.DAY)
    total = replace(ALERT, id="alert_4", interval=Period.TOTAL)
    await put(alerts, day)
    await put(alerts, total)
    assert await spend(alerts, 100, ("elsewhere", MONTH), ("elsewhere", "")) == []
    assert [e.alert_id for e in await spend(alerts, 100, ("proj", MONTH))] == ["alert_2"]
    fired = await spend(alerts, 100, ("org", ""), ("org", "2027-01-15"), ("org", MONTH))
    assert [(e.alert_id, e.period_id) for e in fired] == [
        ("alert_4", ""),
        ("alert_3", "2027-01-15"),
        ("alert_1", MONTH),
    ]


async def test_a_call_of_the_month_before_fires_nothing_of_an_alert_made_since(
    alerts: Alerts,
) -> None:
    await put(alerts, ALERT)
    assert await spend(alerts, 100, ("org", LAST)) == []


async def test_a_sum_above_the_threshold_fires_when_the_alert_is_put(alerts: Alerts) -> None:
    await spend(alerts, 100, ("org", MONTH), ("org", LAST))
    await put(alerts, replace(ALERT, threshold_nanos=101))
    assert await alerts.events("alert_1") == []
    await put(alerts, ALERT, at=NOW + 1)
    (event,) = await alerts.events("alert_1")
    assert (event.period_id, event.threshold_nanos, event.created_at) == (MONTH, 100, NOW + 1)
    await put(alerts, ALERT, at=NOW + 2)
    assert await alerts.events("alert_1") == [event]
    await put(alerts, replace(ALERT, threshold_nanos=200))
    (raised,) = await spend(alerts, 100, ("org", MONTH))
    assert raised.threshold_nanos == 200, "a new threshold is another event"


async def test_postings_of_a_fold_add_up_and_count_once(alerts: Alerts) -> None:
    await put(alerts, ALERT)
    twice = [Posting("org", MONTH, 49)] * 2
    assert await alerts.fold(twice, after=0, through=5, at=NOW) == []
    assert await alerts.cursor() == 5
    assert await alerts.fold(twice, after=0, through=5, at=NOW) == [], "the answer was lost"
    assert await alerts.fold(twice, after=3, through=9, at=NOW) == []
    assert await alerts.cursor() == 5
    (event,) = await alerts.fold([Posting("org", MONTH, 2)], after=5, through=6, at=NOW)
    assert event.spent_nanos == 100


async def test_keepers_that_fold_the_same_rows_at_once_count_them_once(alerts: Alerts) -> None:
    await put(alerts, ALERT)
    folds = [
        alerts.fold([Posting("org", MONTH, 100)], after=0, through=1, at=NOW) for _ in range(20)
    ]
    made = [event for events in await asyncio.gather(*folds) for event in events]
    assert [event.spent_nanos for event in made] == [100]


async def test_large_amounts_stay_exact(alerts: Alerts) -> None:
    await put(alerts, replace(ALERT, threshold_nanos=2**53 + 1))
    assert await spend(alerts, 2**53, ("org", MONTH)) == []
    (event,) = await spend(alerts, 1, ("org", MONTH))
    assert event.spent_nanos == 2**53 + 1


async def test_days_that_are_over_are_forgotten_and_nothing_else(alerts: Alerts) -> None:
    await spend(alerts, 60, ("org", "2027-01-15"), ("org", MONTH), ("org", ""))
    await spend(alerts, 60, ("org", "2027-01-16"))
    await spend(alerts, 60, ("org", "2027-01-18"))
    day = replace(ALERT, interval=Period.DAY, threshold_nanos=50)
    await put(alerts, day)
    periods = {event.period_id for event in await alerts.events("alert_1")}
    assert periods == {"2027-01-16", "2027-01-18"}
    await put(alerts, replace(ALERT, id="alert_9", threshold_nanos=60))
    assert len(await alerts.events("alert_9")) == 1


# -- delivery


async def fired(alerts: Alerts, *made: SpendAlert) -> list[AlertEvent]:
    """These alerts with an event each, in this order."""
    for alert in made:
        await put(alerts, alert)
    return await spend(alerts, 100, *dict.fromkeys((alert.scope, MONTH) for alert in made))


async def test_a_new_event_is_due_at_once_and_again_when_its_time_has_come(
    alerts: Alerts,
) -> None:
    (event,) = await fired(alerts, ALERT)
    (delivery,) = await alerts.due(NOW, 10)
    assert (delivery.event, delivery.alert) == (event, ALERT)
    later = replace(event, attempts=1, next_at=NOW + 5)
    await alerts.record(later)
    assert await alerts.due(NOW + 4.9, 10) == []
    assert [each.event for each in await alerts.due(NOW + 5, 10)] == [later]
    assert await alerts.events("alert_1") == [later]


@pytest.mark.parametrize("state", [EventState.DELIVERED, EventState.GIVEN_UP])
async def test_what_is_over_is_not_due_any_more(alerts: Alerts, state: EventState) -> None:
    (event,) = await fired(alerts, ALERT)
    await alerts.record(replace(event, state=state, attempts=3, next_at=None))
    assert await alerts.due(NOW + 10**9, 10) == []
    assert (await alerts.events("alert_1"))[0].state is state
    assert await alerts.alerts() == [ALERT]
    assert await spend(alerts, 100, ("org", MONTH)) == []


async def test_a_refused_event_disables_its_alert_until_it_is_put_again(alerts: Alerts) -> None:
    (event, _) = await fired(alerts, ALERT, PROJECT)
    await alerts.record(replace(event, state=EventState.REFUSED, attempts=1, next_at=None))
    assert await alerts.alerts() == [replace(ALERT, enabled=False), PROJECT]
    assert await spend(alerts, 100, ("org", NEXT)) == []
    assert [each.alert.id for each in await alerts.due(NOW, 10)] == ["alert_2"]
    await put(alerts, ALERT)
    assert [each.period_id for each in await alerts.events("alert_1")] == [NEXT, MONTH]


async def test_one_address_is_named_once_however_much_waits_for_it(alerts: Alerts) -> None:
    same = replace(ALERT, id="alert_3", project_id="proj3")
    first, second, third = await fired(alerts, ALERT, same, PROJECT)
    assert [each.event for each in await alerts.due(NOW, 10)] == [first, third]
    assert [each.event for each in await alerts.due(NOW, 1)] == [first]
    await alerts.record(replace(first, attempts=1, next_at=NOW + 5))
    await alerts.record(replace(third, attempts=1, next_at=NOW - 1))
    assert [each.event for each in await alerts.due(NOW, 10)] == [
        replace(third, attempts=1, next_at=NOW - 1),
        second,
    ]


async def test_a_clock_that_was_set_back_delays_nothing(alerts: Alerts) -> None:
    (event,) = await fired(alerts, ALERT)
    await alerts.record(replace(event, attempts=1, next_at=NOW + 5))
    assert len(await alerts.due(NOW - 86_400, 10)) == 1


async def test_a_removed_alert_takes_its_events_with_it(alerts: Alerts) -> None:
    (event,) = await fired(alerts, ALERT)
    await alerts.remove("alert_1")
    assert await alerts.due(NOW, 10) == []
    await alerts.record(replace(event, attempts=1))
    assert await alerts.events("alert_1") == []
