"""Recurring schedules in the test kit: recurring timers, driven by the clock of the test."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from duewheel.errors import ConfigError, NoSuchSchedule
from duewheel.testing.service import LocalService
from duewheel.testing.service_start import START

BERLIN = ZoneInfo("Europe/Berlin")
DAILY = {"cron": "30 8 * * *", "zone": "Europe/Berlin", "target": "reports", "value": "daily"}


@pytest.fixture
def service() -> Iterator[LocalService]:
    with LocalService.started() as started:
        yield started


def times(service: LocalService, topic: str = "reports") -> list[datetime]:
    return [
        datetime.fromtimestamp(message.delivered_ms / 1000, UTC)
        for message in service.delivered(topic)
    ]


def test_a_schedule_fires_at_its_wall_time(service: LocalService) -> None:
    service.advance_to(datetime(2027, 3, 26, 12, tzinfo=BERLIN))
    service.schedules.set("daily", **DAILY)
    service.advance("3d")
    wall = [each.astimezone(BERLIN).strftime("%d %H:%M") for each in times(service)]
    assert wall == ["27 08:30", "28 08:30", "29 08:30"]  # the clocks were set forward on the 28th
    (message, *_) = service.delivered("reports")
    assert (message.value, message.due_ms) == (b"daily", message.delivered_ms)
    assert message.id == f"daily@{message.due_ms}"


def test_an_interval_counts_from_set(service: LocalService) -> None:
    service.advance("7s")
    service.schedules.set("poll", every="90s", target="reports", key="42")
    service.advance("5m")
    begun = START + timedelta(seconds=7)
    assert times(service) == [begun + number * timedelta(seconds=90) for number in (1, 2, 3)]


def test_a_pause_has_a_note_and_keeps_the_phase_of_an_interval(service: LocalService) -> None:
    begun_ms = service.now_ms()
    service.schedules.set("poll", every="10s", target="reports", value="1", jitter="3s")
    service.advance("25s")
    before = [message.due_ms for message in service.delivered("reports")]
    assert all(0 <= (at or 0) - begun_ms - 10_000 * n <= 3_000 for n, at in enumerate(before, 1))
    service.schedules.pause("poll", "until the audit")
    (timer,) = service.pending()
    assert dict(timer.headers)["TIMER_PAUSED"] == b"until the audit"
    service.advance("3s")
    service.schedules.resume("poll")
    service.advance("1m")
    due = [message.due_ms or 0 for message in service.delivered("reports")]
    assert due == list(range(due[0], due[-1] + 1, 10_000)) and len(due) > len(before)


def test_a_trigger_fires_once_more_and_moves_no_instant(service: LocalService) -> None:
    service.schedules.set("daily", **DAILY, key="k", headers=[{"name": "a", "value": "b"}])
    service.advance("1s")
    before = [timer.due_ms for timer in service.pending()]
    service.schedules.trigger("daily")
    service.advance("1s")
    (message,) = service.delivered("reports")
    assert (message.key, message.value, message.header("a")) == (b"k", b"daily", b"b")
    assert (message.id or "").startswith("daily@triggered-")
    assert [timer.due_ms for timer in service.pending()] == before


def test_a_program_makes_one_with_the_client(service: LocalService) -> None:
    producer = service.producer()
    first = producer.schedule(
        "reports", b"1", id="poll", every="10s", ends=service.now_ms() + 25_000
    )
    assert first.result().due_ms == service.now_ms()
    service.advance("1m")
    assert len(times(service)) == 2
    producer.schedule("reports", b"2", id="poll", every="10s").result()
    again = producer.reschedule(
        "poll", topic="reports", value=b"3", cron="30 * * * *", zone="Asia/Kolkata", missed="one"
    )
    service.advance("2h")
    assert again.result().answer(0) == "cancelled"
    assert [message.value for message in service.delivered("reports")] == [b"1"] * 2 + [b"3"] * 2
    service.schedules.stop("poll")
    assert service.pending() == []


def test_a_pause_a_new_time_and_a_stop_hold_at_once(service: LocalService) -> None:
    service.schedules.set("poll", every="10s", target="reports", value="1")
    service.advance("25s")
    service.schedules.pause("poll")  # cancels what is written for the next minute
    service.advance("1h")
    assert len(times(service)) == 2
    service.schedules.resume("poll")
    service.advance("21s")
    service.schedules.set("poll", every="1h", target="reports", value="2")
    service.advance("3h")
    service.schedules.stop("poll")
    service.advance("1d")
    values = [message.value for message in service.delivered("reports")]
    assert values == [b"1"] * 4 + [b"2"] * 3
    assert service.pending() == []


def test_a_consumer_may_stop_its_schedule(service: LocalService) -> None:
    @service.consumer("reports")
    def once(record: Any) -> None:
        service.schedules.stop("daily")

    service.schedules.set("daily", **DAILY)
    service.advance("7d")
    assert len(times(service)) == 1


def test_many_firings_of_several_schedules_leave_in_order(service: LocalService) -> None:
    for name, seconds in (("a", 1), ("b", 7)):
        service.schedules.set(name, every=f"{seconds}s", target="reports", value=name)
    service.advance("140s")
    values = [message.value for message in service.delivered("reports")]
    assert (values.count(b"a"), values.count(b"b")) == (140, 20)
    assert times(service) == sorted(times(service))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"cron": "61 * * * *", "target": "reports"}, "61"),
        ({"cron": "* * * * *", "evry": "1h", "target": "reports"}, "evry"),
        ({"every": "1h"}, "target"),
        ({"every": "10ms", "target": "reports"}, "below a second"),
        ({"every": "1h", "zone": "UTC", "target": "reports"}, "zone belongs to cron"),
        ({"cron": "0 8 31 2 *", "target": "reports"}, "has no instant"),
        ({"cron": "0 8 * * *", "zone": "Nowhere/City", "target": "reports"}, "no time zone"),
        ({"every": "1h", "ends": 1_000, "target": "reports"}, "no instant to come"),
        ({"every": "1h", "target": "timers.replies"}, "dead letter"),
    ],
)
def test_what_the_service_would_refuse_is_refused(
    service: LocalService, fields: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        service.schedules.set("daily", **{"value": "v", **fields})


def test_a_schedule_that_does_not_exist_is_named(service: LocalService) -> None:
    for change in (service.schedules.pause, service.schedules.resume, service.schedules.stop):
        with pytest.raises(NoSuchSchedule, match="'nightly'"):
            change("nightly")


def test_a_timer_topic_that_is_not_open_for_them_is_named_with_the_remedy() -> None:
    settings = {"timer": {"topics": ["timers"], "targets": ["*"]}}
    with (
        LocalService.started(settings) as service,
        pytest.raises(ConfigError, match="`recurring = true` of its table"),
    ):
        service.schedules.set("daily", **DAILY)
