"""How many cancels ingest may take: as many as dequeue may have in memory.

The commit page says how many have ever been written, `state` how many of these dequeue has in
memory no more, or not at present (far_cancels.py). The rest is there, or on its way: it becomes
known when slots are closed next. So the bound holds whoever is away, and whatever lies in the
backlog.

What does not fit waits, and with it the rest of its partition: a cancel or reschedule; a copy that
brings its cancel again (bringing_again.py). So does all that comes later, for Spark's next batch
begins when this one is done. Nobody waits for ever, for all that makes room is done by dequeue
alone (cancelling.py):

- What is met later than in a minute is put away on disk.
- What is met leaves when its slot is delivered, and the floor rises with time alone.
- What meets nothing goes as soon as it was looked for, and has its answer.
- An answer for which all copies would have to come first is given at once when there is no room.

Exempt is what was there when slots were closed, for delivery waits for it: what comes again after a
loss, and all of a standby. As it comes in it is no more than there was room for then, but for what
was over; that goes in portions when it becomes known. One batch may go beyond the bound: the last
of these.
"""

from __future__ import annotations

import numpy as np

from duewheel.checkpoints.page_contents import Commit
from duewheel.schemas.timers import Bool, TimerBatch, TopicPartition
from duewheel.wheel.bringing_again import brought_again
from duewheel.wheel.data_directory import DataDirectory

_NEVER = np.iinfo(np.int64).max


class CancelRoom:
    """Of one data directory. Not thread-safe: the engine owns it."""

    def __init__(self, directory: DataDirectory, most: int) -> None:
        """
        Args:
            directory: ingest's.
            most: how many may be in memory.
        """
        self._directory = directory
        self._most = most
        # While there is no room these offsets wait: copies need not be looked for again.
        self._stops: dict[TopicPartition, int] = {}

    def fits(self, batch: TimerBatch, before: Commit) -> Bool:
        """Which rows there is room for; behind another one, of their partition, it does not count.

        Args:
            batch: rows at or above the marks.
            before: the newest commit.

        Raises:
            CorruptFile: the cancel log is damaged.
        """
        there = before.cancels_taken - self._directory.state.cancels_over
        room = max(0, self._most - there)
        if room:
            self._stops = {}
        stops = np.array([self._stops.get(p, _NEVER) for p in batch.partitions], np.int64)
        fits: Bool = batch.offset < stops[batch.partition]
        takes = batch.cancels & fits
        copies = (batch.origin_offset < batch.offset) & fits
        if np.count_nonzero(takes | copies) > room:
            again = brought_again(self._directory, before, batch.take(np.flatnonzero(copies)))
            if again is not None:
                takes |= copies & np.isin(batch.id_hash, again.id_hash)
        fits[np.flatnonzero(takes)[room:]] = False
        np.minimum.at(stops, batch.partition[~fits], batch.offset[~fits])
        self._stops = dict(zip(batch.partitions, stops.tolist(), strict=True))
        return fits
