"""Kafka v2 records, columnar: parsed once at ingest, completed once at publishing.

A record in a batch is

    varint  length of the rest
    int8    attributes: 0
    varint  timestamp delta: 0, all records of a batch have the same timestamp
    varint  offset delta: place in the batch
    varint  key length, key              ┐ key_value
    varint  value length, value          ┘
    varint  header count
    { varint name length, name, varint value length, value } * count

with length -1 for null. The files have `key_value`, `headers` and the header count. Publishing adds
the offset delta and further headers, because they depend on the batch.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from duewheel.schemas import header_names as names
from duewheel.schemas.arrays import Bool, Int32, Int64
from duewheel.schemas.batches import NO_LEVEL, NO_PARTITION, Deliveries
from duewheel.schemas.columns import (
    EMPTY,
    Column,
    choose,
    constant,
    decimals,
    filled,
    join,
    lengths,
)
from duewheel.schemas.header_names import NAME_OF, Request
from duewheel.schemas.wire.varint import varint, varints

_pc: Any = pyarrow.compute

_ATTRIBUTES_AND_TIMESTAMP_DELTA = constant(b"\0\0")
_LENGTH_AND_DELTA_BYTES_MAX = 2 * len(varint(2**31 - 1))


def framed(column: Column) -> tuple[Column, Column]:
    """Length and bytes of each value: the two parts that write it, or a null."""
    return varints(lengths(column)), filled(column)


def framed_bytes(value: bytes) -> bytes:
    """A single value with its length."""
    return varint(len(value)) + value


def key_values(key: Column, value: Column) -> Column:
    """Keys and values, encoded as in records; both may have nulls."""
    return join(*framed(key), *framed(value))


@functools.cache
def header_name(name: str) -> pa.LargeBinaryScalar:
    """A header's name, encoded; its framed value follows."""
    return constant(framed_bytes(name.encode()))


def added_headers(deliveries: Deliveries) -> tuple[Column, Int32]:
    """The headers added at publishing, encoded, and their number in each row."""
    rolled = deliveries.roll_times > 0
    parts: list[Column | pa.LargeBinaryScalar] = [
        *(header_name(names.DUE_MS), *framed(decimals(deliveries.due_ms))),
        *(header_name(names.TIMER_ID), *framed(deliveries.timer_id)),
    ]
    if rolled.any():
        times = join(header_name(names.ROLL_TIMES), *framed(decimals(deliveries.roll_times)))
        parts.append(choose(rolled, times, EMPTY))
    count = 3 + rolled.astype(np.int32)
    bare = deliveries.dead_letter | deliveries.answer
    if bare.any():
        parts = [choose(bare, EMPTY, join(*parts))]
        count[bare] = 1
    added = join(header_name(names.SOURCE), *framed(deliveries.source), *parts)
    if deliveries.is_copy.any():
        added = choose(deliveries.is_copy, EMPTY, added)
        count[deliveries.is_copy] = 0
    return added, count


NO_ORIGIN = -1  # of a copy whose first copy is lost: it counts as the first one itself


def copy_headers(
    target: Column,
    target_partition: Int32,
    due_ms: Int64,
    timer_id: Column,
    roll_times: Int32,
    origin_offset: Int64,
    level: Int32,
) -> tuple[Column, Int32]:
    """The request headers of copies, encoded, and their number in each row. `target_partition` may
    be NO_PARTITION, `level` NO_LEVEL, `origin_offset` NO_ORIGIN; `timer_id` is empty for the
    default id, which the origin gives; `roll_times` includes this roll.
    """
    has_partition = target_partition != NO_PARTITION
    partition = join(
        header_name(NAME_OF[Request.TARGET_PARTITION]), *framed(decimals(target_partition))
    )
    named = lengths(timer_id) > 0
    by_level = level != NO_LEVEL
    encoded = join(
        *(header_name(NAME_OF[Request.TARGET_TOPIC]), *framed(target)),
        *(header_name(NAME_OF[Request.DELIVER_AT]), *framed(decimals(due_ms))),
        choose(has_partition, partition, EMPTY),
        choose(named, join(header_name(names.TIMER_ID), *framed(timer_id)), EMPTY),
        *(header_name(names.ROLL_TIMES), *framed(decimals(roll_times))),
        origin_header(origin_offset),
        choose(by_level, join(header_name(names.REQUESTED_LEVEL), *framed(decimals(level))), EMPTY),
    )
    optional = np.stack([has_partition, named, by_level])
    return encoded, 4 + optional.sum(axis=0, dtype=np.int32)


def origin_header(offset: Int64) -> Column:
    """The header that names a timer's first copy, encoded."""
    return join(header_name(names.ORIGIN), *framed(decimals(offset)))


def waiting_headers(not_before_ms: Int64, retries: Int32) -> Column:
    """The two headers that a waiting copy has beside those of every copy, encoded."""
    return join(
        *(header_name(names.NOT_BEFORE_MS), *framed(decimals(not_before_ms))),
        *(header_name(names.RETRIES), *framed(decimals(retries))),
    )


def letter_headers(origin_offset: Int64, not_before_ms: Int64, retries: Int32) -> Column:
    """The last headers of a dead letter that waits, encoded: one for each of LETTER_END."""
    return join(
        origin_header(origin_offset),
        waiting_headers(not_before_ms, retries),
        constant(framed_bytes(names.LETTER.encode()) + framed_bytes(b"")),
    )


LETTER_END = (Request.ORIGIN, Request.NOT_BEFORE, Request.RETRIES, Request.LETTER)


def with_header(headers: Column, name: str, value: bytes) -> Bool:
    """The rows that have this header. A producer may have the same bytes inside another value: its
    own row counts then, too.
    """
    wanted = framed_bytes(name.encode()) + framed_bytes(value)
    found: Bool = np.asarray(_pc.match_substring(headers, wanted))
    return found


class Records:
    """Records that lack only their offset deltas, from the parts between the key and the last
    header.
    """

    def __init__(self, *body: Column) -> None:
        self._body = body
        self._body_bytes: Int64 = np.sum([lengths(part) for part in self._body], axis=0) + 2

    @classmethod
    def of(cls, deliveries: Deliveries) -> Records:
        """The records of deliveries, with the headers that are added at publishing."""
        added, added_count = added_headers(deliveries)
        count = varints(deliveries.header_count.astype(np.int64) + added_count)
        return cls(deliveries.key_value, count, deliveries.headers, added)

    def __len__(self) -> int:
        return len(self._body_bytes)

    @property
    def bytes_at_most(self) -> int:
        """Bytes of all records, whatever their offset deltas."""
        return int(self._body_bytes.sum()) + _LENGTH_AND_DELTA_BYTES_MAX * len(self)

    def sizes(self, offset_deltas: Int64) -> Int64:
        """Bytes of each record with these offset deltas. Never smaller with a larger delta."""
        rest = self._body_bytes + lengths(varints(offset_deltas))
        return rest + lengths(varints(rest))

    def encode(self, offset_deltas: Int64) -> Column:
        """The complete records with these offset deltas."""
        encoded_deltas = varints(offset_deltas)
        rest = varints(self._body_bytes + lengths(encoded_deltas))
        return join(rest, _ATTRIBUTES_AND_TIMESTAMP_DELTA, encoded_deltas, *self._body)
