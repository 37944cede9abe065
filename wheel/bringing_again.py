"""Copies bring their cancels again, so that dequeue may forget these before all copies have come.

A copy that was written before a cancel of its timer became known may come long after it, when
nobody has the cancel in memory any more (cancelling.py). So ingest looks, for each copy that it
appends, in the cancel log on disk. The last cancel that meets the copy is written once more, in the
copy's own commit. So it is known again at the closing that lets the copy's slot be delivered.

- The cancel is found: it lies in the log below the copy's commit, and its segment stays there as
  long as copies may be on their way. What dequeue gives up meanwhile has none to wait for.
- Cancels that come in the commit of the copy, or later, become known at a closing whose lookup sees
  the copy: nothing has to be done for them.
- The last one meets all that the others do. It lies below the copy: whoever reads the copy again
  after a loss has read the cancel before it.
- It is marked, for its answer is a matter of the first one.

Without copies in a batch, or cancels on disk, this costs nothing; else one pass over the column of
hashes, and memory for what has the hash of a copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from duewheel.checkpoints.page_contents import Commit
from duewheel.errors import CorruptFile
from duewheel.schemas.columns import Column, choose, concat, lengths
from duewheel.schemas.ids import source_names
from duewheel.schemas.timers import Int64, TimerBatch
from duewheel.wheel.cancel_log import CancelRows
from duewheel.wheel.data_directory import DataDirectory
from duewheel.wheel.lookups import lower_bits, with_hashes
from duewheel.wheel.tombstones import groups, keys

_NEVER = np.iinfo(np.int64).max
_AT_ONCE = 20_000


@dataclass(frozen=True, slots=True)
class _Copies:
    """Copies of timers.

    Attributes:
        home: topic number and partition of each.
        origin, id_hash, timer_id: as in TimerBatch, but that no id is empty.
    """

    home: Int64
    origin: Int64
    id_hash: Int64
    timer_id: Column

    @classmethod
    def of(cls, batch: TimerBatch, topics: Int64) -> _Copies:
        """All rows of the batch; `topics`: the number of each of its partitions' topics."""
        numbers = np.array([number for _, number in batch.partitions], np.int64)
        default = source_names(batch.partitions, batch.partition, batch.origin_offset)
        return cls(
            (topics << 32 | numbers)[batch.partition],
            batch.origin_offset,
            batch.id_hash,
            choose(lengths(batch.timer_id) == 0, default, batch.timer_id),
        )

    def met_by(self, cancels: CancelRows) -> CancelRows:
        """Of the cancels of each id that these copies have the last, if it meets any of them."""
        home = cancels.topic.astype(np.int64) << 32 | cancels.partition
        _, place = np.unique(np.append(self.home, home), return_inverse=True)
        key = keys(place.astype(np.int32), np.append(self.id_hash, cancels.id_hash))
        _, timer = np.unique(
            groups(key, concat([self.timer_id, cancels.timer_id])), return_inverse=True
        )
        count = len(self.origin)
        first = np.full(int(timer.max(initial=-1)) + 1, _NEVER)
        np.minimum.at(first, timer[:count], self.origin)
        order = np.lexsort((cancels.offset, timer[count:]))
        is_last = np.append(np.diff(timer[count:][order]) != 0, True)[: len(order)]
        last = order[is_last]
        return cancels.take(last[cancels.offset[last] > first[timer[count:][last]]])


def brought_again(directory: DataDirectory, commit: Commit, batch: TimerBatch) -> CancelRows | None:
    """The cancels that the copies of a batch bring; None if there are none.

    Args:
        directory: ingest's.
        commit: the newest: what counts of the cancel log.
        batch: rows about to be appended.

    Raises:
        CorruptFile: the cancel log is damaged.
    """
    is_copy = (batch.origin_offset < batch.offset) & batch.timer & ~batch.rejected
    if not commit.cancels or not is_copy.any():
        return None
    topics = directory.topics.ids([topic for topic, _ in batch.partitions]).astype(np.int64)
    copies = _Copies.of(batch.take(np.flatnonzero(is_copy)), topics)
    found: list[CancelRows] = []
    for cancels in _with_hashes(directory, commit, np.unique(copies.id_hash)):
        found.append(cancels)
        # Of those of one id one is kept: what is found stays in proportion to the copies.
        if sum(map(len, found)) > max(_AT_ONCE, len(copies.origin)):
            found = [copies.met_by(CancelRows.joined(found))]
    last = copies.met_by(CancelRows.joined(found)) if found else None
    return last if last is not None and len(last) else None


def _with_hashes(directory: DataDirectory, commit: Commit, hashes: Int64) -> Iterator[CancelRows]:
    """The cancels on disk with one of these hashes, a bounded number at once."""
    table, log = lower_bits(hashes), directory.cancels
    for hour, (end, _) in sorted(commit.cancels.items()):
        try:
            for at, records in log.stretches(hour, 0, end):
                rows = with_hashes(records, hashes, table)
                yield from log.rows(hour, at, rows, records[rows])
        except CorruptFile:
            # What dequeue has unlinked meanwhile has no copies to wait for.
            if hour >= directory.state.gc_cancels:
                raise
