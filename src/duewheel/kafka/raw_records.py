"""The records of fetched batches as columns: committed ones, within their range.

A broker sends whole batches, and each is read to its end: the records before and behind the range
are dropped here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from duewheel.errors import DuewheelError
from duewheel.kafka.compression import decompressed
from duewheel.kafka.leader_requests import Fetched, unreadable
from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import OffsetRanges
from duewheel.schemas.wire.batch_reader import BatchBody, CorruptBatch, committed_batches
from duewheel.schemas.wire.kafka_records import KafkaRecords
from duewheel.schemas.wire.record_reader import read_batches
from duewheel.schemas.wire.single_record import Header

# Of records, not compressed, that are in memory together; a single batch may have more. A part may
# decompress to a hundred times its bytes: as one group it could exceed the memory of a task.
GROUP_BYTES = 16 << 20

Row = tuple[int, int, bytes | None, bytes | None, tuple[Header, ...]]
"""Offset, timestamp in ms, key, value and headers of a record."""


def committed_records(
    part: Sequence[Fetched], ranges: OffsetRanges, group_bytes_max: int = GROUP_BYTES
) -> Iterator[KafkaRecords]:
    """The committed records of a part, in groups of about `group_bytes_max` or one batch.

    Args:
        part: of `RawReader.read`; each partition at most once.
        ranges: that the part was read from. Only their ends count: `Fetched.begin` may be above
            the first offset.
        group_bytes_max: decompressed.

    Raises:
        DuewheelError: a batch cannot be read; names its partition.
    """
    bounds: Int64 = np.array([(p.begin, ranges[p.partition][1]) for p in part], np.int64)
    group: list[BatchBody] = []
    group_bytes = 0
    for number, fetched in enumerate(part):
        for batch in _committed_batches(fetched, number, int(bounds[number, 1])):
            group.append(batch)
            group_bytes += batch.end - batch.first
            if group_bytes >= group_bytes_max:
                yield from _within_bounds(group, part, bounds)
                group, group_bytes = [], 0
    yield from _within_bounds(group, part, bounds)


def rows_of(records: KafkaRecords) -> Iterator[Row]:
    """The records one by one. A header's name that is no UTF-8 has surrogates for its bytes."""
    names = (
        (name or b"").decode(errors="surrogateescape")
        for name in records.headers.names.column().to_pylist()
    )
    headers = list(zip(names, records.headers.values.column().to_pylist(), strict=True))
    firsts = records.headers.firsts.tolist()
    rows = zip(
        records.offset.tolist(),
        records.timestamp_ms.tolist(),
        records.key.column().to_pylist(),
        records.value.column().to_pylist(),
        strict=True,
    )
    for row, of_record in enumerate(rows):
        yield *of_record, tuple(headers[firsts[row] : firsts[row + 1]])


def _committed_batches(fetched: Fetched, number: int, until: int) -> Iterator[BatchBody]:
    try:
        yield from committed_batches(fetched.octets, fetched.aborted, decompressed, number, until)
    except CorruptBatch as error:
        raise unreadable(fetched.partition, error) from error


def _within_bounds(
    group: Sequence[BatchBody], part: Sequence[Fetched], bounds: Int64
) -> Iterator[KafkaRecords]:
    """The records of a group that lie within their bounds; yields nothing where none does.

    Args:
        group: batches; their `partition` indexes `part`.
        part: as in `committed_records`.
        bounds: shape (len(part), 2): the lowest offset, and the one behind the highest.
    """
    if not group:
        return
    partitions = [each.partition for each in part]
    try:
        records = read_batches(group, partitions)
    except CorruptBatch as error:
        raise DuewheelError(f"one of {partitions}: {error}") from error
    bounds = bounds[records.partition]
    inside = (records.offset >= bounds[:, 0]) & (records.offset < bounds[:, 1])
    if inside.any():
        yield records if inside.all() else records.take(np.flatnonzero(inside))
