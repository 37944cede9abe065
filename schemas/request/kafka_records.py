"""A batch of records of Spark's Kafka source: an Arrow table, column by column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from duewheel.schemas.arrays import Int32, Int64
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.columns import Column, large_binary, take

_pa: Any = pa
_pc: Any = pyarrow.compute


@dataclass(frozen=True, slots=True)
class KafkaRecords:
    """The records of a batch without their headers.

    Attributes:
        topics: that `topic` indexes.
        topic: row → index in `topics`.
        partitions: that `partition` indexes.
        partition: row → index in `partitions`.
        offset, timestamp_ms: of each record.
        key, value: with nulls.
    """

    topics: list[str]
    topic: Int32
    partitions: list[TopicPartition]
    partition: Int32
    offset: Int64
    timestamp_ms: Int64
    key: Column
    value: Column

    def __len__(self) -> int:
        return len(self.offset)

    def take(self, rows: Int64) -> KafkaRecords:
        """The given rows, in the given order."""
        return KafkaRecords(
            topics=self.topics,
            topic=self.topic[rows],
            partitions=self.partitions,
            partition=self.partition[rows],
            offset=self.offset[rows],
            timestamp_ms=self.timestamp_ms[rows],
            key=take(self.key, rows),
            value=take(self.value, rows),
        )


def read_records(table: pa.Table) -> KafkaRecords:
    """The records of a table: topic string, partition int32, offset int64, timestamp
    timestamp[us, UTC], key binary, value binary.
    """
    topic_column: Any = table.column("topic")
    if not pa.types.is_dictionary(topic_column.type):
        topic_column = _pc.dictionary_encode(topic_column)
    encoded = topic_column.unify_dictionaries().combine_chunks()
    topics, topic = encoded.dictionary.to_pylist(), np.asarray(encoded.indices).astype(np.int32)
    number = np.asarray(table.column("partition")).astype(np.int64)
    pairs = _pc.dictionary_encode(_pa.array((topic.astype(np.int64) << 32) | number))
    partitions = [(topics[pair >> 32], pair & 0xFFFFFFFF) for pair in pairs.dictionary.to_pylist()]
    return KafkaRecords(
        topics,
        topic,
        partitions,
        np.asarray(pairs.indices).astype(np.int32),
        np.asarray(table.column("offset")).astype(np.int64),
        _timestamps_ms(table.column("timestamp")),
        large_binary(table.column("key")),
        large_binary(table.column("value")),
    )


def _timestamps_ms(column: Any) -> Int64:
    assert column.type.unit == "us", "Spark's timestamps are in microseconds"
    return np.asarray(column.cast(pa.int64())) // 1000
