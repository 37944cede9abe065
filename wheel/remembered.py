"""Cancels that are over, for as long as a log on disk has what they have left out.

Of that it must not be said that it was delivered. How many are remembered is bounded: beyond it
those go whose rows would have left first, and of all rows in slots up to the last of theirs nobody
knows any more whether a cancel has left them out. So that is one number. Not thread-safe.
"""

from __future__ import annotations

import numpy as np

from duewheel.schemas.timers import Bool
from duewheel.wheel.growing import GrowingTombstones
from duewheel.wheel.layout import hour_of
from duewheel.wheel.tombstones import NOTHING, Tombstones

# With too many of them a quarter goes: what that costs is spread over as many that come.
_KEPT_OF_4 = 3


class Remembered:
    """See the module's head.

    Attributes:
        unknown_to: of rows in slots up to this one nobody knows whether they were left out.
        forgotten: how many were, though a log may have had what they left out.
    """

    def __init__(self, most: int, precision_ms: int) -> None:
        """
        Args:
            most: to be remembered at a time.
            precision_ms: length of a slot.
        """
        self._most = most
        self._precision_ms = precision_ms
        self._known = GrowingTombstones()
        self._gone = 0  # hours below have no log any more
        self.unknown_to = NOTHING
        self.forgotten = 0

    def __len__(self) -> int:
        return len(self._known)

    def add(self, over: Tombstones) -> None:
        """Remember those; what one of them has left out lies in slots up to its `last`."""
        wanted = np.flatnonzero(over.last > self.unknown_to)
        self.forgotten += len(over) - len(wanted)
        self._known.append(over.take(wanted))
        if len(self) > self._most:
            last = self._known.rows.last
            going = len(last) - self._most * _KEPT_OF_4 // 4
            self.unknown_to = int(np.partition(last, going - 1)[going - 1])
            self.forgotten += self._keep(last > self.unknown_to)

    def forget_below(self, hour: int) -> None:
        """The logs of the hours below are gone."""
        if hour != self._gone:
            self._keep(hour_of(self._known.rows.last, self._precision_ms) >= hour)
            self._gone = hour

    def near(self, table: Bool) -> Tombstones:
        """Those with a hash whose lower bits the table has: see `lower_bits` in lookups.py."""
        rows = self._known.rows
        return rows.take(np.flatnonzero(table[rows.id_hash & (len(table) - 1)]))

    def _keep(self, mask: Bool) -> int:
        """Returns how many went."""
        before = len(self)
        self._known = self._known.kept(mask)
        return before - len(self)
