"""Topics, as somebody else reads them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from kafka import KafkaConsumer, TopicPartition

_GIVE_UP_S = 90.0
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@contextmanager
def consumer(servers: str, **settings: Any) -> Iterator[KafkaConsumer]:
    """One of no group that sees committed records only, from the beginning on."""
    committed = {"isolation_level": "read_committed", "auto_offset_reset": "earliest"}
    made = KafkaConsumer(bootstrap_servers=servers, group_id=None, **committed | settings)
    try:
        yield made
    finally:
        made.close()


def read_committed(servers: str, starts: Mapping[TopicPartition, int]) -> list[Any]:
    """Every committed record from these offsets on, partition by partition."""
    with consumer(servers) as stranger:
        return _to_the_end(stranger, starts)


def read_topic(servers: str, topic: str, first: Mapping[int, int] | None = None) -> list[Any]:
    """Every committed record of a topic, partition by partition.

    Args:
        servers, topic: where.
        first: offsets to begin at, by partition; by default the first ones.
    """
    with consumer(servers) as stranger:
        numbers = sorted(stranger.partitions_for_topic(topic))
        starts = {TopicPartition(topic, n): (first or {}).get(n, 0) for n in numbers}
        return _to_the_end(stranger, starts)


def everything_in(servers: str, topic: str, partitions: int) -> list[Any]:
    """Everything that is in a topic now, of open and aborted transactions, too."""
    with consumer(servers, isolation_level="read_uncommitted") as stranger:
        return _to_the_end(stranger, {TopicPartition(topic, n): 0 for n in range(partitions)})


def _to_the_end(stranger: KafkaConsumer, starts: Mapping[TopicPartition, int]) -> list[Any]:
    """What is there now, from these offsets on."""
    stranger.assign(list(starts))
    for partition, offset in starts.items():
        stranger.seek(partition, offset)
    ends = stranger.end_offsets(list(starts))
    found: dict[TopicPartition, list[Any]] = {partition: [] for partition in starts}
    give_up = time.monotonic() + _GIVE_UP_S
    while any(stranger.position(partition) < end for partition, end in ends.items()):
        assert time.monotonic() < give_up, f"{list(starts)} cannot be read to their ends"
        for partition, records in stranger.poll(timeout_ms=100).items():
            found[partition] += records
    return [record for records in found.values() for record in records]


def as_table(records: Sequence[Any]) -> pa.Table:
    """Records as Spark's Kafka source gives them."""
    return pa.table(
        {
            "topic": pa.array([r.topic for r in records], pa.string()),
            "partition": pa.array([r.partition for r in records], pa.int32()),
            "offset": pa.array([r.offset for r in records], pa.int64()),
            "timestamp": pa.array([r.timestamp * 1000 for r in records], pa.timestamp("us", "UTC")),
            "key": pa.array([r.key for r in records], pa.binary()),
            "value": pa.array([r.value for r in records], pa.binary()),
            "headers": pa.array([r.headers for r in records], _HEADERS),
        }
    )
