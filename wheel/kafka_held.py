"""Copies whose timer partition takes no writes: held in the state topic, moved when it does.

The format, and why their order matters: checkpoints/held.py. Batches are held and moved whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog
from kafka import KafkaAdminClient
from kafka.structs import TopicPartition

from duewheel.checkpoints.held import Held, batch_of, key_of, named, partition_of, value_of
from duewheel.checkpoints.progress import RECORD_BYTES_MAX, Progress
from duewheel.schemas.record_batch import Batch
from duewheel.schemas.single_record import several, single
from duewheel.schemas.timers import TopicPartition as Place
from duewheel.wheel.deadline import Deadline
from duewheel.wheel.encoding import Known, Part
from duewheel.wheel.kafka_clients import ClientSettings, close, open_reader
from duewheel.wheel.kafka_progress import ends_of, records_until

_BYTES_AT_ONCE = 4 * 1024 * 1024
# Batches for one partition go one after the other, each with a round trip to its replicas.
BATCHES_AT_ONCE = 256
_READ_BYTES = 64 * 1024 * 1024  # of the state topic, for one transaction
_FRAME_BYTES = 1024  # at most, of the key and the record around the value

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Moved:
    """Copies on their way to their partitions, in one transaction.

    Attributes:
        parts: the copies.
        deletions: of the records of the state topic that had them.
        held: what waits once that is committed.
    """

    parts: Sequence[Part] = ()
    deletions: Sequence[Batch] = ()
    held: Mapping[Place, Held] = field(default_factory=dict)


def movable(progress: Progress, ends: Mapping[Place, int]) -> list[Place]:
    """Those of these partitions to which held copies may go. A log that ends below C has lost its
    end: what comes there would lie at offsets that ingest has read, and never be read.

    Args:
        progress: of the shard.
        ends: where partitions end that take writes and have copies held.
    """
    known = progress.partitions
    return [p for p, end in ends.items() if end >= (known[p].closed_c if p in known else 0)]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of what one transaction moves.

    Attributes:
        batches: how many.
        size: in bytes, unless one alone has more.
    """

    batches: int
    size: int

    @classmethod
    def beside(cls, parts: Sequence[Part], batches: int) -> Bounds:
        """More than a transaction adds with these parts. With less a backlog might never end: while
        there is one every cancel is chased, and the chases go behind it.
        """
        own = sum(len(part.batch.body) for part in parts)
        return cls(batches + len(parts), _BYTES_AT_ONCE + own)


def moved(
    settings: ClientSettings,
    admin: KafkaAdminClient,
    where: TopicPartition,
    held: Mapping[Place, Held],
    free: Collection[Place],
    bounds: Bounds,
    deadline: Deadline,
) -> Moved:
    """The oldest copies for partitions that take writes, as many as one transaction takes.

    Args:
        settings, admin: of the cluster.
        where: the shard's partition of the state topic.
        held: what waits.
        free: timer partitions of these that take writes.
        bounds: how much is moved at once.
        deadline: for the call.

    Raises:
        KafkaUnavailable: no answer in time.
    """
    if not free:
        return Moved(held=held)
    stable, end = ends_of(settings, admin, where, deadline)
    consumer = open_reader(settings, deadline)

    def read() -> Moved:
        consumer.assign([where])
        consumer.seek(where, min(held[place].start_offset for place in free))
        records = records_until(consumer, where, stable, deadline)
        return _taken(records, held, free, bounds, all_seen=stable == end)

    try:
        return settings.call(deadline, f"read the copies in {where.topic}", read)
    finally:
        close(consumer)


