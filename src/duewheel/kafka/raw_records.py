"""The records of fetched batches as columns: committed ones, within their range."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from duewheel.errors import DuewheelError
from duewheel.kafka.compression import decompressed
from duewheel.kafka.raw_reader import Fetched
from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import OffsetRanges
from duewheel.schemas.request.kafka_records import KafkaRecords, from_raw
from duewheel.schemas.wire.batch_reader import BatchBody, CorruptBatch, committed_chunks, read

# Of records, not compressed, beside each other in memory; unless a single batch has more.
_GROUP_BYTES = 16 << 20


def committed_records(part: Sequence[Fetched], ranges: OffsetRanges) -> Iterator[KafkaRecords]:
    """The committed records of a part of ranges, in groups: compressed, a part may be a hundred
    times as large as it was fetched. A batch may begin before its range, and end behind it.

    Args:
        part: of several partitions, each at most once.
        ranges: their ends count.

    Raises:
        DuewheelError: a batch cannot be read; names its partition.
    """
    bounds: Int64 = np.array([(p.begin, ranges[p.partition][1]) for p in part], np.int64)
    chunks: list[BatchBody] = []
    octets = 0
    for number, each in enumerate(part):
        for chunk in _chunks(each, number, int(bounds[number, 1])):
            chunks.append(chunk)
            octets += chunk.end - chunk.first
            if octets >= _GROUP_BYTES:
                yield from _inside(chunks, part, bounds)
                chunks, octets = [], 0
    yield from _inside(chunks, part, bounds)


def _chunks(fetched: Fetched, number: int, until: int) -> Iterator[BatchBody]:
    try:
        yield from committed_chunks(fetched.octets, fetched.aborted, decompressed, number, until)
    except CorruptBatch as error:
        topic, partition = fetched.partition
        raise DuewheelError(f"{topic}-{partition}: {error}") from error


def _inside(
    chunks: Sequence[BatchBody], part: Sequence[Fetched], bounds: Int64
) -> Iterator[KafkaRecords]:
    """The records of the chunks that lie within their range, if there are any."""
    if not chunks:
        return
    partitions = [each.partition for each in part]
    try:
        records = from_raw(read(chunks), partitions)
    except CorruptBatch as error:
        raise DuewheelError(f"one of {partitions}: {error}") from error
    bounds = bounds[records.partition]
    inside = (records.offset >= bounds[:, 0]) & (records.offset < bounds[:, 1])
    if inside.any():
        yield records if inside.all() else records.take(np.flatnonzero(inside))
