"""Cancels that are known to dequeue, in columns, and which rows they meet.

A cancel at offset o of a timer partition meets every timer of that partition with the same id whose
*first copy* lies below o, whichever copy of it that is. Rejected rows are no timers. Candidates are
found by the 40-bit hash of the id, which every log record has; then the id itself is compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pyarrow.compute as pc

from duewheel.schemas.columns import Column, binary, concat, take
from duewheel.schemas.timers import Bool, Int32, Int64, TopicPartition
from duewheel.wheel.cancel_log import CancelRows

NOT_ASKED = -1  # log_end
NOT_SETTLED = -1  # last
NOTHING = -(2**62)  # last, of what meets nothing that is in the wheel

# Of `word`, before it is found out; then the place of an Answer among them all.
NO_WORD = -1


@dataclass(frozen=True, slots=True)
class Tombstones:
    """Cancels.

    Attributes:
        number: of each, rising as they become known.
        partition: index in a list of topic-partitions that only grows.
        offset, id_hash, timer_id, reschedule, hour, position, size: as in CancelRows.
        after: R when it became known: what it meets in later slots does not leave any more.
        log_end: end of its partition then, or later, NOT_ASKED until that is known: copies made
            before it became known lie below.
        last: greatest slot of all that it can ever meet; NOT_SETTLED, or NOTHING.
        looked: whether it was looked for what it meets.
        word: its answer, as index, or NO_WORD.
    """

    number: Int64
    partition: Int32
    offset: Int64
    id_hash: Int64
    timer_id: Column
    reschedule: Bool
    hour: Int64
    position: Int64
    size: Int64
    after: Int64
    log_end: Int64
    last: Int64
    looked: Bool
    word: Int32

    @classmethod
    def none(cls) -> Tombstones:
        """No cancels."""
        nothing = np.empty(0, np.int64)
        index = np.empty(0, np.int32)
        flags = np.empty(0, np.bool_)
        return cls(
            number=nothing,
            partition=index,
            offset=nothing,
            id_hash=nothing,
            timer_id=binary([]),
            reschedule=flags,
            hour=nothing,
            position=nothing,
            size=nothing,
            after=nothing,
            log_end=nothing,
            last=nothing,
            looked=flags,
            word=index,
        )

    @classmethod
    def known(cls, rows: CancelRows, partition: Int32, after: int) -> Tombstones:
        """Cancels that become known; `partition` is the index of each one's."""
        count = len(rows)
        return cls(
            np.arange(count),
            partition,
            rows.offset,
            rows.id_hash,
            rows.timer_id,
            rows.reschedule,
            rows.hour,
            rows.position,
            rows.size,
            np.full(count, after),
            np.full(count, NOT_ASKED),
            np.full(count, NOT_SETTLED),
            np.zeros(count, np.bool_),
            np.full(count, NO_WORD, np.int32),
        )

    def __len__(self) -> int:
        return len(self.offset)

    def take(self, rows: Int64) -> Tombstones:
        """Those rows, in the given order."""
        columns: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            is_array = isinstance(value, np.ndarray)
            columns[field.name] = value[rows] if is_array else take(value, rows)
        return replace(self, **columns)

    def beside(self, other: Tombstones) -> Tombstones:
        """These, then the others."""
        if not len(self) or not len(other):
            return self if len(self) else other
        columns: dict[str, Any] = {}
        for field in fields(self):
            mine, its = getattr(self, field.name), getattr(other, field.name)
            is_array = isinstance(mine, np.ndarray)
            columns[field.name] = np.append(mine, its) if is_array else concat([mine, its])
        return replace(self, **columns)

    def by_hash(self) -> Tombstones:
        """The same, by rising hash."""
        return self.take(np.argsort(self.id_hash, kind="stable"))


@dataclass(frozen=True, slots=True)
class Rows:
    """Timers that cancels may meet.

    Attributes:
        partition: index in the same list as that of the cancels; −1 for one that is not there.
        origin: offset of the first copy.
        id_hash, timer_id: of each.
    """

    partition: Int32
    origin: Int64
    id_hash: Int64
    timer_id: Column

    def __len__(self) -> int:
        return len(self.origin)


def meetings(tombstones: Tombstones, rows: Rows) -> tuple[Int64, Int64]:
    """All pairs of a cancel and a row that it meets: their indexes.

    Args:
        tombstones: by rising hash.
        rows: in any order.
    """
    first = np.searchsorted(tombstones.id_hash, rows.id_hash, "left")
    count = np.searchsorted(tombstones.id_hash, rows.id_hash, "right") - first
    row = np.repeat(np.arange(len(rows)), count)
    begin = np.repeat(np.cumsum(count) - count, count)
    cancel = np.repeat(first, count) + np.arange(len(row)) - begin
    meets = tombstones.partition[cancel] == rows.partition[row]
    meets &= rows.origin[row] < tombstones.offset[cancel]
    row, cancel = row[meets], cancel[meets]
    same = pc.equal(take(rows.timer_id, row), take(tombstones.timer_id, cancel))
    alike = np.asarray(same, np.bool_)
    return cancel[alike], row[alike]


@dataclass(frozen=True, slots=True)
class Filter:
    """What is to be left out of the deliveries; never changed, so that any thread may ask it.

    Attributes:
        tombstones: by rising hash.
        places: index of each topic-partition.
    """

    tombstones: Tombstones
    places: Mapping[TopicPartition, int]

    def leaves_out(
        self,
        sources: list[TopicPartition],
        source: Int32,
        origin: Int64,
        id_hash: Int64,
        timer_id: Column,
    ) -> Bool:
        """Rows that a cancel meets; `source` indexes `sources`, the rest is as in Rows."""
        met = np.zeros(len(origin), np.bool_)
        hashes = self.tombstones.id_hash
        if len(hashes):
            near = hashes[np.minimum(np.searchsorted(hashes, id_hash), len(hashes) - 1)] == id_hash
            rows = np.flatnonzero(near)
            partition = indexes(self.places, sources)[source[rows]]
            found = Rows(partition, origin[rows], id_hash[rows], take(timer_id, rows))
            met[rows[meetings(self.tombstones, found)[1]]] = True
        return met


NO_CANCELS = Filter(Tombstones.none(), {})


def indexes(places: Mapping[TopicPartition, int], partitions: list[TopicPartition]) -> Int32:
    """The index of each partition, −1 where it has none."""
    return np.array([places.get(p, -1) for p in partitions], np.int32)
