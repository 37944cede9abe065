"""Kafka v2 records, columnar: taken apart once at ingest, completed once at publishing.

A record in a batch is

    varint  length of what follows
    int8    attributes: 0
    varint  timestamp delta: 0, all records of a batch leave at the same time
    varint  offset delta: place in the batch
    varint  key length, key              ┐ key_value
    varint  value length, value          ┘
    varint  header count
    { varint name length, name, varint value length, value } * count

with length -1 for null. What a timer keeps on disk is `key_value`, `headers` and how many those
are; the place in the batch and the added headers are known only when it leaves.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from duewheel.schemas import headers as names
from duewheel.schemas.columns import EMPTY, constant, join, lengths, texts
from duewheel.schemas.timers import Deliveries, Int32, Int64
from duewheel.schemas.varint import varint, varints

_ATTRIBUTES_AND_TIMESTAMP_DELTA = constant(b"\0\0")


def framed(column: pa.LargeBinaryArray) -> tuple[pa.LargeBinaryArray, pa.LargeBinaryArray]:
    """Length and bytes of each value, the two parts that write it."""
    filled = pc.fill_null(column, EMPTY) if column.null_count else column
    return varints(lengths(column)), filled


def named(name: str) -> pa.Scalar:
    """A header's name, as it is written."""
    return constant(varint(len(name)) + name.encode())


def added_headers(deliveries: Deliveries) -> tuple[pa.LargeBinaryArray, Int32]:
    """The headers added at publishing, encoded, and how many they are in each row."""
    rolled = deliveries.roll_times > 0
    parts = [
        *(named(names.DUE_MS), *framed(texts(deliveries.due_ms))),
        *(named(names.TIMER_ID), *framed(deliveries.timer_id)),
    ]
    if rolled.any():
        times = join(named(names.ROLL_TIMES), *framed(texts(deliveries.roll_times)))
        parts.append(pc.if_else(pa.array(rolled), times, EMPTY))
    count = 3 + rolled.astype(np.int32)
    source = (named(names.SOURCE), *framed(deliveries.source))
    if deliveries.dead_letter.any():
        parts = [pc.if_else(pa.array(deliveries.dead_letter), EMPTY, join(*parts))]
        count[deliveries.dead_letter] = 1
    return join(*source, *parts), count


class Records:
    """Deliveries as records that lack only their place in a batch."""

    def __init__(self, deliveries: Deliveries) -> None:
        added, added_count = added_headers(deliveries)
        self._body = (
            deliveries.key_value,
            varints(deliveries.header_count.astype(np.int64) + added_count),
            deliveries.headers,
            added,
        )
        self._body_bytes = 2 + sum((lengths(part) for part in self._body), np.int64(0))

    def __len__(self) -> int:
        return len(self._body_bytes)

    def sizes(self, deltas: Int64) -> Int64:
        """Bytes of each record at these places. Never smaller at a later place."""
        inner = self._body_bytes + lengths(varints(deltas))
        return inner + lengths(varints(inner))

    def encode(self, deltas: Int64) -> pa.LargeBinaryArray:
        """The complete records at these places."""
        places = varints(deltas)
        length = varints(self._body_bytes + lengths(places))
        return join(length, _ATTRIBUTES_AND_TIMESTAMP_DELTA, places, *self._body)
