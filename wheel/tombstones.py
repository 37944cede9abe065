"""Cancels in columns, and which rows they meet.

A cancel at offset o of a timer partition meets every timer of that partition with the same id whose
*first copy* lies below o, whichever copy of it that is. Rejected rows are no timers. So a row is
met by one of many cancels of its id if it is met by the one with the greatest offset, and pairs of
cancels and rows are never made: an id that is rescheduled over and over has as many of both.

Candidates are found by `keys`, made of the partition and the 40-bit hash of the id, which every log
record has; then the id itself is compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow.compute as pc

from duewheel.schemas.columns import Column, concat, take
from duewheel.schemas.timers import Bool, Int32, Int64, TopicPartition
from duewheel.wheel.cancel_log import CancelRows

NOT_ASKED = -1  # log_end
NOT_LOOKED = -1  # last
NOTHING = -(2**62)  # last, and −first, of what meets nothing that is in the log
BEFORE_START = NOTHING  # after, of what was known before the process started

# Of `word`, before it is found out; then the place of an Answer among them all.
NO_WORD = -1

_PARTITION_BITS = 23  # beside the 40 bits of a hash
_POSITION_BITS = 40  # of a place in a segment of the cancel log, beside the 23 of its hour
# A run of the filter is merged with the next unless it is as many times as long.
_RATIO = 4


@dataclass(frozen=True, slots=True)
class Tombstones:
    """Cancels.

    Attributes:
        partition: index in a list of topic-partitions that only grows.
        offset, id_hash, timer_id, hour, position, size, again: as in CancelRows.
        after: R when it became known: what it meets in later slots does not leave any more; or
            BEFORE_START: it may have left out whatever it meets.
        log_end: end of its partition then, or later, NOT_ASKED until that is known: copies made
            before it became known lie below.
        first, last: least and greatest slot of all that it meets in the log, for `first` of slots
            behind `after`, or some before it, too; NOT_LOOKED; or, where that is nothing, −NOTHING
            and NOTHING.
        word: its answer, as index, or NO_WORD.
    """

    partition: Int32
    offset: Int64
    id_hash: Int64
    timer_id: Column
    hour: Int64
    position: Int64
    size: Int64
    again: Bool
    after: Int64
    log_end: Int64
    first: Int64
    last: Int64
    word: Int32

    @classmethod
    def known(cls, rows: CancelRows, partition: Int32, after: int) -> Tombstones:
        """Cancels that become known; `partition` is the index of each one's."""
        count = len(rows)
        return cls(
            partition,
            rows.offset,
            rows.id_hash,
            rows.timer_id,
            rows.hour,
            rows.position,
            rows.size,
            rows.again,
            np.full(count, after),
            np.full(count, NOT_ASKED),
            np.full(count, NOT_LOOKED),
            np.full(count, NOT_LOOKED),
            np.full(count, NO_WORD, np.int32),
        )

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def written(self) -> Int64:
        """Numbers that rise in the order in which they were written to the cancel log."""
        numbers: Int64 = self.hour << _POSITION_BITS | self.position
        return numbers

    def take(self, rows: Int64) -> Tombstones:
        """Those rows, in the given order."""
        return Tombstones(
            self.partition[rows],
            self.offset[rows],
            self.id_hash[rows],
            take(self.timer_id, rows),
            self.hour[rows],
            self.position[rows],
            self.size[rows],
            self.again[rows],
            self.after[rows],
            self.log_end[rows],
            self.first[rows],
            self.last[rows],
            self.word[rows],
        )


def keys(partition: Int32, id_hash: Int64) -> Int64:
    """A number for each timer: equal where partition and hash are; −1 where the partition is."""
    return id_hash << _PARTITION_BITS | partition


def groups(key: Int64, timer_id: Column) -> Int64:
    """A number for each timer: equal where key and id are."""
    encoded: Any = pc.dictionary_encode(timer_id)
    same_id = np.asarray(encoded.indices, np.int64)
    same_key = np.unique(key, return_inverse=True)[1]
    return same_key * max(len(key), 1) + same_id


def superseded(live: Tombstones, may: Bool) -> Bool:
    """Which of the cancels have one behind them that meets all that they meet.

    Of one that was brought again the one that was written last does: it was looked up when there
    were more rows.

    Args:
        live: all of them, in any order.
        may: which of them may take the place of others.
    """
    key, is_superseded = keys(live.partition, live.id_hash), np.zeros(len(live), np.bool_)
    order = np.argsort(key, kind="stable")
    alike = np.diff(key[order]) == 0
    rows = order[np.append(alike, False) | np.append(False, alike)] if len(live) else order
    if len(rows):
        _, place = np.unique(groups(key[rows], take(live.timer_id, rows)), return_inverse=True)
        greatest = np.full(int(place.max()) + 1, -1)
        np.maximum.at(greatest, place, np.where(may[rows], live.offset[rows], -1))
        is_greatest = live.offset[rows] == greatest[place]
        written, last = live.written[rows], np.full(len(greatest), -1)
        instead = is_greatest & may[rows]
        np.maximum.at(last, place[instead], written[instead])
        is_superseded[rows] = (live.offset[rows] < greatest[place]) | (
            is_greatest & (written < last[place])
        )
    return is_superseded


