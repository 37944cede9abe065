"""Finds the last record of slots beyond the ring, in the logs: a new run there continues its chain.

It caches one position for each slot of an hour, and reads the records that were committed since.
The number of hours is bounded: an evicted hour is read again when it is next needed.
"""

from __future__ import annotations

import numpy as np

from duewheel.checkpoints.commit_and_close_pages import Commit
from duewheel.errors import CorruptFile
from duewheel.schemas.arrays import Int64
from duewheel.wheel.slots import HOUR_MS, first_slot_of_hour, hour_of
from duewheel.wheel.storage.byte_layouts import NO_POSITION
from duewheel.wheel.storage.log_scan import blocks
from duewheel.wheel.storage.timer_log import TimerLog

INDEX_BYTES = 64 << 20


class ChainEnds:
    """The last record of slots that are not linked. Caches at most `index_bytes`, or one hour. Not
    thread-safe.
    """

    def __init__(self, log: TimerLog, precision_ms: int, index_bytes: int = INDEX_BYTES) -> None:
        self._log = log
        self._precision_ms = precision_ms
        slots = HOUR_MS // self._precision_ms + 1
        self._hours_max = max(1, index_bytes // (8 * slots))
        # Least recently used first: end of the part of the log that was read, position per slot.
        self._hours: dict[int, tuple[int, Int64]] = {}

    def last_positions(self, slots: Int64, commit: Commit) -> Int64:
        """Returns the newest committed record of each slot (rising), NO_POSITION without one."""
        found = np.full(len(slots), NO_POSITION)
        hours = hour_of(slots, self._precision_ms)
        for hour in np.unique(hours).tolist():
            if hour in commit.hours:
                rows = np.flatnonzero(hours == hour)
                ends = self._ends(hour, commit.hours[hour].log_bytes)
                found[rows] = ends[slots[rows] - first_slot_of_hour(hour, self._precision_ms)]
        return found

    def _ends(self, hour: int, log_bytes: int) -> Int64:
        first, end = (first_slot_of_hour(h, self._precision_ms) for h in (hour, hour + 1))
        if hour not in self._hours:
            self._hours[hour] = 0, np.full(end - first, NO_POSITION)
            if len(self._hours) > self._hours_max:
                del self._hours[next(iter(self._hours))]
        read, ends = self._hours.pop(hour)
        for position, slot, _ in blocks(self._log, self._precision_ms, hour, read, log_bytes):
            if np.any((slot < first) | (slot >= end)):
                path = self._log.files.path(hour)
                raise CorruptFile(path, int(position[0]), "a record of another hour")
            ends[slot - first] = position
        self._hours[hour] = log_bytes, ends
        return ends
