"""Reads the committed records of fetched batches, within their range, as columns.

A broker sends whole batches, and each is read to its end: the records before and after the range
are dropped here. A batch that cannot be read is one row (`KafkaRecords.unread`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Protocol

import numpy as np

from duewheel.kafka.log.compression import PLAIN_BYTES_MAX, decompressed
from duewheel.kafka.log.leader_requests import Fetched, unreadable
from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import OffsetRanges, TopicPartition
from duewheel.schemas.wire.batch_reader import (
    RECORDS_MAX,
    BatchBody,
    BatchId,
    CorruptBatch,
    committed_batches,
    uncounted,
)
from duewheel.schemas.wire.kafka_records import KafkaRecords
from duewheel.schemas.wire.record_reader import read_batches
from duewheel.schemas.wire.single_record import Header

# Of records, not compressed, that are in memory together; a single batch may have more. A part may
# decompress to a hundred times its bytes, and headers of two bytes take 75 times as many: as one
# group it could exceed the memory of a task.
GROUP_BYTES = 4 << 20
# A batch with less of both is read again as often as its range is cut: that costs less than to keep
# it. Bytes, not compressed, because a few records may have a million headers of two bytes.
_KEPT_FROM_RECORDS, _KEPT_FROM_BYTES = 1_000, 256 << 10
# Together, a header counts as a record; a single batch may have as much. They live as long as the
# process of a task.
_KEPT_RECORDS_MAX, _KEPT_BYTES_MAX = RECORDS_MAX, PLAIN_BYTES_MAX
_NONE_SKIPPED: Mapping[TopicPartition, Sequence[int]] = MappingProxyType({})


class Took(Protocol):
    """Counts the bytes of a log as they are read."""

    def __call__(
        self, partition: TopicPartition, octets: int, reached: int, share: int = 0, /
    ) -> None:
        """Counts a record batch: its `read_bytes`, the offset after it, and the share of the bytes
        that the offsets within the range have, because ranges may cut a batch a hundred times.
        """


Row = tuple[int, int, bytes | None, bytes | None, tuple[Header, ...]]
"""Offset, timestamp in ms, key, value and headers of a record."""


class CutBatches:
    """The records of batches that ranges cut, read once for all of their ranges.

    A quota or a limit of rows may take ten records at a time of a batch that has a million. At
    most _KEPT_RECORDS_MAX records and _KEPT_BYTES_MAX bytes are kept, but always the newest batch.
    Not thread-safe.
    """

    def __init__(self) -> None:
        self._kept: dict[TopicPartition, tuple[BatchBody, KafkaRecords]] = {}

    def plain_of(self, partition: TopicPartition) -> Mapping[BatchId, memoryview]:
        """The decompressed records of the batch that is kept of a partition, if one is."""
        kept = self._kept.get(partition)
        return {} if kept is None else {kept[0].id: kept[0].octets}

    def records(
        self, batch: BatchBody, partition: TopicPartition, begin: int, until: int
    ) -> KafkaRecords:
        """The records of a batch within a range: from the offset `begin` to before `until`."""
        kept = self._kept.pop(partition, None)
        if kept is not None and kept[0].id == batch.id:
            batch, records = kept
        else:
            records = read_batches([replace(batch, partition=0)], [partition])
        if batch.last_offset >= until:
            self._kept[partition] = batch, records
            while len(self._kept) > 1 and self._is_full:
                del self._kept[next(iter(self._kept))]
        first, end = np.searchsorted(records.offset, [begin, until]).tolist()
        return records.take(np.arange(first, end))

    @property
    def _is_full(self) -> bool:
        kept = self._kept.values()
        return (
            sum(len(each) + len(each.headers.names) for _, each in kept) > _KEPT_RECORDS_MAX
            or sum(batch.octets.nbytes for batch, _ in kept) > _KEPT_BYTES_MAX
        )


def committed_records(
    part: Sequence[Fetched],
    ranges: OffsetRanges,
    group_bytes_max: int = GROUP_BYTES,
    skipped: Mapping[TopicPartition, Sequence[int]] = _NONE_SKIPPED,
    cut: CutBatches | None = None,
    took: Took | None = None,
) -> Iterator[KafkaRecords]:
    """The committed records of a part, in groups of about `group_bytes_max` or one batch.

    Args:
        part: one that `LogReader.read` has yielded: each partition at most once.
        ranges: that the part was read from. Only their ends count: `Fetched.begin` may be above
            the first offset. `took` may lower them to the offsets that are read.
        group_bytes_max: decompressed.
        skipped: by partition, the offsets that the operator has skipped.
        cut: keeps batches that the ranges cut; None: they are read again.
        took: called once a batch is decompressed, which is the last of its partition if the range
            then ends with it; and for batches that hold no committed record.

    Raises:
        DuewheelError: a broker or the network has damaged a batch; names its partition.
    """
    bounds: Int64 = np.array([(p.begin, ranges[p.partition][1]) for p in part], np.int64)
    group: list[BatchBody] = []
    group_bytes = 0
    for number, fetched in enumerate(part):
        begin, until = bounds[number].tolist()
        plain_of = {} if cut is None else cut.plain_of(fetched.partition)
        offsets = skipped.get(fetched.partition, ())
        for batch in _committed_batches(fetched, number, ranges, offsets, plain_of, took):
            is_cut = batch.base_offset < begin or batch.last_offset >= until
            if cut is not None and is_cut and _is_kept(batch):
                yield from _within_bounds(group, part, bounds)
                group, group_bytes = [], 0
                yield cut.records(batch, fetched.partition, begin, until)
                continue
            group.append(batch)
            group_bytes += batch.end - batch.first
            if group_bytes >= group_bytes_max:
                yield from _within_bounds(group, part, bounds)
                group, group_bytes = [], 0
    yield from _within_bounds(group, part, bounds)


def _is_kept(batch: BatchBody) -> bool:
    return batch.count >= _KEPT_FROM_RECORDS or batch.end - batch.first >= _KEPT_FROM_BYTES


def records_one_by_one(records: KafkaRecords) -> Iterator[Row]:
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


def _committed_batches(
    fetched: Fetched,
    number: int,
    ranges: OffsetRanges,
    skipped: Sequence[int],
    plain_of: Mapping[BatchId, memoryview],
    took: Took | None,
) -> Iterator[BatchBody]:
    partition = fetched.partition
    _, until = ranges[partition]
    if fetched.begin >= until:  # lowered since it was fetched
        return
    count = uncounted if took is None else partial(took, partition)
    try:
        for batch in committed_batches(
            fetched.octets, fetched.aborted, decompressed, number, until, skipped, plain_of, count
        ):
            reached = batch.last_offset + 1
            offsets = max(min(reached, until) - max(batch.base_offset, fetched.begin), 0)
            share = batch.read_bytes * offsets // (reached - batch.base_offset)
            count(batch.read_bytes, reached, share)
            yield batch
            if reached >= ranges[partition][1]:
                return
        count(0, min(fetched.end, until))
    except CorruptBatch as error:
        raise unreadable(partition, error) from error


def _within_bounds(
    group: Sequence[BatchBody], part: Sequence[Fetched], bounds: Int64
) -> Iterator[KafkaRecords]:
    """The records of a group that are within their bounds; yields nothing where none is.

    Args:
        group: batches; their `partition` indexes `part`.
        part: as in `committed_records`.
        bounds: shape (len(part), 2): the lowest offset, and the one after the highest.
    """
    if not group:
        return
    records = read_batches(group, [each.partition for each in part])
    bounds = bounds[records.partition]
    inside = (records.offset >= bounds[:, 0]) & (records.offset < bounds[:, 1])
    if inside.any():
        yield records if inside.all() else records.take(np.flatnonzero(inside))
