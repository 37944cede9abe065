"""Changes of schedules: each is one record in the partition of the pending copy.

So a change is whole or not there, and of two the later one holds. It is in effect once ingest has
taken its record: from then on the former copy does not fire.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from duewheel.api.changes import Scheduled
from duewheel.api.due_time import DueTime
from duewheel.api.schedules import NewSchedule, ScheduleSummary
from duewheel.client import DelayProducer, Timer
from duewheel.client.request_headers import timer_headers
from duewheel.clock import SystemClock
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, NoSuchSchedule
from duewheel.ops.changes.acceptance import require_accepted
from duewheel.ops.changes.producers import ACKNOWLEDGED_S, KeptProducers, producer_of
from duewheel.ops.changes.requests import result_of
from duewheel.ops.files import opened
from duewheel.ops.schedules.listing import by_name, required
from duewheel.ops.schedules.records import ScheduleRecord, requested
from duewheel.schemas.header_names import NAME_OF, Request

_PAUSE_S = 0.05


def put(
    settings: Settings,
    name: str,
    new: NewSchedule,
    wait_s: float,
    producers: KeptProducers | None = None,
    *,
    may_add: bool = True,
) -> ScheduleSummary:
    """Sets a schedule, or replaces the one of this name; it begins now.

    Args:
        wait_s: how long to wait for ingest to take it; 0: not at all.

    Raises:
        NoSuchSchedule: without `may_add`: there is none to replace.
        ConfigError: as `requested`, or there is no data directory.
        KafkaUnavailable, Unacknowledged: as `ops.changes.requests.send`.
    """
    record = requested(settings, name, new)
    timer = by_name(settings, {name: record.timer_topic}).get(name)
    if timer is None and not may_add:
        raise NoSuchSchedule(f"there is no schedule {name!r} to replace")
    return _put(settings, record.beside(timer), wait_s, producers)


def _put(
    settings: Settings, record: ScheduleRecord, wait_s: float, producers: KeptProducers | None
) -> ScheduleSummary:
    """Writes a checked record. Raises as `put`."""
    at, applied = _write_and_wait(settings, record, wait_s, producers)
    return record.summary(written_ms=at.timestamp, applied=applied)


def pause(
    settings: Settings,
    name: str,
    timer_topic: str | None,
    note: str,
    wait_s: float,
    producers: KeptProducers | None = None,
) -> ScheduleSummary:
    """Pauses a schedule: no instant fires until it is resumed.

    Raises:
        NoSuchSchedule: there is none.
        ConfigError, KafkaUnavailable, Unacknowledged: as `put`.
    """
    timer = required(settings, name, timer_topic)
    record = ScheduleRecord.of(timer).paused(settings, note, timer)
    return _put(settings, record, wait_s, producers)


def resume(
    settings: Settings,
    name: str,
    timer_topic: str | None,
    wait_s: float,
    producers: KeptProducers | None = None,
) -> ScheduleSummary:
    """Ends a pause: the instants from now on fire. Raises as `pause`."""
    record = ScheduleRecord.of(required(settings, name, timer_topic)).resumed(settings)
    return _put(settings, record, wait_s, producers)


def stop(
    settings: Settings,
    name: str,
    timer_topic: str | None,
    wait_s: float,
    producers: KeptProducers | None = None,
) -> ScheduleSummary:
    """Ends a schedule for good, by a cancel. Raises as `pause`."""
    record = ScheduleRecord.of(required(settings, name, timer_topic))
    _, applied = _write_and_wait(settings, record, wait_s, producers, stops=True)
    topic = record.timer_topic
    return ScheduleSummary(name=name, state="stopped", timer_topic=topic, applied=applied)


def trigger(
    settings: Settings,
    name: str,
    timer_topic: str | None,
    producers: KeptProducers | None = None,
) -> Scheduled:
    """Fires a schedule once more, now: an ordinary timer with its message and an id of its own.
    Raises as `pause`.
    """
    record = ScheduleRecord.of(required(settings, name, timer_topic))
    with producer_of(settings, record.timer_topic, None, producers) as producer:
        timer = write_trigger(settings, producer, record)
        return result_of(Scheduled, timer.result(ACKNOWLEDGED_S))


def write_trigger(
    settings: Settings, producer: DelayProducer, record: ScheduleRecord
) -> Future[Timer]:
    """Writes the timer of `trigger`. Raises as it."""
    topic, headers, partition = record.timer_topic, record.writable_headers, record.target_partition
    name = record.name.decode(errors="replace")
    timer_id = f"{name}@triggered-{SystemClock().now_ms()}"
    now = DueTime.of(delay="1ms")  # 0 would be past due where a topic refuses that
    request = timer_headers(
        record.target, now, topic, headers=headers, id=timer_id, partition=partition
    )
    require_accepted(settings, topic, record.key, record.value, request)
    return producer.schedule(
        record.target,
        record.value,
        key=record.key,
        headers=headers,
        id=timer_id,
        partition=partition,
        **now.arguments,
    )


def write_record(
    settings: Settings, producer: DelayProducer, record: ScheduleRecord, *, stops: bool = False
) -> Any:
    """Writes the record, or the cancel that stops it, to the partition of the pending copy; without
    one to that of the key, or of the name. Returns Kafka's metadata of it.

    Raises:
        ConfigError: the partition is another shard's.
    """
    number = partition_of(producer, record)
    shard = settings.shard
    if number % shard.count != shard.index:
        place, owner = f"{record.timer_topic}-{number}", number % shard.count
        raise ConfigError(f"{place} belongs to shard {owner}, this is {shard.index}: do it there")
    if not stops:
        value, headers = record.value, record.request
    else:
        value, headers = b"", [(NAME_OF[Request.CANCEL], record.name)]
    sent = producer.send(record.timer_topic, value, record.key, headers, number)
    return sent.get(timeout=ACKNOWLEDGED_S)


def partition_of(producer: DelayProducer, record: ScheduleRecord) -> int:
    """The partition of the pending copy; without one that of the key, or of the name."""
    if record.partition is not None:
        return record.partition
    return producer.partition_of(record.name if record.key is None else record.key)


def _write_and_wait(
    settings: Settings,
    record: ScheduleRecord,
    wait_s: float,
    producers: KeptProducers | None,
    *,
    stops: bool = False,
) -> tuple[Any, bool]:
    """Also returns whether ingest has taken it within the time."""
    with producer_of(settings, record.timer_topic, None, producers) as producer:
        at = write_record(settings, producer, record, stops=stops)
    return at, await_taken(settings, [at], wait_s) == [True]


def await_taken(settings: Settings, records: Sequence[Any], wait_s: float) -> list[bool]:
    """Which of these records, by Kafka's metadata, ingest has taken; waits for it until all are."""
    end_s = time.monotonic() + wait_s
    with opened(settings) as directory:
        while True:
            marks = directory.state.commit().marks
            found = [marks.get((at.topic, at.partition), 0) > at.offset for at in records]
            if all(found) or time.monotonic() >= end_s:
                return found
            time.sleep(_PAUSE_S)
