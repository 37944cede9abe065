"""Recurring schedules in the test kit: the real scheduler, driven by the clock of the test."""

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
    assert (message.id or "").startswith(f"daily@{message.due_ms}.")


def test_an_interval_counts_from_set(service: LocalService) -> None:
    service.advance("7s")
    service.schedules.set("poll", every="90s", target="reports", key="42")
    service.advance("5m")
    begun = START + timedelta(seconds=7)
    assert times(service) == [begun + number * timedelta(seconds=90) for number in (1, 2, 3)]


def test_a_firing_is_written_however_short_before_the_time_was_advanced_to(
    service: LocalService,
) -> None:
    """The loop closes empty slots together: none has closed since."""
    service.schedules.set("poll", every="90s", target="reports", value="poll")
    service.advance("29s 999ms")
    service.advance("1ms")
    assert [timer.target for timer in service.pending()] == ["reports"]


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
        ({"every": "1h", "target": "timers.replies"}, "dead letter"),
    ],
)
def test_what_the_service_would_refuse_is_refused(
    service: LocalService, fields: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        service.schedules.set("daily", **fields)


def test_a_schedule_that_does_not_exist_is_named(service: LocalService) -> None:
    for change in (service.schedules.pause, service.schedules.resume, service.schedules.stop):
        with pytest.raises(NoSuchSchedule, match="'nightly'"):
            change("nightly")


def test_settings_without_a_topic_have_no_schedules() -> None:
    settings = {"timer": {"topics": ["timers"], "targets": ["*"]}}
    with (
        LocalService.started(settings) as service,
        pytest.raises(ConfigError, match="schedules_topic"),
    ):
        service.schedules.stop("daily")
