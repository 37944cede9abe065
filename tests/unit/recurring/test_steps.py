from __future__ import annotations

from dataclasses import replace

import pytest

from duewheel.recurring.schedule import FiringPosition, Missed, Schedule
from duewheel.recurring.steps import (
    AHEAD_MS,
    FIRINGS_MAX,
    MISSED_MAX,
    FiringCancels,
    Write,
    next_step,
    wake_ms,
    without,
)

HOUR_MS = 3_600_000
HOURLY = Schedule("report", "r1", "timers", "orders", cron="0 * * * *")
SECONDLY = Schedule("poll", "r1", "timers", "orders", interval_ms=1_000, missed="all")
BEFORE = FiringPosition("r1", "timers", 0)


def written(schedule: Schedule, position: FiringPosition | None, now_ms: int) -> Write:
    step = next_step(schedule.name, schedule, position, now_ms)
    assert isinstance(step, Write)
    return step


def test_an_instant_is_written_a_minute_ahead() -> None:
    assert next_step("report", HOURLY, BEFORE, HOUR_MS - AHEAD_MS - 1) is None
    assert wake_ms(HOURLY, BEFORE) == HOUR_MS - AHEAD_MS
    assert written(HOURLY, BEFORE, HOUR_MS - AHEAD_MS).firings == (HOUR_MS,)


def test_a_new_schedule_is_acknowledged_although_nothing_is_due() -> None:
    step = written(replace(HOURLY, since_ms=5), None, 6)
    assert step == Write(FiringPosition("r1", "timers", 5))


def test_instants_that_are_due_leave_the_position() -> None:
    at = FiringPosition("r1", "timers", 0, ((1_000, 0), (2_000, 0), (3_000, 0)))
    step = written(SECONDLY, at, 2_500)
    assert step.position == FiringPosition("r1", "timers", 2_000, ((3_000, 0),), 2_000)
    assert step.position.fired_by(2_999) == 2_000 and step.position.fired_by(3_000) == 3_000
    assert step.firings[0] == 4_000


@pytest.mark.parametrize(
    ("missed", "fired"),
    [("skip", ()), ("one", (9 * HOUR_MS,)), ("all", tuple(n * HOUR_MS for n in range(1, 10)))],
)
def test_missed_instants(missed: Missed, fired: tuple[int, ...]) -> None:
    now_ms = 9 * HOUR_MS + 90_000
    step = written(replace(HOURLY, missed=missed), BEFORE, now_ms)
    assert step.firings == fired
    assert (step.skipped is None) == (missed == "all")


@pytest.mark.parametrize("missed", ["skip", "one"])
def test_an_instant_of_the_last_minute_is_not_missed(missed: Missed) -> None:
    step = written(replace(HOURLY, missed=missed), BEFORE, 9 * HOUR_MS + 60_000)
    assert step.firings == (9 * HOUR_MS,)
    assert step.skipped == (0, 8 * HOUR_MS)


def test_many_missed_instants_fire_in_bounded_steps_and_number() -> None:
    now_ms, position, fired = 10**12, BEFORE, list[int]()
    while isinstance(step := next_step("poll", SECONDLY, position, now_ms), Write):
        assert step.position and len(step.firings) <= FIRINGS_MAX
        fired += step.firings
        position = replace(step.position, ahead=tuple((at, 0) for at in step.firings))
    assert fired == list(range(now_ms - (MISSED_MAX - 1) * 1_000, now_ms + AHEAD_MS + 1, 1_000))


def test_a_change_cancels_first_the_latest_firing_first() -> None:
    at = FiringPosition("r1", "timers", 500, ((1_000, 2), (2_000, 3)))
    step = next_step("poll", replace(SECONDLY, revision="r2"), at, 600)
    ids = (2_000, 3, "poll@2000.r1"), (1_000, 2, "poll@1000.r1")
    assert step == next_step("poll", None, at, 600) == FiringCancels("timers", ids)


def test_an_instant_before_the_change_is_not_cancelled_while_its_shard_is_behind() -> None:
    at = FiringPosition("r1", "timers", 500, ((1_000, 2), (2_000, 3)))
    changed = replace(HOURLY, revision="r2", since_ms=1_500)
    step = next_step("report", changed, at, 1_600)
    assert isinstance(step, FiringCancels) and [ms for ms, *_ in step.timers] == [2_000]
    later = written(replace(changed, since_ms=2_500), at, 2_600)
    assert later.position == FiringPosition("r2", "timers", 2_500, fired_ms=2_000)
    step = next_step("report", None, at, 2_000)
    assert isinstance(step, FiringCancels) and len(step.timers) == 2, "a stop"


def test_what_was_not_cancelled_does_not_fire_again() -> None:
    at = FiringPosition("r1", "timers", 500, ((1_000, 0), (2_000, 0), (3_000, 0)))
    changed = replace(SECONDLY, revision="r2", since_ms=900)
    step = written(changed, without(at, {2_000, 3_000}), 1_100)
    assert step.position == FiringPosition("r2", "timers", 1_000, fired_ms=1_000)
    assert step.firings[:2] == (2_000, 3_000)


def test_a_paused_schedule_writes_its_position_once() -> None:
    paused = replace(HOURLY, revision="r2", paused=True)
    step = written(paused, BEFORE, 10 * HOUR_MS)
    assert step.firings == () and next_step("report", paused, step.position, 20 * HOUR_MS) is None
    assert wake_ms(paused, step.position) is None


def test_a_resumed_one_does_not_make_up_for_the_pause() -> None:
    resumed = replace(HOURLY, revision="r3", since_ms=10 * HOUR_MS + 1, missed="all")
    assert written(resumed, replace(BEFORE, revision="r2"), 10 * HOUR_MS + 5).firings == ()


def test_a_stop_deletes_the_position() -> None:
    assert next_step("report", None, BEFORE, 5) == Write(None)
    assert next_step("report", None, None, 5) is None