@dataclass(frozen=True, slots=True)
class Run:
    """Cancels by rising key; of neighbours with one key and id, only the greatest offset.

    Attributes:
        key, timer_id: of the timers that are met.
        offset: those whose first copy lies below are.
    """

    key: Int64
    timer_id: Column
    offset: Int64

    def __len__(self) -> int:
        return len(self.key)

    @classmethod
    def of(cls, key: Int64, timer_id: Column, offset: Int64) -> Run:
        """The given ones, of which there is one, in any order; two runs end to end are fast."""
        order = np.argsort(key, kind="stable")
        key = key[order]
        alike = np.flatnonzero(key[1:] == key[:-1])
        same = pc.equal(take(timer_id, order[alike]), take(timer_id, order[alike + 1]))
        is_first = np.ones(len(key), np.bool_)
        is_first[1 + alike[np.asarray(same, np.bool_)]] = False
        first = np.flatnonzero(is_first)
        greatest = np.maximum.reduceat(offset[order], first)
        return cls(key[first], take(timer_id, order[first]), greatest)

    def merged(self, other: Run) -> Run:
        """All that either of them meets."""
        key, offset = np.append(self.key, other.key), np.append(self.offset, other.offset)
        return Run.of(key, concat([self.timer_id, other.timer_id]), offset)

    def meets(self, key: Int64, origin: Int64, timer_id: Column) -> Bool:
        """Which of the given rows are met; work and memory grow with them and what has their keys.

        Args:
            key, timer_id: of each.
            origin: offset of the first copy.
        """
        met = np.zeros(len(key), np.bool_)
        at = np.minimum(np.searchsorted(self.key, key), len(self.key) - 1)
        rows = np.flatnonzero(self.key[at] == key)
        if len(rows):
            wanted = np.unique(key[rows])
            first = np.searchsorted(self.key, wanted, "left")
            count = np.searchsorted(self.key, wanted, "right") - first
            begin = np.cumsum(count) - count
            mine = np.repeat(first - begin, count) + np.arange(int(count.sum()))
            ids = concat([take(self.timer_id, mine), take(timer_id, rows)])
            group = groups(np.append(self.key[mine], key[rows]), ids)
            _, place = np.unique(group, return_inverse=True)
            below = np.zeros(int(place.max()) + 1, np.int64)
            np.maximum.at(below, place[: len(mine)], self.offset[mine])
            met[rows] = origin[rows] < below[place[len(mine) :]]
        return met


@dataclass(frozen=True, slots=True)
class Filter:
    """What is to be left out of the deliveries; never changed, so that any thread may ask it.

    Adding a few cancels moves few: a long run is merged only once what came behind it is a good
    part of it. A cancel that is over may stay in it, for it meets nothing any more.

    Attributes:
        runs: each much longer than the next.
        places: index of each topic-partition.
    """

    runs: tuple[Run, ...]
    places: Mapping[TopicPartition, int]

    def __len__(self) -> int:
        return sum(map(len, self.runs))

    def beside(self, new: Tombstones) -> Filter:
        """This one, and those cancels."""
        if not len(new):
            return self
        runs = list(self.runs)
        runs.append(Run.of(keys(new.partition, new.id_hash), new.timer_id, new.offset))
        while len(runs) > 1 and len(runs[-2]) < _RATIO * len(runs[-1]):
            last = runs.pop()
            runs[-1] = runs[-1].merged(last)
        return replace(self, runs=tuple(runs))

    def leaves_out(
        self,
        sources: list[TopicPartition],
        source: Int32,
        origin: Int64,
        id_hash: Int64,
        timer_id: Column,
    ) -> Bool:
        """Rows that a cancel meets.

        Args:
            sources: what `source` indexes: the partition of each row.
            source: as above.
            origin: offset of the first copy.
            id_hash, timer_id: of each row.
        """
        met = np.zeros(len(origin), np.bool_)
        if self.runs:
            key = keys(indexes(self.places, sources)[source], id_hash)
            for run in self.runs:
                met |= run.meets(key, origin, timer_id)
        return met


def indexes(places: Mapping[TopicPartition, int], partitions: list[TopicPartition]) -> Int32:
    """The index of each partition, −1 where it has none."""
    return np.array([places.get(p, -1) for p in partitions], np.int32)
