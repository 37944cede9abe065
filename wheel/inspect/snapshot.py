"""Which records of the timer log are pending, seen from beside the running processes.

The pending timers are those of the newest commit page but those that the mirror of the progress,
read after it, says are out. Both are read once (`Snapshot`), and then every record can be judged by
itself: committed records never change. The mirror is written right after Kafka's commit, so it may
be one transaction behind Kafka, never ahead of it.

Of a half-delivered slot each row is judged by partition and offset, which its message says: the
files of a standby, or of who has taken over, may have the partitions of that slot in another order
than the owner that delivered a part of it.

Takes no lock. An hour that is delivered may be unlinked at any moment: `consistently` starts again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from duewheel.checkpoints.delivered import is_out
from duewheel.checkpoints.page_codec import Marks
from duewheel.errors import CorruptFile
from duewheel.schemas.arrays import Int64
from duewheel.wheel.slots import hour_of
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.layout import RECORD_BYTES

Result = TypeVar("Result")

ROWS_AT_ONCE = 20_000  # of a half-delivered slot


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What decides which records are pending.

    Attributes:
        log_bytes: committed length of the log of every hour that can hold pending timers, in order.
        current: the first hour that can.
        delivered_slot: last one delivered in full, -1 before the first start of dequeue.
        half_below: D of the next slot, of the partitions of which that is half delivered.
    """

    log_bytes: Mapping[int, int]
    current: int
    delivered_slot: int
    half_below: Marks

    @classmethod
    def take(cls, directory: DataDirectory) -> Snapshot:
        """The present one. The commit page is read first: what is out was committed before."""
        commit, mirror = directory.state.commit(), directory.state.mirror()
        slot, half_below = -1, {}
        if mirror is not None:
            slot = mirror.delivered_slot
            half_below = {
                p: part.half_below
                for p, part in mirror.progress.partitions.items()
                if part.half_below is not None and part.delivered_slot == slot
            }
        current = hour_of(slot + 1, directory.config.precision_ms)
        lengths = {hour: h.log_bytes for hour, h in sorted(commit.hours.items()) if hour >= current}
        return cls(lengths, current, slot, half_below)


def consistently(directory: DataDirectory, work: Callable[[Snapshot], Result]) -> Result:
    """`work` of a present snapshot; again if an hour of it was delivered and unlinked meanwhile.

    Raises:
        CorruptFile: a file is damaged.
    """
    while True:
        snapshot = Snapshot.take(directory)
        try:
            return work(snapshot)
        except CorruptFile:
            if Snapshot.take(directory).current == snapshot.current:
                raise


def positions_out(directory: DataDirectory, snapshot: Snapshot) -> Int64:
    """Log positions of the rows of slot r + 1 that are out, rising; each row's message is asked
    for its partition and offset.

    Raises:
        CorruptFile: log or messages are damaged.
    """
    if not snapshot.half_below:
        return np.empty(0, np.int64)
    log, hour, half_slot = directory.log, snapshot.current, snapshot.delivered_slot + 1
    positions = log.walk(hour, directory.wheel.range(half_slot - 1, half_slot)).positions()
    view = log.view(hour, int(positions.max(initial=-RECORD_BYTES)) + RECORD_BYTES)
    found = [np.empty(0, np.int64)]
    for first in range(0, len(positions), ROWS_AT_ONCE):
        rows = positions[first : first + ROWS_AT_ONCE]
        prefix = directory.messages.prefixes(hour, view.take(rows // RECORD_BYTES))
        sources, source = directory.topics.sources(prefix)
        d = np.array([snapshot.half_below.get(p, 0) for p in sources], np.int64)[source]
        offset = prefix["source_offset"].astype(np.int64)
        found.append(rows[is_out(np.full(len(rows), half_slot), offset, half_slot - 1, d)])
    return np.concatenate(found)
