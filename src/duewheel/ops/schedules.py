"""Recurring schedules for the commands: set, pause, resume and stop them, list them and their next
instants. A change is a record in the schedules topic, which the scheduler (duewheel/recurring)
applies.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace

from duewheel.api.due_time import DueTime
from duewheel.api.schedules import NewSchedule, ScheduleList, ScheduleSummary
from duewheel.client.request_headers import timer_headers
from duewheel.clock import SystemClock
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, NoSuchSchedule
from duewheel.kafka.connect.bootstrap import require_connection
from duewheel.kafka.connect.clients import ClientSettings
from duewheel.kafka.connect.deadline import Deadline
from duewheel.kafka.progress.state_topic import place_of
from duewheel.kafka.topic_follower import KeyedRecord, TopicFollower
from duewheel.ops.changes.acceptance import require_accepted
from duewheel.ops.changes.producers import ACKNOWLEDGED_S, producer_of
from duewheel.ops.changes.requests import timer_topic_of
from duewheel.recurring.records import (
    read_heartbeat,
    read_table,
    schedules_topic,
)
from duewheel.recurring.schedule import SCHEDULE_PREFIX, Schedule, require_name
from duewheel.recurring.scheduler import Table
from duewheel.recurring.steps import AHEAD_MS
from duewheel.schemas.request.topic_settings import FIRE

NEXT = 10
_READ_S = 30.0
_PAUSE_S = 0.05


def put(settings: Settings, name: str, new: NewSchedule, wait_s: float) -> ScheduleSummary:
    """Sets a schedule, or replaces the one of this name; it begins now.

    Args:
        wait_s: how long to wait for the scheduler to apply it; 0: not at all.

    Raises:
        ConfigError: as `accepted_schedule`, or as `overview`.
        KafkaUnavailable, Unacknowledged: as `ops.changes.send`.
    """
    schedule = accepted_schedule(settings, name, new)
    return _written(settings, name, lambda _: schedule, wait_s)


def accepted_schedule(settings: Settings, name: str, new: NewSchedule) -> Schedule:
    """A schedule that begins now.

    Raises:
        ConfigError: it can never fire, or its firings would become dead letters.
    """
    clock = SystemClock()
    topic = timer_topic_of(settings, new.timer_topic)
    schedule = Schedule(
        name=name,
        revision=secrets.token_hex(4),
        timer_topic=topic,
        target=new.target,
        cron=new.cron,
        zone=new.zone,
        interval_ms=new.every_ms,
        start_ms=clock.now_ms() + (new.every_ms or 0),
        key=new.key_octets,
        value=new.value_octets,
        headers=tuple(new.header_octets),
        missed=new.missed,
    )
    upcoming = next(schedule.instants().after(clock.now_ms()), None)
    if upcoming is None:
        raise ConfigError(f'"{new.cron}" has no instant in the next 50 years')
    contract = settings.timer.contracts.get(topic, settings.timer.default_contract)
    if contract.past_due != FIRE:
        raise ConfigError(f"{topic} refuses what is past due (past_due), such as a late firing")
    request = timer_headers(
        schedule.target,
        DueTime.of(clock.now_ms() + AHEAD_MS),  # as late as a firing may be due when it is written
        topic,
        headers=schedule.headers,
        id=schedule.timer_id(upcoming),
    )
    require_accepted(settings, topic, schedule.key, schedule.value, request)
    return schedule


def pause(settings: Settings, name: str, wait_s: float, *, on: bool) -> ScheduleSummary:
    """Pauses a schedule, or resumes it. Arguments, result and errors are those of `put`."""
    return _written(settings, name, lambda former: paused(name, former, on=on), wait_s)


def paused(name: str, present: Schedule | None, *, on: bool) -> Schedule:
    """The schedule of this name, paused or resumed.

    Raises:
        NoSuchSchedule: there is none.
    """
    return replace(require_schedule(name, present), paused=on, revision=secrets.token_hex(4))


def stop(settings: Settings, name: str, wait_s: float) -> ScheduleSummary:
    """Ends a schedule for good. Arguments, result and errors are those of `put`."""

    def deleted(present: Schedule | None) -> None:
        require_schedule(name, present)

    return _written(settings, name, deleted, wait_s)


def overview(settings: Settings) -> ScheduleList:
    """Reads all schedules.

    Raises:
        ConfigError: the settings name no topic for them, or there is none of this name.
        KafkaUnavailable: no answer in time.
    """
    with _records(settings) as records:
        table, newest = records.table(), records.records.values()
    now_ms, heartbeat = _now_ms(), read_heartbeat(settings, newest)
    rows = [_row(table, name, now_ms) for name in sorted(table.schedules)]
    return ScheduleList(
        schedules=rows, scheduler=heartbeat.state(now_ms), heartbeat_ms=heartbeat.at_ms
    )


def next_instants(schedule: Schedule) -> list[int]:
    """The next ten instants of a schedule, pauses aside, in epoch ms."""
    return list(itertools.islice(schedule.instants().after(_now_ms()), NEXT))


def schedule_of(settings: Settings, name: str) -> Schedule:
    """A schedule.

    Raises:
        NoSuchSchedule: there is none of this name, or it cannot be read.
    """
    require_name(name)
    with _records(settings) as records:
        return require_schedule(name, records.table().schedules.get(name))


def require_schedule(name: str, present: Schedule | None) -> Schedule:
    """The schedule that is there.

    Raises:
        NoSuchSchedule: there is none.
    """
    if present is None:
        raise NoSuchSchedule(f"there is no schedule {name!r}")
    return present


def _now_ms() -> int:
    return SystemClock().now_ms()


@dataclass
class _Records:
    """The records of the schedules topic, read up to its end."""

    follower: TopicFollower
    records: dict[bytes, KeyedRecord] = field(default_factory=dict)

    def table(self) -> Table:
        """The present records."""
        return read_table(self.records.values())

    def take(self, records: list[KeyedRecord]) -> None:
        self.records |= {record.key: record for record in records}


@contextmanager
def _records(settings: Settings) -> Iterator[_Records]:
    place = place_of(schedules_topic(settings), 0)
    require_connection(settings)
    client = ClientSettings(settings.kafka.client_options("consumer"))
    with closing(TopicFollower(client, place)) as follower:
        records = _Records(follower)
        records.take(follower.read_to_end(Deadline(_READ_S)))
        yield records


def _written(
    settings: Settings,
    name: str,
    change: Callable[[Schedule | None], Schedule | None],
    wait_s: float,
) -> ScheduleSummary:
    """Writes a change, and waits until the scheduler has applied it."""
    require_name(name)
    topic = schedules_topic(settings)
    with _records(settings) as records:
        former = records.table().schedules.get(name)
        schedule = change(former)
        value = None if schedule is None else schedule.encode()
        one = schedule or former
        assert one is not None, "a change of nothing is refused"
        with producer_of(settings, one.timer_topic) as producer:
            sent = producer.send(topic, value, SCHEDULE_PREFIX + name.encode())
            sent.get(timeout=ACKNOWLEDGED_S)
        end_s = time.monotonic() + wait_s
        while True:
            records.take(records.follower.poll(Deadline(_READ_S)))
            position = records.table().positions.get(name)
            applied = (position and position.revision) == (schedule and schedule.revision)
            if applied or time.monotonic() >= end_s:
                break
            time.sleep(_PAUSE_S)
        if schedule is None:
            return ScheduleSummary(name=name, state="stopped", applied=applied)
        table = records.table()
        table = replace(table, schedules={**table.schedules, name: schedule})
        return _row(table, name, _now_ms())


def _row(table: Table, name: str, now_ms: int) -> ScheduleSummary:
    schedule, position = table.schedules[name], table.positions.get(name)
    if schedule is None:
        return ScheduleSummary(name=name, state="unreadable")
    upcoming = None if schedule.paused else next(schedule.instants().after(now_ms), None)
    return ScheduleSummary(
        name=name,
        state="paused" if schedule.paused else "active",
        cron=schedule.cron,
        zone=None if schedule.cron is None else schedule.zone,
        every_ms=schedule.interval_ms,
        target=schedule.target,
        timer_topic=schedule.timer_topic,
        missed=schedule.missed,
        last_due_ms=None if position is None else position.fired_by(now_ms),
        next_due_ms=upcoming,
        applied=position is not None and position.revision == schedule.revision,
    )
