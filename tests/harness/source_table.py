"""Tables of records as Spark's Kafka source gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from duewheel.testing import TIMER_TOPIC

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
