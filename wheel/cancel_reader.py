"""Reads what becomes known of the cancel log, a bounded number at once.

At a closing all that is committed lies below C. At a start it may not: ingest may have gone on for
hours. What lies at or above C then is not kept, however much it is: where the first such record of
each segment lies is remembered, and from there on it is read again at the next closing. What was
known before is told from the rest by its position and C.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from duewheel.checkpoints.page_contents import Commit, Marks
from duewheel.checkpoints.progress import PartitionProgress
from duewheel.schemas.timers import Bool, Int32, Int64, TopicPartition, is_retired
from duewheel.wheel.cancel_log import CancelRows
from duewheel.wheel.data_directory import DataDirectory
from duewheel.wheel.layout import RECORD_BYTES
from duewheel.wheel.tombstones import indexes

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Piece:
    """Cancels that become known.

    Attributes:
        rows: as they were read.
        partition: of each, as index in CancelReader.partitions.
        is_over: below K as it was found at the start.
    """

    rows: CancelRows
    partition: Int32
    is_over: Bool


class CancelReader:
    """Of one data directory; not thread-safe.

    Attributes:
        partitions: all that have had cancels; the list only grows.
        places: the index of each.
        cut_off: hashes in cancels that are cut off: nobody knows what they had left out before.
    """

    def __init__(
        self, directory: DataDirectory, found: Mapping[TopicPartition, PartitionProgress]
    ) -> None:
        """
        Args:
            directory: whose cancel log is read.
            found: the progress at the start.
        """
        self.partitions: list[TopicPartition] = []
        self.places: dict[TopicPartition, int] = {}
        self.cut_off = np.empty(0, np.int64)
        self._directory = directory
        self._from = {p: part.cancels_from for p, part in found.items()}
        self._read: dict[int, int] = {}  # bytes of each segment
        self._waits: dict[int, int] = {}  # position of the first at or above C
        self._c: Marks = {}

    def first_unread(self, commit: Commit) -> int:
        """The first hour of the cancel log in which something is not known yet."""
        unread = [h for h, (size, _) in commit.cancels.items() if self._read.get(h, 0) < size]
        return min([*unread, *self._waits], default=_NEVER)

    @property
    def waiting(self) -> int:
        """How many of those that were read are not known yet, at most."""
        return sum(self._read.get(h, at) - at for h, at in self._waits.items()) // RECORD_BYTES

    def read(self, commit: Commit, c: Marks) -> Iterator[Piece]:
        """What becomes known by a C, in the order in which it was written.

        Args:
            commit: the newest when C was taken, or read.
            c: C.

        Raises:
            CorruptFile: the cancel log is damaged.
        """
        segments, gone = self._directory.cancels, self._directory.state.gc_cancels
        for hour, (length, _) in sorted(commit.cancels.items()):
            if hour < gone:
                continue
            seen = self._read.get(hour, 0)
            start = self._waits.pop(hour, seen)
            if start == length:
                continue
            for rows in segments.read(hour, start, length):
                piece = self._below(rows, hour, seen, c)
                if len(piece.rows):
                    yield piece
            self.cut_off = np.append(self.cut_off, segments.cut_off(hour, seen, length))
            self._read[hour] = length
        self._c = c

    def _below(self, rows: CancelRows, hour: int, seen: int, c: Marks) -> Piece:
        """Those that become known; where others begin is remembered."""
        index = self._indexes(rows)
        ends = self._ends(c)
        waits = np.flatnonzero(rows.offset >= ends[index])
        if len(waits):
            self._waits.setdefault(hour, int(rows.position[waits[0]]))
        known = (rows.position < seen) & (rows.offset < self._ends(self._c)[index])
        new = np.flatnonzero((rows.offset < ends[index]) & ~known)
        begins = np.array([self._from.get(p, 0) for p in self.partitions], np.int64)
        return Piece(rows.take(new), index[new], (rows.offset < begins[index])[new])

    def _ends(self, c: Marks) -> Int64:
        # Of a topic that was given up nothing comes any more, and no progress tells.
        ends = [_NEVER if is_retired(p[0]) else c.get(p, 0) for p in self.partitions]
        return np.array(ends, np.int64)

    def _indexes(self, rows: CancelRows) -> Int32:
        """The index of each one's partition."""
        codes = rows.topic.astype(np.int64) << 32 | rows.partition
        found, of_row = np.unique(codes, return_inverse=True)
        names = self._directory.topics.names(int(found.max(initial=-1)) >> 32)
        partitions = [(names[code >> 32], code & 0xFFFFFFFF) for code in found.tolist()]
        for partition in partitions:
            if partition not in self.places:
                self.places[partition] = len(self.partitions)
                self.partitions.append(partition)
        index: Int32 = indexes(self.places, partitions)[of_row]
        return index
