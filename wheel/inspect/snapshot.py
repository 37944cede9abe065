"""Decides which records of the timer log are pending, beside the running processes.

A timer is pending if it is in the newest commit page and not out by the mirror of the progress,
read after that page. `Snapshot` reads both once; committed records never change, so each record is
decided by itself. The mirror is written right after Kafka's commit: it may lag by one transaction,
and is never ahead.

In a half-delivered slot, partition and offset of the message decide, not positions: the files of a
standby, or of a new owner, may have the partitions of that slot in another order.

Takes no lock. A delivered hour may be unlinked at any moment: `consistently` starts again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.checkpoints.delivered import is_out
from duewheel.errors import CorruptFile
from duewheel.schemas.arrays import Int64
from duewheel.wheel.slots import hour_of
from duewheel.wheel.storage.byte_layouts import RECORD_BYTES
from duewheel.wheel.storage.data_directory import DataDirectory

Result = TypeVar("Result")

ROWS_AT_ONCE = 20_000  # of a half-delivered slot


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state that decides which records are pending."""

    # Committed length of the log of every hour that can have pending timers, in order
    log_bytes: Mapping[int, int]
    current: int  # the first hour that can
    delivered_slot: int  # R, -1 before the first start of dequeue
    half_below: Marks  # D of the next slot, for partitions that have delivered half of it

    @classmethod
    def take(cls, directory: DataDirectory) -> Snapshot:
        """Takes a snapshot. Reads the commit page first: else it might lack rows that are out."""
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
    """Runs `work` on a new snapshot; again if an hour of it was delivered and unlinked meanwhile.

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
    """Returns the log positions of the rows of slot R + 1 that are out, rising.

    Raises:
        CorruptFile: log or messages are damaged.
    """
    if not snapshot.half_below:
        return np.empty(0, np.int64)
    log, hour, half_slot = directory.log, snapshot.current, snapshot.delivered_slot + 1
    directory.timeline.refresh()
    runs, _ = directory.timeline.runs(half_slot - 1, half_slot, ROWS_AT_ONCE)  # of one slot: all
    positions = runs.positions()
    view = log.view(hour, int(positions.max(initial=-RECORD_BYTES)) + RECORD_BYTES)
    positions_by_batch = [np.empty(0, np.int64)]
    for first in range(0, len(positions), ROWS_AT_ONCE):
        rows = positions[first : first + ROWS_AT_ONCE]
        prefix = directory.messages.prefixes(hour, view.take(rows // RECORD_BYTES))
        sources, source = directory.topics.sources(prefix)
        d = np.array([snapshot.half_below.get(p, 0) for p in sources], np.int64)[source]
        offset = prefix["source_offset"].astype(np.int64)
        positions_by_batch.append(
            rows[is_out(np.full(len(rows), half_slot), offset, half_slot - 1, d)]
        )
    return np.concatenate(positions_by_batch)
