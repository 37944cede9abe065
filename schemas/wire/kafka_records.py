"""A batch of records of the timer topics, column by column.

Byte strings are positions in the fetched bytes (`Spans`): keys and a few headers are read, the rest
is copied once, in the form in which it is stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from duewheel.schemas.arrays import Int32, Int64, bounds_of
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.wire.spans import RawHeaders, Spans

SLICE_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class Unread:
    """The record batches that are not read: each is a row without content, at its first offset."""

    row: Int64  # rising
    last_offset: Int64  # of each batch
    defect: Int64  # a Defect

    def take(self, rows: Int64) -> Unread | None:
        """Those among the given rows of the records; None: no row stands for a batch."""
        place = np.minimum(np.searchsorted(self.row, rows), len(self.row) - 1)
        found = np.flatnonzero(self.row[place] == rows)
        place = place[found]
        return Unread(found, self.last_offset[place], self.defect[place]) if len(found) else None


@dataclass(frozen=True, slots=True)
class KafkaRecords:
    """Records, one row for each."""

    partitions: list[TopicPartition]  # indexed by `partition`
    partition: Int32
    offset: Int64
    timestamp_ms: Int64
    key: Spans  # with nulls, like `value`
    value: Spans
    key_value: Spans  # both, encoded as in the record: each after its length
    headers: RawHeaders  # of all records
    unread: Unread | None = None  # the rows of batches that are not read; None: there are none

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def sizes(self) -> Int64:
        """The bytes of each record's key, value and headers, as encoded."""
        of_headers = bounds_of(self.headers.both.length)[self.headers.firsts]
        sizes: Int64 = self.key_value.length + np.diff(of_headers)
        return sizes

    def take(self, rows: Int64) -> KafkaRecords:
        return KafkaRecords(
            partitions=self.partitions,
            partition=self.partition[rows],
            offset=self.offset[rows],
            timestamp_ms=self.timestamp_ms[rows],
            key=self.key.take(rows),
            value=self.value.take(rows),
            key_value=self.key_value.take(rows),
            headers=self.headers.take(rows),
            unread=None if self.unread is None else self.unread.take(rows),
        )

    def slices(self) -> Iterator[KafkaRecords]:
        """The records, SLICE_ROWS at a time: a batch may have 2,000,000, and a parsed one takes
        0.8 kB.
        """
        if len(self) <= SLICE_ROWS:  # most: not copied
            yield self
            return
        for first in range(0, len(self), SLICE_ROWS):
            yield self.take(np.arange(first, min(first + SLICE_ROWS, len(self))))

    def without_headers(self) -> KafkaRecords:
        none = self.headers.take(np.empty(0, np.int64))
        return replace(self, headers=replace(none, firsts=np.zeros(len(self) + 1, np.int64)))
