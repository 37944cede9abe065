"""Counts the timers of one hour by the hash of their target, in bounded memory.

Producers choose targets, as many as they like, and must not hide those of others. So if more than
TARGETS_KEPT have counts, the largest count of those that are too many is subtracted from all (a
summary of Misra and Gries). That takes as much from TARGETS_KEPT other counts: so a count is never
high, and low by less than 1/TARGETS_KEPT of the hour's timers, in whatever order they come. With
fewer targets it is exact.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from duewheel.schemas.arrays import Int64, index_among

TARGETS_KEPT = 10_000


class TopicCounts:
    """Counts of timers by hash.

    Attributes:
        table: three rows: the hashes, rising, their counts, and of each the log position of one
            record.
    """

    def __init__(self) -> None:
        self.table: npt.NDArray[np.int64] = np.empty((3, 0), np.int64)

    def add(self, hashes: Int64, positions: Int64) -> None:
        """Counts more timers, at these positions of the log."""
        column, has_count = index_among(hashes, self.table[0])
        self.table[1] += np.bincount(column[has_count], minlength=self.table.shape[1])
        new = np.flatnonzero(~has_count)
        if not len(new):
            return
        names, first, counts = np.unique(hashes[new], return_index=True, return_counts=True)
        table = np.hstack([self.table, [names, counts, positions[new[first]]]])
        excess = table.shape[1] - TARGETS_KEPT
        if excess > 0:
            table[1] -= np.partition(table[1], excess - 1)[excess - 1]
            table = table[:, table[1] > 0]
        self.table = table[:, np.argsort(table[0])]

    def drop(self, hashes: Int64, counts: Int64) -> None:
        """Subtracts the counts of timers that have left; a hash may be there several times."""
        column, has_count = index_among(hashes, self.table[0])
        np.subtract.at(self.table[1], column[has_count], counts[has_count])
        self.table = self.table[:, self.table[1] > 0]
