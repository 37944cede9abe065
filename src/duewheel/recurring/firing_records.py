"""What a scheduler writes: firings as timers, positions of schedules, and cancels of firings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from duewheel.client import Answer, DelayProducer
from duewheel.kafka.connect.deadline import Deadline
from duewheel.recurring.schedule import POSITION_PREFIX, Schedule
from duewheel.recurring.scheduler import ScheduleCommit
from duewheel.recurring.steps import FiringCancels
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.columns import binary
from duewheel.schemas.hashing import key_hashes
from duewheel.schemas.wire.record_batch import Batch
from duewheel.schemas.wire.single_record import Header, encode

_BATCH_BYTES = 512 * 1024

Row = tuple[bytes | None, bytes | None, Sequence[Header]]  # key, value, headers


def firing_partition(schedule: Schedule, partitions: int) -> int:
    """The partition of a schedule's firings: that of the message's key, or else of the name."""
    key = schedule.name.encode() if schedule.key is None else schedule.key
    return int(key_hashes(binary([key]))[0]) % partitions


def position_row(written: ScheduleCommit) -> Row:
    """The record of a schedule's position."""
    key = POSITION_PREFIX + written.name.encode()
    return key, None if written.position is None else written.position.encode(), []


def firing_batches(written: Iterable[ScheduleCommit]) -> Iterator[tuple[TopicPartition, Batch]]:
    """The firings: the records of each timer partition in the order of their instants."""
    rows: dict[TopicPartition, list[tuple[int, Row]]] = {}
    for each in written:
        schedule = each.schedule
        if schedule is None:
            continue
        for instant, number in each.firings:
            row = instant, (schedule.key, schedule.value, schedule.firing_headers(instant))
            rows.setdefault((schedule.timer_topic, number), []).append(row)
    for place, group in rows.items():
        yield from batches_of(place, [row for _, row in sorted(group, key=lambda each: each[0])])


def batches_of(
    place: TopicPartition, rows: Iterable[Row]
) -> Iterator[tuple[TopicPartition, Batch]]:
    """Batches of about _BATCH_BYTES."""
    body, count = bytearray(), 0
    for key, value, headers in rows:
        if len(body) >= _BATCH_BYTES:
            yield place, Batch(memoryview(bytes(body)), count)
            body, count = bytearray(), 0
        body += encode(count, key, value, headers)
        count += 1
    if count:
        yield place, Batch(memoryview(bytes(body)), count)


def cancelled_instants(
    producer: DelayProducer, cancels: FiringCancels, deadline: Deadline
) -> frozenset[int]:
    """Cancels firings, and awaits the replies: the instants whose reply is `cancelled`.

    Raises:
        KafkaError, TimeoutError: a cancel was not acknowledged or not answered in time.
    """
    sent = [
        (at, producer.cancel(timer, partition=number, timer_topic=cancels.timer_topic))
        for at, number, timer in cancels.timers
    ]
    answers = [(at, one.result(deadline.remaining_s())) for at, one in sent]
    return frozenset(
        at for at, one in answers if one.answer(deadline.remaining_s()) is Answer.CANCELLED
    )
