"""A batch of records of the timer topics, column by column.

Byte strings stay where they are (`Spans`): keys and a few headers are read, the rest is copied
once, in the form in which it is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from duewheel.schemas.arrays import Int32, Int64
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.columns import filled, join, large_binary
from duewheel.schemas.wire.batch_reader import RawRecords
from duewheel.schemas.wire.record_codec import framed, key_values
from duewheel.schemas.wire.spans import Spans

_pa: Any = pa
_pc: Any = pyarrow.compute


@dataclass(frozen=True, slots=True)
class RawHeaders:
    """The headers of a batch of records, flat.

    Attributes:
        firsts: record → index of its first header; one more entry at the end.
        names: without nulls.
        values: a null is a header without a value.
        both: name and value as they stand in records, each with its length.
    """

    firsts: Int64
    names: Spans
    values: Spans
    both: Spans

    def take(self, rows: Int64) -> RawHeaders:
        """The headers of the given records, in the given order."""
        counts = np.diff(self.firsts)[rows]
        firsts = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(counts, out=firsts[1:])
        index = np.arange(firsts[-1]) + np.repeat(self.firsts[rows] - firsts[:-1], counts)
        return RawHeaders(
            firsts, self.names.take(index), self.values.take(index), self.both.take(index)
        )


@dataclass(frozen=True, slots=True)
class KafkaRecords:
    """The records of a batch.

    Attributes:
        topics: that `topic` indexes.
        topic: row → index in `topics`.
        partitions: that `partition` indexes.
        partition: row → index in `partitions`.
        offset, timestamp_ms: of each record.
        key, value: with nulls.
        key_value: both as they stand in records, each with its length.
        headers: of all records.
    """

    topics: list[str]
    topic: Int32
    partitions: list[TopicPartition]
    partition: Int32
    offset: Int64
    timestamp_ms: Int64
    key: Spans
    value: Spans
    key_value: Spans
    headers: RawHeaders

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
            key=self.key.take(rows),
            value=self.value.take(rows),
            key_value=self.key_value.take(rows),
            headers=self.headers.take(rows),
        )

    def without_headers(self) -> KafkaRecords:
        """The same records with no headers."""
        none = self.headers.take(np.empty(0, np.int64))
        return replace(self, headers=replace(none, firsts=np.zeros(len(self) + 1, np.int64)))


def from_raw(raw: RawRecords, partitions: Sequence[TopicPartition]) -> KafkaRecords:
    """The records of raw batches; `partitions` are those that their chunks index."""
    topics = list(dict.fromkeys(topic for topic, _ in partitions))
    topic_of = np.array([topics.index(topic) for topic, _ in partitions], np.int32)
    return KafkaRecords(
        topics,
        topic_of[raw.partition],
        list(partitions),
        raw.partition,
        raw.offset,
        raw.timestamp_ms,
        raw.key,
        raw.value,
        raw.key_value,
        RawHeaders(raw.firsts, raw.names, raw.values, raw.headers),
    )


def read_records(table: pa.Table) -> KafkaRecords:
    """The records of a table: topic string, partition int32, offset int64, timestamp
    timestamp[us, UTC], key binary, value binary, headers list<struct<key: string, value: binary>>.
    """
    topic_column: Any = table.column("topic")
    if not pa.types.is_dictionary(topic_column.type):
        topic_column = _pc.dictionary_encode(topic_column)
    encoded = topic_column.unify_dictionaries().combine_chunks()
    topics, topic = encoded.dictionary.to_pylist(), np.asarray(encoded.indices).astype(np.int32)
    number = np.asarray(table.column("partition")).astype(np.int64)
    pairs = _pc.dictionary_encode(_pa.array((topic.astype(np.int64) << 32) | number))
    partitions = [(topics[pair >> 32], pair & 0xFFFFFFFF) for pair in pairs.dictionary.to_pylist()]
    key, value = large_binary(table.column("key")), large_binary(table.column("value"))
    return KafkaRecords(
        topics,
        topic,
        partitions,
        np.asarray(pairs.indices).astype(np.int32),
        np.asarray(table.column("offset")).astype(np.int64),
        _timestamps_ms(table.column("timestamp")),
        Spans.of(key),
        Spans.of(value),
        Spans.of(key_values(key, value)),
        raw_headers(table.column("headers")),
    )


def raw_headers(column: Any) -> RawHeaders:
    """The headers of a column list<struct<key: string, value: binary>>; a null list has none."""
    counts = np.asarray(_pc.fill_null(_pc.list_value_length(column), 0))
    firsts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=firsts[1:])
    flat = _pc.list_flatten(column)
    names = filled(large_binary(_pc.struct_field(flat, 0)))
    values = large_binary(_pc.struct_field(flat, 1))
    both = join(*framed(names), *framed(values))
    return RawHeaders(firsts, Spans.of(names), Spans.of(values), Spans.of(both))


def _timestamps_ms(column: Any) -> Int64:
    assert column.type.unit == "us", "Spark's timestamps are in microseconds"
    return np.asarray(column.cast(pa.int64())) // 1000
