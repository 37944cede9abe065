"""Samples the due times of pending timers that will roll.

A log record has the slot of a timer. If it rolls there, only its message has the due time. Messages
are scattered, so a large wheel is sampled.

Takes no lock; see snapshot.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from duewheel.schemas.arrays import Int64
from duewheel.wheel.inspect.snapshot import ROWS_AT_ONCE, Snapshot, consistently, positions_out
from duewheel.wheel.storage.byte_layouts import MAGIC_ROLL, RECORD_BYTES
from duewheel.wheel.storage.data_directory import DataDirectory


def rolled_due_times(directory: DataDirectory, every: int) -> Int64:
    """Reads the due times, in epoch ms, of a sample of the pending timers that will roll: the first
    one, and every `every`-th after it.

    Raises:
        CorruptFile: log or messages are damaged.
    """

    def sample(snapshot: Snapshot) -> Int64:
        due = list(_due_times(directory, snapshot, every))
        return np.concatenate([np.empty(0, np.int64), *due])

    return consistently(directory, sample)


def _due_times(directory: DataDirectory, snapshot: Snapshot, every: int) -> Iterator[Int64]:
    out, rank = positions_out(directory, snapshot), 0
    for hour, log_bytes in snapshot.log_bytes.items():
        chosen = [np.empty(0, np.int64)]
        for position, slot, records in directory.blocks(hour, 0, log_bytes):
            is_pending = (slot > snapshot.delivered_slot) & ~np.isin(position, out)
            rolls = position[is_pending & ((records["magic"] & MAGIC_ROLL) != 0)]
            # `rank` timers came before this block: the next multiple of `every` is the first here.
            chosen.append(rolls[-rank % every :: every])
            rank += len(rolls)
        positions = np.concatenate(chosen)
        for first in range(0, len(positions), ROWS_AT_ONCE):
            rows = positions[first : first + ROWS_AT_ONCE]
            view = directory.log.view(hour, int(rows[-1]) + RECORD_BYTES)
            prefixes = directory.messages.prefixes(hour, view.take(rows // RECORD_BYTES))
            yield prefixes["due_ms"].astype(np.int64)
