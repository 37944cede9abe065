"""Changes of schedules: each is one record in the partition of the pending copy.

So a change is whole or not there, and of two the later one holds, which is made from the copy that
the earlier one has left. It is in effect once ingest has taken its record: from then on the former
copy does not fire.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from duewheel.api.changes import Scheduled
from duewheel.api.due_time import DUE_NOW
from duewheel.api.schedules import NewSchedule, ScheduleSummary
from duewheel.checkpoints.progress import shard_of
from duewheel.client import DelayProducer, Timer
from duewheel.client.request_headers import timer_headers
from duewheel.config.settings import Settings
from duewheel.deadline import polled
from duewheel.errors import ConfigError, DuewheelError, NoSuchSchedule
from duewheel.kafka.shard_settings import owns
from duewheel.ops.changes.acceptance import require_accepted
from duewheel.ops.changes.producer_pool import ACKNOWLEDGED_S
from duewheel.ops.changes.timer_writer import TimerWriter
from duewheel.ops.changes.written import result_of
from duewheel.ops.files import open_state
from duewheel.ops.schedules.listing import find_schedules, require_schedule
from duewheel.ops.schedules.read_before_change import LogEnds, unread_below
from duewheel.ops.schedules.schedule_record import ScheduleRecord, requested
from duewheel.schemas.header_names import NAME_OF, Request
from duewheel.schemas.partition_names import partition_name


class WrittenRecord(Protocol):
    """Kafka's metadata of a record; `timestamp` in epoch ms."""

    topic: str
    partition: int
    offset: int
    timestamp: int


@dataclass(frozen=True)
class WrittenSchedule:
    """A change that Kafka has acknowledged: the schedule with it, and its record."""

    row: ScheduleSummary  # `applied` says nothing yet
    at: WrittenRecord

    def with_applied(self, applied: bool) -> ScheduleSummary:
        """The schedule; `applied`: whether ingest has taken the record."""
        return self.row.model_copy(update={"applied": applied})

    def is_taken(self, settings: Settings) -> bool:
        """Whether ingest has taken the record, as `await_taken`."""
        return await_taken(settings, [self.at], 0) == [True]


def put(
    writer: TimerWriter, name: str, new: NewSchedule, ends: LogEnds, *, may_add: bool = False
) -> WrittenSchedule:
    """Replaces the schedule of this name; it begins now. `may_add` sets one without it: for a call
    after others, because its copy may be on its way. `ends` as for `files_to_change`.

    Raises:
        NoSuchSchedule: without `may_add`: there is none to replace.
        ConfigError: as `requested`, or there is no data directory.
        RecoveryPending, IngestBehind: as `find_schedules`; nothing was written.
        KafkaUnavailable, Unacknowledged: as `ops.changes.requests.send`.
    """
    record = requested(writer.settings, name, new, writer.clock.now_ms())
    timer = find_schedules(writer.settings, {name: record.timer_topic}, ends).get(name)
    if timer is None and not may_add:
        raise NoSuchSchedule(f"there is no schedule {name!r} to replace")
    return _put(writer, record.beside(timer))


def _put(writer: TimerWriter, record: ScheduleRecord) -> WrittenSchedule:
    """Writes a checked record. Raises as `put`."""
    at = _write(writer, record)
    now_ms = writer.clock.now_ms()
    return WrittenSchedule(record.summary(now_ms, written_ms=at.timestamp), at)


def pause(
    writer: TimerWriter, name: str, timer_topic: str | None, ends: LogEnds, note: str
) -> WrittenSchedule:
    """Pauses a schedule: no instant fires until it is resumed.

    Raises:
        NoSuchSchedule: there is none.
        ConfigError, RecoveryPending, IngestBehind, KafkaUnavailable, Unacknowledged: as `put`.
    """
    settings, now_ms = writer.settings, writer.clock.now_ms()
    timer = require_schedule(settings, name, timer_topic, ends=ends)
    record = ScheduleRecord.of(timer).paused(settings, note, timer, now_ms)
    return _put(writer, record)


