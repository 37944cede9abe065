"""What is left of cancels that leave memory before all copies have come that were on their way.

Such a cancel needs no memory: a copy that comes brings it again (bringing_again.py). But it must be
found then, also after a loss: until ingest has come to `log_end`, where its partition ended when it
was known, K stays at it, and its segment of the cancel log stays on disk.

Of each partition three entries are kept, however many there are. Merging takes the greatest end,
the lowest offset and the lowest hour, so that K may be lower than it need be, and never higher:

    CURRENT   waits for its end
    NEXT      all that came since; it takes the place of CURRENT when that is settled
    UNASKED   those whose end nobody has told yet

What comes joins NEXT, never CURRENT, whose end therefore stays: under a steady stream of cancels K
follows ingest, at a distance of two entries.
"""

from __future__ import annotations

import numpy as np

from duewheel.schemas.timers import Bool, Int32, Int64
from duewheel.wheel.tombstones import NOT_ASKED

_CURRENT, _NEXT, _UNASKED = range(3)
_NEVER = np.iinfo(np.int64).max


class Unsettled:
    """See the module's head. A partition is an index in a list that only grows."""

    def __init__(self) -> None:
        none = np.empty((3, 0), np.int64)
        self._log_end, self._offset, self._hour = none, none, none

    @property
    def k(self) -> Int64:
        """The lowest offset in each partition; the greatest number where there is none."""
        k: Int64 = self._offset.min(axis=0)
        return k

    @property
    def hour(self) -> int:
        """The lowest segment; the greatest number if there is none."""
        return int(self._hour.min(initial=_NEVER))

    @property
    def unasked(self) -> list[int]:
        """Partitions whose end is to be asked for."""
        return np.flatnonzero(self._offset[_UNASKED] != _NEVER).tolist()

    def make_room(self, partitions: int) -> None:
        """For so many partitions in all."""
        more = ((0, 0), (0, partitions - self._offset.shape[1]))
        self._log_end = np.pad(self._log_end, more, constant_values=NOT_ASKED)
        self._offset = np.pad(self._offset, more, constant_values=_NEVER)
        self._hour = np.pad(self._hour, more, constant_values=_NEVER)

    def add(self, partition: Int32, offset: Int64, hour: Int64, log_end: Int64) -> None:
        """Cancels that leave memory; `log_end` may be NOT_ASKED."""
        entry = np.where(log_end == NOT_ASKED, _UNASKED, _NEXT), partition
        np.maximum.at(self._log_end, entry, log_end)
        np.minimum.at(self._offset, entry, offset)
        np.minimum.at(self._hour, entry, hour)
        self._go_on()

    def tell(self, partition: int, log_end: int) -> None:
        """Where a partition ends, or ended at any time since those that wait for it were known."""
        told = np.array([partition], np.int32)
        offset, hour = self._offset[_UNASKED, told], self._hour[_UNASKED, told]
        if offset[0] != _NEVER:
            self._clear(_UNASKED, told)
            self.add(told, offset, hour, np.array([log_end]))

    def settle(self, marks: Int64) -> None:
        """Ingest has come to these marks, and dequeue knows the cancels of the same commit."""
        for _ in (_CURRENT, _NEXT):
            self._clear(_CURRENT, marks >= self._log_end[_CURRENT])
            self._go_on()

    def _go_on(self) -> None:
        """NEXT takes the place of CURRENT where that is empty."""
        moves = np.flatnonzero(self._offset[_CURRENT] == _NEVER)
        for column in (self._log_end, self._offset, self._hour):
            column[_CURRENT, moves] = column[_NEXT, moves]
        self._clear(_NEXT, moves)

    def _clear(self, entry: int, partitions: Int64 | Int32 | Bool) -> None:
        self._log_end[entry, partitions] = NOT_ASKED
        self._offset[entry, partitions] = self._hour[entry, partitions] = _NEVER