def _taken(
    records: Iterable[Any],
    held: Mapping[Place, Held],
    free: Collection[Place],
    bounds: Bounds,
    *,
    all_seen: bool,
) -> Moved:
    """`all_seen`: no open transaction hides records. Only then missing copies are given up as lost;
    else the next transaction looks again.
    """
    left = {place: held[place] for place in free}
    parts, moved_keys, size, read = list[Part](), list[bytes](), 0, 0
    for record in records:
        read += len(record.value or b"")
        if read > _READ_BYTES:
            left = {place: _behind(of, record.offset) for place, of in left.items()}
            break
        place = partition_of(record.key)
        if place not in left or record.value is None or record.offset < left[place].start_offset:
            continue  # moved already, and not compacted yet: moving it again would deliver twice
        batch = batch_of(record.value)
        parts.append(Part(*place, batch, None, is_whole=True))
        moved_keys.append(record.key)
        left[place] = Held(record.offset + 1, left[place].records - batch.count)
        if left[place].records <= 0:
            del left[place]
        size += len(batch.body)
        if not left or size >= bounds.size or len(parts) >= bounds.batches:
            break
    else:  # all records were read
        if all_seen and left:
            text = "copies are lost, for the state topic has lost its records"
            log.error(text, copies=named(left))
            left.clear()
    stay = {place: of for place, of in held.items() if place not in free}
    deletions = [several(moved_keys, None)] if moved_keys else []
    return Moved(parts, deletions, stay | left)


def _behind(held: Held, offset: int) -> Held:
    """None of these copies lies below the offset: the next transaction reads on from there."""
    return Held(max(held.start_offset, offset), held.records)


@dataclass(frozen=True, slots=True)
class Split:
    """Batches of a transaction: those to send now, and those to hold.

    Attributes:
        now: those that go to their partition.
        records: of the state topic, with the others.
        held: what waits once they are committed.
    """

    now: Sequence[Part]
    records: Sequence[Batch]
    held: Mapping[Place, Held]


def split(
    parts: Sequence[Part],
    unavailable: Collection[Place],
    held: Mapping[Place, Held],
    end: Callable[[], int],
) -> Split:
    """Those for a timer partition that takes no writes, or for which copies are held already,
    become records of the state topic.

    A batch that is larger than such a record may be goes to its partition at once. While that takes
    no writes its transaction fails and is tried again, which holds up the shard; later it may
    overtake held copies. Batches that large hold one message: a copy of a timer, whose order is
    lost then. A chase is never that large unless its request was.

    Args:
        parts: of a transaction.
        unavailable: timer partitions that take no writes.
        held: what waits.
        end: asked for the offset at or behind which the records will lie in the state topic.
    """
    if not unavailable and not held:
        return Split(parts, (), held)
    now, records, waits = list[Part](), list[Batch](), dict(held)
    for part in parts:
        place = part.topic, part.partition
        fits = len(part.batch.body) + _FRAME_BYTES <= RECORD_BYTES_MAX
        if not fits or not (place in unavailable or place in waits):
            now.append(part)
            continue
        before = waits.get(place) or Held(end(), 0)
        records.append(single(key_of(place, before), value_of(part.batch)))
        waits[place] = Held(before.start_offset, before.records + part.batch.count)
    return Split(now, records, waits)


def tell_held(before: Collection[Place], after: Collection[Place]) -> None:
    """Log for which timer partitions copies are held now, and for which no longer."""
    for topic, number in after:
        if (topic, number) not in before:
            log.warning(
                "a timer partition takes no writes: what goes back there is held",
                topic=topic,
                partition=number,
            )
    for topic, number in before:
        if (topic, number) not in after:
            log.info(
                "a timer partition has all that was held for it", topic=topic, partition=number
            )


def takes_writes(place: Place, known: Mapping[str, Known]) -> bool:
    """Whether a partition of a known topic is there and takes writes."""
    target = known[place[0]].target
    return place[1] < target.partitions and place[1] not in target.unavailable


def unavailable_of(known: Mapping[str, Known]) -> set[Place]:
    """The partitions of these topics that take no writes for now."""
    return {(topic, number) for topic, of in known.items() for number in of.target.unavailable}
