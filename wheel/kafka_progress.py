"""Reading a shard's newest progress record back from the one-partition state topic.

Order matters: the end offset is asked for, uncommitted, after the caller's `init_transactions` has
returned; then every record of this shard that may be committed lies below it. Reading with
read_committed goes on until the position has reached that end: while another shard's transaction
is open, the stable offset, and with it the position, stays below it, and so may my newest record.

Reading starts a bounded number of offsets before the end, where the newest record almost always
is, then further back, at last at the beginning. Offsets have gaps (compaction, transaction
markers): only the position tells how far a reader has come, never the last record.
"""

from __future__ import annotations

from collections.abc import Iterator

from kafka import KafkaAdminClient, KafkaConsumer
from kafka.admin import OffsetSpec
from kafka.structs import TopicPartition

from duewheel.wheel.deadline import Deadline
from duewheel.wheel.kafka_clients import ClientSettings, close

# A shard writes two offsets a transaction, record and marker. The first step covers the newest
# second or more of a dozen busy shards, the second one minutes.
_STEPS_BACK = (1_000, 100_000)
_POLL_MS = 20
_HEADWAY_S = 0.5


def newest_record(
    settings: ClientSettings, admin: KafkaAdminClient, topic: str, key: bytes, deadline: Deadline
) -> bytes | None:
    """The value of the newest committed record with this key; None without one.

    Raises:
        KafkaUnavailable: not read to the end in time.
    """
    partition = TopicPartition(topic, 0)
    start, end = settings.call(
        deadline,
        f"ask for the ends of {topic}",
        lambda: (
            _offset(admin, partition, OffsetSpec.EARLIEST),
            _offset(admin, partition, OffsetSpec.LATEST),
        ),
    )
    if start == end:
        return None
    consumer = settings.open(
        KafkaConsumer,
        deadline,
        group_id=None,
        enable_auto_commit=False,
        isolation_level="read_committed",
        auto_offset_reset="earliest",  # compaction may have moved the start meanwhile
        metrics_enabled=False,
    )
    # Ends a little earlier than the call around it, so that its own words are heard.
    inner = Deadline(max(0.0, deadline.remaining_s() - _HEADWAY_S))
    try:
        return settings.call(
            deadline,
            f"read the progress in {topic}",
            lambda: _search(consumer, partition, key, (start, end), inner),
        )
    finally:
        close(consumer)


def _offset(admin: KafkaAdminClient, partition: TopicPartition, spec: OffsetSpec) -> int:
    return int(admin.list_partition_offsets({partition: spec})[partition].offset)


def _starts(start: int, end: int) -> Iterator[int]:
    """Where to start reading: near the end, further back, at last at the beginning."""
    for step in _STEPS_BACK:
        if end - step > start:
            yield end - step
    yield start


def _search(
    consumer: KafkaConsumer,
    partition: TopicPartition,
    key: bytes,
    bounds: tuple[int, int],
    deadline: Deadline,
) -> bytes | None:
    first, end = bounds
    consumer.assign([partition])
    for start in _starts(first, end):
        consumer.seek(partition, start)
        found, newest = _read(consumer, partition, key, end, deadline)
        if found:
            return newest
    return None


def _read(
    consumer: KafkaConsumer, partition: TopicPartition, key: bytes, end: int, deadline: Deadline
) -> tuple[bool, bytes | None]:
    """Read up to `end`: whether the key was there, and its newest value."""
    found, newest = False, None
    while True:
        for record in consumer.poll(timeout_ms=_POLL_MS).get(partition, ()):
            if record.key == key:
                found, newest = True, record.value
        position = consumer.position(partition, timeout_ms=deadline.remaining_ms())
        if position is not None and position >= end:
            return found, newest
        deadline.check(
            f"at offset {position} of {end}, held back by an open transaction; if it stays open, "
            "kafka-transactions.sh find-hanging names it"
        )
