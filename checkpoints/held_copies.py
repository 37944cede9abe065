"""Copies that wait for their timer partition, in the shard's partition of the state topic.

Rolled and parked timers, waiting dead letters, and chases of cancels go back to their timer
partition. While that takes no writes (no leader, too few replicas in sync), they are *held*: the
transaction in which they leave writes them beside the progress. Later transactions move them to the
partition, once it takes writes again.

    key    held/<topic>/<partition>/<start>/<copies>: the entry `Held` before these copies were
           added (at first: its own start, and 0). `copies` grows with each record, and the start
           with each move, so no two of them share a key: else compaction would delete one
    value  the number of copies (int32), Kafka's id of their timer topic (16 bytes, 0: unknown),
           then their records: the body of a batch (record_batch.py). Null: the transaction that
           wrote the null has moved them

The copies of a partition move in their order, and new ones queue after them. Otherwise a chase
could overtake a copy, and a timer leave after the reply `cancelled`. So no copy is larger than a
record of the state topic (COPY_BYTES_MAX), whatever its timer topic takes (wheel/dequeue/fate.py).

Copies have offsets of their timer topic (TIMER_ORIGIN). The id shows whether that was recreated:
then these offsets are other messages.
"""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from duewheel.errors import RecoveryRefused
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.partition_names import by_name
from duewheel.schemas.wire.record_batch import Batch

HELD_PREFIX = b"held/"
_KEY = re.compile(rb"held/([a-zA-Z0-9._-]{1,249})/([0-9]{1,10})/[0-9]+/[0-9]+")
_FOREIGN = "held copies in the state topic cannot be read: another program has written the record"
_HEAD = struct.Struct(">i16s")


@dataclass(frozen=True, slots=True)
class Held:
    """The entry of the progress for the held copies of a timer partition."""

    start_offset: int  # in the shard's partition of the state topic: no held copy is below it
    copies: int  # a record has several


def key_of(partition: TopicPartition, held: Held) -> bytes:
    """Makes the key of a record with copies for a timer partition, written after the copies in
    `held`.
    """
    topic, number = partition
    return b"%s%s/%d/%d/%d" % (HELD_PREFIX, topic.encode(), number, held.start_offset, held.copies)


def partition_of(key: bytes) -> TopicPartition | None:
    """Parses a key to the timer partition of the copies; None for a record of another kind."""
    matched = _KEY.fullmatch(key)
    return None if matched is None else (matched[1].decode(), int(matched[2]))


def value_of(batch: Batch, topic_id: str | None) -> bytes:
    """Makes the value of a record: these copies, and the id of their timer topic."""
    return (
        _HEAD.pack(batch.count, uuid.UUID(topic_id).bytes if topic_id else bytes(16)) + batch.body
    )


def batch_of(value: bytes) -> tuple[Batch, str | None]:
    """Parses the copies of a record, and the id of their timer topic.

    Raises:
        RecoveryRefused: duewheel has not written the value.
    """
    if len(value) <= _HEAD.size:
        raise RecoveryRefused(_FOREIGN)
    count, topic_id = _HEAD.unpack_from(value)
    if count <= 0:
        raise RecoveryRefused(_FOREIGN)
    named = str(uuid.UUID(bytes=topic_id)) if any(topic_id) else None
    return Batch(memoryview(value)[_HEAD.size :], count), named


def copies(held: Mapping[TopicPartition, Held]) -> int:
    """Counts the copies that wait, over all partitions."""
    return sum(of.copies for of in held.values())


def named(held: Mapping[TopicPartition, Held]) -> dict[str, int]:
    """Counts the copies that wait, by name of the partition, for the log."""
    return {name: of.copies for name, of in by_name(held).items()}
