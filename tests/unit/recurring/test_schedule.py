from __future__ import annotations

from dataclasses import replace

import pytest

from duewheel.errors import ConfigError
from duewheel.kafka.topic_follower import KeyedRecord
from duewheel.recurring.records import read_table
from duewheel.recurring.schedule import FiringPosition, Schedule

PLAIN = Schedule("report", "r1", "timers", "orders", cron="0 8 * * 1-5", zone="Europe/Berlin")
FULL = Schedule(
    name="poll",
    revision="r2",
    timer_topic="timers",
    target="orders",
    interval_ms=90_000,
    start_ms=7,
    key=b"\xff",
    value=b"\x00body",
    headers=(("a", b"1"), ("a", b"")),
    missed="all",
    paused=True,
)


@pytest.mark.parametrize("schedule", [PLAIN, FULL], ids=lambda s: s.name)
def test_a_record_is_read_as_it_was_written(schedule: Schedule) -> None:
    found = Schedule.decode(schedule.name, schedule.encode(), since_ms=5)
    assert found == schedule and found.since_ms == 5


def test_a_position_is_read_as_it_was_written() -> None:
    position = FiringPosition("r1", "timers", 5, ((7, 0), (9, 3)))
    assert FiringPosition.decode("report", position.encode()) == position


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"name": "a b"}, "no name"),
        ({"name": ""}, "no name"),
        ({"cron": None}, "either"),
        ({"interval_ms": 5_000}, "either"),
        ({"cron": None, "interval_ms": 999}, "below a second"),
        ({"cron": "0 25 * * *"}, "no cron expression"),
        ({"cron": "0 8 * *"}, "no cron expression"),
        ({"cron": ""}, "no cron expression"),
        ({"zone": "Europe/Nowhere"}, "no time zone"),
        ({"zone": "../etc/passwd"}, "no time zone"),
        ({"zone": ""}, "no time zone"),
        ({"missed": "some"}, "none of"),
        ({"value": b"x" * (256 * 1024 + 1)}, "256 KiB"),
        ({"target": ""}, "no name of a topic"),
        ({"target": "a b"}, "no name of a topic"),
        ({"timer_topic": "x" * 250}, "no name of a topic"),
        ({"headers": (("TIMER_DELAY_MS", b"1"),)}, "TIMER_DELAY_MS"),
        ({"cron": "0-59/1," * 200 + "0 * * * *"}, "1000 characters"),
    ],
    ids=str,
)
def test_what_is_refused(change: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        replace(PLAIN, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value", [b"", b"[]", b"{}", b"\xff", PLAIN.encode().replace(b'"paused"', b'"paus"')], ids=repr
)
def test_a_foreign_record_is_refused(value: bytes) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        Schedule.decode("report", value, 0)
    with pytest.raises(ConfigError, match="cannot be read"):
        FiringPosition.decode("report", value)


@pytest.mark.parametrize("instant_ms", [-1, 253_402_300_799_999, 2**63 - 1])
def test_an_instant_that_no_date_has_is_refused(instant_ms: int) -> None:
    """Cron computes with dates: the error would end the scheduler, at each start again."""
    for position in (
        FiringPosition("r1", "timers", instant_ms),
        FiringPosition("r1", "timers", 5, ((instant_ms, 0),)),
        FiringPosition("r1", "timers", 5, fired_ms=instant_ms),
    ):
        with pytest.raises(ConfigError, match="cannot be read"):
            FiringPosition.decode("report", position.encode())
    if instant_ms > 0:  # a record without a timestamp has -1
        with pytest.raises(ConfigError, match="timestamp"):
            Schedule.decode("report", PLAIN.encode(), instant_ms)


@pytest.mark.parametrize("key", [b"schedule/evil", b"position/evil"])
def test_a_foreign_record_stops_no_other_schedule(key: bytes) -> None:
    foreign = [b"{}", b"", PLAIN.encode().replace(b'"orders"', b'""'), b"\xff"]
    for value in foreign:
        records = [
            KeyedRecord(b"schedule/good", PLAIN.encode(), 1),
            KeyedRecord(b"schedule/evil", PLAIN.encode(), 1),
            KeyedRecord(key, value, 2),
        ]
        table = read_table(records)
        assert table.schedules["good"] is not None
        assert table.schedules["evil"] is None, "it does not fire"
