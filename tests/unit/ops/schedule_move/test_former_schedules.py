"""Schedules of a former `recur`: what is read of its records, and what is still to fire."""

from __future__ import annotations

import json
from typing import Any

import pytest

from duewheel.errors import ConfigError
from duewheel.kafka.progress.newest import NewestRecord
from duewheel.ops.schedule_move.former_schedules import FormerSchedule, is_alive, read_schedules

T0 = 1_800_000_000_000
SECOND_MS, MINUTE_MS, HOUR_MS = 1_000, 60_000, 3_600_000
SAMPLE: dict[str, Any] = {
    "revision": "r1",
    "timer_topic": "timers",
    "target": "orders",
    "cron": "0  * * * *",
    "zone": "Europe/Berlin",
    "interval_ms": None,
    "start_ms": 0,
    "key": "aw==",
    "value": None,
    "headers": [["a", "Yg=="]],
    "missed": "skip",
    "paused": False,
}
EVERY: dict[str, Any] = {"cron": None, "interval_ms": MINUTE_MS, "start_ms": T0 - 30 * HOUR_MS + 5}


def records(position: dict[str, Any] | None = None, **own: Any) -> dict[bytes, NewestRecord]:
    found = {b"schedule/daily": NewestRecord(json.dumps({**SAMPLE, **own}).encode(), T0)}
    if position is not None:
        found[b"position/daily"] = NewestRecord(json.dumps(position).encode(), T0)
    return found


def read(position: dict[str, Any] | None = None, **own: Any) -> FormerSchedule:
    found = read_schedules(records(position, **own))["daily"]
    assert not isinstance(found, str), found
    return found


def test_the_message_and_its_recurrence() -> None:
    found = read()
    assert (found.key, found.value, found.written_ms) == (b"k", None, T0)
    assert found.seed(T0 + 5) == [
        ("a", b"b"),
        ("TIMER_CRON", b"0 * * * *"),
        ("TIMER_ZONE", b"Europe/Berlin"),
        ("TIMER_MISSED", b"skip"),
        ("TIMER_STARTS_MS", b"%d" % (T0 + 5)),
        ("UNIQ_KEY", b"daily"),
        ("REAL_TOPIC", b"orders"),
    ]
    assert ("TIMER_DELIVER_MS", b"7") in found.firing(7)
    assert ("UNIQ_KEY", b"daily@7") in found.firing(7)
    paused = [name for name, _ in read(paused=True, **EVERY).seed(T0)]
    assert "TIMER_PAUSED" in paused and "TIMER_EVERY" in paused and "TIMER_ZONE" not in paused


@pytest.mark.parametrize(
    ("position", "written_ms"),
    [
        (None, T0),
        ({"revision": "r0", "done_ms": T0 - 5, "ahead": []}, T0),  # it was changed since
        ({"revision": "r0", "done_ms": T0 - 5, "ahead": [[T0 + 7, 0]]}, T0 + 7),
        ({"revision": "r1", "done_ms": T0 - 5, "ahead": []}, T0 - 5),
        ({"revision": "r1", "done_ms": T0 + 5, "ahead": [[T0 + 7, 0], [T0 + 9, 1]]}, T0 + 9),
    ],
)
def test_no_instant_is_written_again(position: dict[str, Any] | None, written_ms: int) -> None:
    assert read(position).written_ms == written_ms


@pytest.mark.parametrize(
    ("missed", "fired"),
    [
        ("skip", [5 * HOUR_MS]),
        ("one", [4 * HOUR_MS, 5 * HOUR_MS]),
        ("all", [n * HOUR_MS for n in range(1, 6)]),
    ],
)
def test_the_policy_decides_about_missed_instants(missed: str, fired: list[int]) -> None:
    """The fifth is late by less than a minute."""
    now_ms = T0 + 5 * HOUR_MS + 30 * SECOND_MS
    found = read({"revision": "r1", "done_ms": T0, "ahead": []}, missed=missed)
    wanted = [T0 + at for at in fired], T0 + 6 * HOUR_MS
    assert found.instants(now_ms, now_ms + MINUTE_MS) == wanted


def test_an_interval_keeps_its_phase() -> None:
    found, paused = read(**EVERY), read(paused=True, **EVERY)
    assert found.instants(T0, T0 + MINUTE_MS) == ([T0 + 5], T0 + 5 + MINUTE_MS)
    assert paused.instants(T0, T0 + MINUTE_MS) == ([], T0 + 5 + MINUTE_MS)


@pytest.mark.parametrize("cron", ["0 0 31 2 *", "nonsense", ""])
def test_what_has_no_instant_is_not_moved(cron: str) -> None:
    with pytest.raises(ConfigError):
        read(cron=cron).instants(T0, T0)


@pytest.mark.parametrize(
    "own",
    [
        {"paused": 1},
        {"interval_ms": 5},
        {"cron": None},
        {"cron": None, "interval_ms": 999},
        {"start_ms": -1},
        {"headers": [["a"]]},
        {"key": "?"},
    ],
)
def test_what_cannot_be_read_says_why(own: dict[str, Any]) -> None:
    found = read_schedules(records(**own))["daily"]
    assert isinstance(found, str) and "cannot be read" in found


def test_a_position_that_cannot_be_read_keeps_its_schedule() -> None:
    assert isinstance(read_schedules(records({"done_ms": T0}))["daily"], str)


def test_stopped_schedules_and_other_keys_are_none() -> None:
    stopped = {b"schedule/a": NewestRecord(b"", T0), b"move": NewestRecord(b"x", T0)}
    assert read_schedules(stopped) == {}


def test_a_heartbeat_is_one_until_it_is_old_or_withdrawn() -> None:
    beat = {b"owner": NewestRecord(b'{"owner": "a"}', T0)}
    assert is_alive(beat, T0 + 10, 10) and not is_alive(beat, T0 + 11, 10)
    assert not is_alive({b"owner": NewestRecord(b"", T0)}, T0, 10) and not is_alive({}, T0, 10)
