"""Tables of records: a short way to write the records that a parser gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
from tests.harness.timer_rows import TIMER_TOPIC

from duewheel.schemas.arrays import Int64, bounds_of
from duewheel.schemas.columns import filled, join, large_binary
from duewheel.schemas.wire.kafka_records import KafkaRecords
from duewheel.schemas.wire.record_codec import framed, key_values
from duewheel.schemas.wire.spans import RawHeaders, Spans

_pa: Any = pa
_pc: Any = pyarrow.compute

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class SourceRow(NamedTuple):
    """A record as a consumer has it; `timestamp` in epoch ms."""

    offset: int
    timestamp: int
    headers: Sequence[tuple[str, bytes | None]]
    partition: int = 0
    key: bytes | None = None
    value: bytes | None = None
    topic: str = TIMER_TOPIC


def as_table(records: Sequence[Any]) -> pa.Table:
    """Records of kafka-python, or SourceRows."""
    return pa.table(
        {
            "topic": pa.array([r.topic for r in records], pa.string()),
            "partition": pa.array([r.partition for r in records], pa.int32()),
            "offset": pa.array([r.offset for r in records], pa.int64()),
            "timestamp": pa.array([r.timestamp * 1000 for r in records], pa.timestamp("us", "UTC")),
            "key": pa.array([r.key for r in records], pa.binary()),
            "value": pa.array([r.value for r in records], pa.binary()),
            "headers": pa.array([r.headers for r in records], HEADERS),
        }
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
    flat = _pc.list_flatten(column)
    names = filled(large_binary(_pc.struct_field(flat, 0)))
    values = large_binary(_pc.struct_field(flat, 1))
    both = join(*framed(names), *framed(values))
    return RawHeaders(bounds_of(counts), Spans.of(names), Spans.of(values), Spans.of(both))


def _timestamps_ms(column: Any) -> Int64:
    assert column.type.unit == "us", "as in as_table"
    return np.asarray(column.cast(pa.int64())) // 1000
