"""The records of fetched batches as columns: committed ones, within their range."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from duewheel.errors import DuewheelError
from duewheel.kafka.compression import decompressed
from duewheel.kafka.raw_reader import Fetched
from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import OffsetRanges
from duewheel.schemas.request.kafka_records import KafkaRecords, from_raw
from duewheel.schemas.wire.batch_reader import BatchBody, CorruptBatch, committed_chunks, read


def committed_records(part: Sequence[Fetched], ranges: OffsetRanges) -> KafkaRecords | None:
    """The committed records of a part of ranges; None if there are none. A batch may begin before
    its range, and end behind it.

    Args:
        part: of several partitions, each at most once.
        ranges: their ends count.

    Raises:
        DuewheelError: a batch cannot be read; names its partition.
    """
    chunks: list[BatchBody] = []
    for number, each in enumerate(part):
        try:
            chunks += committed_chunks(each.octets, each.aborted, decompressed, number)
        except CorruptBatch as error:
            topic, partition = each.partition
            raise DuewheelError(f"{topic}-{partition}: {error}") from error
    if not chunks:
        return None
    partitions = [each.partition for each in part]
    try:
        records = from_raw(read(chunks), partitions)
    except CorruptBatch as error:
        raise DuewheelError(f"one of {partitions}: {error}") from error
    bounds: Int64 = np.array([(p.begin, ranges[p.partition][1]) for p in part], np.int64)
    bounds = bounds[records.partition]
    inside = (records.offset >= bounds[:, 0]) & (records.offset < bounds[:, 1])
    if not inside.any():
        return None
    return records if inside.all() else records.take(np.flatnonzero(inside))
