"""The records of one mirrored timer partition, as columns that decide about them.

Ingest's own parser reads them, under the present settings and the topic's former name. Copies count
as such without a look at their signature, because its key was lost with the cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from enum import IntEnum, auto
from typing import Any

import numpy as np
import pyarrow.compute

from duewheel.ops.recovery.evidence import timer_keys
from duewheel.schemas.arrays import Bool, Int64
from duewheel.schemas.batches import ANY_OFFSET, NO_KEY, NO_SLOT, TimerBatch, TopicPartition
from duewheel.schemas.columns import Column, join_groups, lengths
from duewheel.schemas.hashing import key_hashes
from duewheel.schemas.partition_names import partition_name
from duewheel.schemas.request.parser import Contract, parse_with_columns
from duewheel.schemas.wire.kafka_records import KafkaRecords

_pc: Any = pyarrow.compute

# Above all offsets: a copy names that of its first one in the lost cluster. It may be above the
# copy's own offset in the mirror, and no rule should refuse it for that.
_SHIFT = 1 << 40
UNNAMED = -1


class Kind(IntEnum):
    """The request of a record."""

    TIMER = 0
    RESCHEDULE = auto()
    KEEP = auto()
    COPY = auto()
    CANCEL = auto()  # from here on no timers
    CHASE = auto()
    OTHER = auto()  # rejected, recurring, or a dead letter that waits


@dataclass(frozen=True, slots=True)
class MirroredRows:
    """The records, one row for each, in their order; 88 bytes each."""

    offset: Int64  # in the mirror
    kind: Int64
    group: Int64  # equal for one id; for one due time where there is none
    key: Int64  # as in the evidence
    id_hash: Int64  # decides the partition of a receipt; NO_KEY without an id
    content: Int64  # a hash of key and value
    record: Int64  # one of all of the record
    due_ms: Int64
    timestamp_ms: Int64
    first_offset: Int64  # of copies and chases, in the lost cluster; else UNNAMED
    named: Int64  # of a cancel, likewise, or ANY_OFFSET
    unclear: Bool  # its due time depends on its former offset

    def __len__(self) -> int:
        return len(self.offset)

    @classmethod
    def joined(cls, parts: Iterable[MirroredRows]) -> MirroredRows:
        """The rows of all."""
        none = (*(np.empty(0, np.int64) for _ in fields(cls)[1:]), np.empty(0, np.bool_))
        each = [none, *([getattr(part, f.name) for f in fields(cls)] for part in parts)]
        return cls(*(np.concatenate(column) for column in zip(*each, strict=True)))

    def without_repeats(self) -> MirroredRows:
        """Without those that the mirror has again, as after a kill of a MirrorMaker that is not
        exactly once: the same record, to its timestamp, after records that are later than it; and
        those that follow such a record. Two equal records of a producer are neighbours.
        """
        row = np.arange(len(self))
        _, first, record = np.unique(self.record, return_index=True, return_inverse=True)
        again = first[record] < row
        behind = again & (self.timestamp_ms < np.maximum.accumulate(self.timestamp_ms))
        # The newest row that repeats an earlier time, and the newest one that is no repetition.
        last_behind = np.maximum.accumulate(np.where(behind, row, -1))
        last_new = np.maximum.accumulate(np.where(again, -1, row))
        kept = ~(again & (last_behind > last_new))
        return MirroredRows(*(getattr(self, each.name)[kept] for each in fields(self)))


def rows_of(
    records: KafkaRecords, partition: TopicPartition, contract: Contract, others: Counter[str]
) -> MirroredRows:
    """The rows of some records of `partition`, its name in the lost cluster. Adds the records that
    are left out to `others`: by code, and recurring ones.
    """
    shifted = replace(records, offset=records.offset + _SHIFT, partitions=[partition])
    batch, columns = parse_with_columns(shifted, contract)
    rejected = batch.rejected
    others.update(batch.rejections())
    others["recurring"] += int(batch.seed.sum())
    ids = [timer_id or b"" for timer_id in batch.timer_id.to_pylist()]
    nameless = lengths(batch.timer_id) == 0
    due_ms = batch.due_ms.tolist()
    first_offset = np.where(batch.origin_offset < _SHIFT, batch.origin_offset, UNNAMED)
    kind = _kinds(batch, first_offset)
    kind[rejected | batch.recurring] = Kind.OTHER
    in_window = np.asarray(_pc.greater(_pc.fill_null(columns.column("window_ms"), 0), 0))
    key = timer_keys(ids, due_ms)
    group = np.where(nameless, key, np.fromiter(map(hash, ids), np.int64, len(ids)))
    encoded = records.key_value.column()
    return MirroredRows(
        records.offset,
        kind,
        group,
        key,
        np.where(nameless, NO_KEY, key_hashes(batch.timer_id)).astype(np.int64),
        _hashes(encoded.to_pylist()),
        _hashes(
            zip(encoded.to_pylist(), _headers(records), records.timestamp_ms.tolist(), strict=True)
        ),
        batch.due_ms,
        records.timestamp_ms,
        first_offset,
        _named(batch, ids, partition, nameless),
        nameless & in_window & (batch.key_hash == NO_KEY),
    )


def _kinds(batch: TimerBatch, first_offset: Int64) -> Int64:
    # Of several the last one counts: a copy of a reschedule is a copy, a pure cancel cancels, too,
    # and a chase is a pure cancel with a first offset.
    kind = np.full(len(batch), int(Kind.TIMER))
    kind[batch.cancels] = Kind.RESCHEDULE
    kind[batch.keeps] = Kind.KEEP
    kind[first_offset != UNNAMED] = Kind.COPY
    kind[~batch.timer] = Kind.CANCEL
    kind[batch.chase_slot != NO_SLOT] = Kind.CHASE
    return kind


def _named(batch: TimerBatch, ids: list[bytes], partition: TopicPartition, nameless: Bool) -> Int64:
    """The offset that each cancel names, also as the default id of the timer."""
    named = np.where(batch.cancels, batch.named_offset, ANY_OFFSET)
    start = f"{partition_name(partition)}@".encode()
    for row in np.flatnonzero(batch.cancels & ~nameless).tolist():
        number = ids[row].removeprefix(start)
        if number != ids[row] and number.isdigit() and len(number) <= 18:
            named[row] = int(number)
    return named


def _headers(records: KafkaRecords) -> list[Any]:
    encoded: Column = records.headers.both.column()
    return join_groups(encoded, records.headers.firsts).to_pylist()


def _hashes(values: Iterable[Any]) -> Int64:
    return np.fromiter(map(hash, values), np.int64)
