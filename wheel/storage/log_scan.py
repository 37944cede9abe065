"""Reads a part of an hour's log in blocks of bounded size, without a lock; counts rows by slot."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from duewheel.checkpoints.commit_and_close_pages import Commit
from duewheel.schemas.arrays import Int64
from duewheel.wheel.slots import hour_of
from duewheel.wheel.storage.byte_layouts import MAGIC_ABANDONED, RECORD_BYTES, slots_in
from duewheel.wheel.storage.timer_log import Records, TimerLog

# Records of one block: 13 MiB of the log, mapped.
_RECORDS_AT_ONCE = 1 << 18


def blocks(
    log: TimerLog, precision_ms: int, hour: int, start: int, end: int
) -> Iterator[tuple[Int64, Int64, Records]]:
    """Reads log position, slot and record of every timer between two positions of an hour's log, in
    blocks of bounded size, in log order, without abandoned records.

    Raises:
        CorruptFile: the log is shorter.
    """
    if start == end:
        return
    view = log.view(hour, end)
    for first in range(start // RECORD_BYTES, end // RECORD_BYTES, _RECORDS_AT_ONCE):
        records = view[first : min(first + _RECORDS_AT_ONCE, end // RECORD_BYTES)]
        alive = np.flatnonzero(records["magic"] != MAGIC_ABANDONED)
        if len(alive) < len(records):
            records = records[alive]
        yield (first + alive) * RECORD_BYTES, slots_in(records, precision_ms), records


def count_between(log: TimerLog, precision_ms: int, commit: Commit, after: int, until: int) -> int:
    """Counts the rows of the commit in the slots after < s ≤ until.

    Raises:
        CorruptFile: a log is shorter than the commit says.
    """
    first, last = hour_of(after + 1, precision_ms), hour_of(until, precision_ms)
    return sum(
        int(((slot > after) & (slot <= until)).sum())
        for hour, lengths in commit.hours.items()
        if first <= hour <= last
        for _, slot, _ in blocks(log, precision_ms, hour, 0, lengths.log_bytes)
    )
