"""The timers that have left the lost cluster: its receipts, and dead letters of failed deliveries.

Offsets of the mirror are not those of the source, where markers of transactions take some. So a
timer is matched by its timer partition, its id and its due time: these are in both. One without an
id is matched by the other two, because its default id is an offset; timers of one millisecond leave
in their order. Of n such timers with r receipts the first r have left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute

from duewheel.kafka.log.columns import committed_records
from duewheel.kafka.log.reader import LogReader
from duewheel.ops.dead_letters.listing import letter_of
from duewheel.schemas.arrays import Int64, index_among
from duewheel.schemas.batches import ANY_TIME, NEVER, OffsetRanges, TopicPartition
from duewheel.schemas.partition_names import partition_name, record_if_named
from duewheel.schemas.receipts import RECEIPT_PATTERN
from duewheel.schemas.wire.kafka_records import KafkaRecords

_pc: Any = pyarrow.compute

PART_BYTES = 8 << 20  # read at a time


def timer_keys(ids: Iterable[bytes], due_ms: Iterable[int]) -> Int64:
    """64 bits for each timer of a partition: of its id, or of no bytes, and its due time. Python's
    hash has a key of this process, so that no producer finds ids that have those of others.
    """
    return np.fromiter(map(hash, zip(ids, due_ms, strict=True)), np.int64)


@dataclass(frozen=True, slots=True)
class Evidence:
    """The timers of one partition that have left."""

    keys: Int64  # rising
    counts: Int64  # of each key
    sources: Int64  # rising: offsets in the lost cluster

    def left(self, keys: Int64) -> Int64:
        """How many timers of each key have left."""
        index, found = index_among(keys, self.keys)
        return np.where(found, self.counts[index], 0) if len(self.keys) else np.zeros_like(keys)


class EvidenceReader:
    """Collects the timers that have left; 24 bytes for each. Not thread-safe.

    Attributes:
        newest_ms: timestamp of the newest receipt; None: there is none.
        begins_ms: by the partition of a receipt, which its id decides: a timer that was due before
            may have lost it.
    """

    def __init__(self, partitions: Sequence[TopicPartition]) -> None:
        """`partitions`: the timer partitions, by their names in the lost cluster."""
        self._number = {partition_name(each): n for n, each in enumerate(partitions)}
        self._columns: list[tuple[Int64, Int64, Int64]] = []
        self.newest_ms: int | None = None
        self.begins_ms = np.full(1, ANY_TIME)

    def distrust_receipts(self) -> None:
        """Some may be missing, of any time."""
        self.begins_ms = np.full(1, NEVER)

    def add_receipts(self, reader: LogReader, ranges: OffsetRanges) -> None:
        """Adds all receipts of a topic, which has these ranges."""
        begins_ms = np.full(len(ranges), ANY_TIME)
        for (_, number), (start, _) in ranges.items():
            if start:  # perhaps nothing is left of it
                begins_ms[number] = NEVER
        begun: set[int] = set()
        for records in records_in(reader, ranges):
            written = self._add_receipts(records)
            # The lost cluster may have deleted earlier ones before the mirror began at offset 0.
            of_part, firsts = np.unique(records.partition[written], return_index=True)
            for part, first in zip(of_part.tolist(), firsts.tolist(), strict=True):
                number = records.partitions[part][1]
                if number not in begun:
                    begun.add(number)
                    begins_ms[number] = records.timestamp_ms[written[first]]
        self.begins_ms = np.maximum(self.begins_ms, begins_ms)

    def _add_receipts(self, records: KafkaRecords) -> Int64:
        """The rows that are receipts of the partitions."""
        values = _pc.extract_regex(records.value.column(), RECEIPT_PATTERN)
        written = np.flatnonzero(np.asarray(values.is_valid()))
        partition, offset, due = (
            _pc.struct_field(values, name).take(written).to_pylist()
            for name in ("partition", "offset", "due")
        )
        ids = records.key.column().take(written).to_pylist()
        if len(written):
            newest_ms = int(records.timestamp_ms[written].max())
            self.newest_ms = max(newest_ms, self.newest_ms or newest_ms)
        names = [name.decode(errors="replace") for name in partition]  # any program may write any
        self._add(zip(names, map(int, offset), ids, map(int, due), strict=True))
        return written[[name in self._number for name in names]]

    def add_dead_letters(self, reader: LogReader, ranges: OffsetRanges) -> None:
        """Adds the failed deliveries among the dead letters of a topic."""
        for records, _ in reader.records(ranges):
            letters = [letter_of(record) for record in records]
            self._add(
                (partition_name(record[0]), record[1], each.timer_id, each.due_ms)
                for each in letters
                if each.due_ms is not None and (record := record_if_named(each.source))
            )

    def _add(self, rows: Iterable[tuple[str, int, bytes | None, int]]) -> None:
        own = [row for row in rows if row[0] in self._number]
        if not own:
            return
        ids = (
            b"" if timer_id == f"{partition}@{offset}".encode() else timer_id or b""
            for partition, offset, timer_id, _ in own
        )
        keys = timer_keys(ids, (due_ms for *_, due_ms in own))
        numbers = np.array([self._number[partition] for partition, *_ in own], np.int64)
        offsets = np.array([offset for _, offset, *_ in own], np.int64)
        self._columns.append((numbers, keys, offsets))

    def by_partition(self) -> Mapping[int, Evidence]:
        """The timers that have left each partition; one that the mirror has twice counts once."""
        if not self._columns:
            return {}
        columns = [np.concatenate(column) for column in zip(*self._columns, strict=True)]
        order = np.lexsort(columns[::-1])
        number, keys, sources = (column[order] for column in columns)
        again = (np.diff(number) == 0) & (np.diff(keys) == 0) & (np.diff(sources) == 0)
        number, keys, sources = (
            c[np.append(True, ~again)[: len(c)]] for c in (number, keys, sources)
        )
        numbers, firsts = np.unique(number, return_index=True)
        return {
            each: Evidence(
                *np.unique(keys[first:end], return_counts=True), np.unique(sources[first:end])
            )
            for each, first, end in zip(
                numbers.tolist(), firsts.tolist(), [*firsts[1:].tolist(), len(keys)], strict=True
            )
        }


NOTHING = Evidence(*(np.empty(0, np.int64) for _ in range(3)))


def records_in(reader: LogReader, ranges: OffsetRanges) -> Iterator[KafkaRecords]:
    """The committed records of ranges, as columns; those of one partition in their order."""
    for part in reader.read(ranges, PART_BYTES):
        for records in committed_records(part, ranges):
            yield from records.slices()