def resume(
    writer: TimerWriter, name: str, timer_topic: str | None, ends: LogEnds
) -> WrittenSchedule:
    """Ends a pause: the instants from now on fire. Raises as `pause`."""
    settings, now_ms = writer.settings, writer.clock.now_ms()
    timer = require_schedule(settings, name, timer_topic, ends=ends)
    return _put(writer, ScheduleRecord.of(timer).resumed(settings, timer, now_ms))


def stop(writer: TimerWriter, name: str, timer_topic: str | None, ends: LogEnds) -> WrittenSchedule:
    """Ends a schedule for good, by a cancel. Raises as `pause`."""
    record = ScheduleRecord.of(require_schedule(writer.settings, name, timer_topic, ends=ends))
    at, topic = _write(writer, record, stops=True), record.timer_topic
    return WrittenSchedule(ScheduleSummary(name=name, state="stopped", timer_topic=topic), at)


def trigger(writer: TimerWriter, name: str, timer_topic: str | None, ends: LogEnds) -> Scheduled:
    """Fires a schedule once more, now: an ordinary timer with its message and an id of its own.
    Raises as `pause`.
    """
    record = ScheduleRecord.of(require_schedule(writer.settings, name, timer_topic, ends=ends))
    with writer.producer(record.timer_topic) as producer:
        timer = write_trigger(writer.settings, producer, record, writer.clock.now_ms())
        return result_of(Scheduled, timer.result(ACKNOWLEDGED_S))


def write_trigger(
    settings: Settings, producer: DelayProducer, record: ScheduleRecord, now_ms: int
) -> Future[Timer]:
    """Writes the timer of `trigger`. Raises as it."""
    topic, headers, partition = record.timer_topic, record.writable_headers, record.target_partition
    name = record.name.decode(errors="replace")
    timer_id = f"{name}@triggered-{now_ms}"
    request = timer_headers(
        record.target, DUE_NOW, topic, headers=headers, id=timer_id, partition=partition
    )
    require_accepted(settings, topic, record.key, record.value, request, now_ms)
    return producer.schedule(
        record.target,
        record.value,
        key=record.key,
        headers=headers,
        id=timer_id,
        partition=partition,
        **DUE_NOW.arguments,
    )


def write_record(
    settings: Settings, producer: DelayProducer, record: ScheduleRecord, *, stops: bool = False
) -> WrittenRecord:
    """Writes the record, or the cancel that stops it, to the partition of the pending copy; without
    one to that of the key, or of the name. Returns Kafka's metadata of it.

    Raises:
        ConfigError: the partition is another shard's.
    """
    number = partition_of(producer, record)
    shard, partition = settings.shard, (record.timer_topic, number)
    if not owns(shard, partition):
        name, owner = partition_name(partition), shard_of(partition, shard.count)
        raise ConfigError(f"{name} belongs to shard {owner}, this is {shard.index}: do it there")
    if not stops:
        value, headers = record.value, record.request
    else:
        value, headers = b"", [(NAME_OF[Request.CANCEL], record.name)]
    sent = producer.send(record.timer_topic, value, record.key, headers, number)
    written: WrittenRecord = sent.get(timeout=ACKNOWLEDGED_S)
    return written


def partition_of(producer: DelayProducer, record: ScheduleRecord) -> int:
    """The partition of the pending copy; without one that of the key, or of the name."""
    if record.partition is not None:
        return record.partition
    return producer.partition_of(record.name if record.key is None else record.key)


def _write(writer: TimerWriter, record: ScheduleRecord, *, stops: bool = False) -> WrittenRecord:
    with writer.producer(record.timer_topic) as producer:
        return write_record(writer.settings, producer, record, stops=stops)


def await_taken(settings: Settings, records: Sequence[WrittenRecord], wait_s: float) -> list[bool]:
    """Waits until ingest has taken these records, by Kafka's metadata; returns which it has.
    Without files that can be read it has taken none: they are written, whatever becomes of them.
    """
    ends = [{(at.topic, at.partition): at.offset + 1} for at in records]

    def taken() -> list[bool]:
        with suppress(DuewheelError, OSError), open_state(settings) as state:
            return [not unread_below(state, each) for each in ends]
        return [False] * len(ends)

    polled(lambda: all(taken()), wait_s)
    return taken()
