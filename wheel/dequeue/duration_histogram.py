"""A frozen histogram of lateness or durations: adding a column of values makes a new one, so any
thread may read it. That of pending timers is in wheel/inspect/pending_counts.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import add

import numpy as np

from duewheel.schemas.arrays import Int64

# Upper bounds: from a tenth of a slot to the lateness after an outage of hours.
MILLISECONDS = (
    *(5, 10, 25, 50, 75, 100, 150, 250, 500),
    *(1_000, 2_500, 5_000, 10_000, 30_000, 60_000),
    *(300_000, 900_000, 3_600_000, 14_400_000),
)

_MOST = 1 << 40  # 35 years. Due times are the producers': the sum of larger ones would overflow


@dataclass(frozen=True, slots=True)
class Histogram:
    """The number of values between neighbouring bounds.

    Attributes:
        bounds: rising; a value belongs to the first bound that it does not exceed.
        counts: one per bound, and one for values above the last.
        total: sum of the values.
    """

    bounds: tuple[int, ...] = MILLISECONDS
    counts: tuple[int, ...] = (0,) * (len(MILLISECONDS) + 1)
    total: int = 0

    def with_values(self, values: Int64) -> Histogram:
        """Adds values; negative ones, after a clock's step, count as 0."""
        values = np.minimum(np.maximum(values, 0), _MOST)  # np.clip takes five times as long
        place = np.array(self.bounds).searchsorted(values)
        added = np.bincount(place, minlength=len(self.counts)).tolist()
        counts = tuple(map(add, self.counts, added))
        return Histogram(self.bounds, counts, self.total + int(values.sum()))


def counts_of(histograms: Iterable[Histogram]) -> list[int]:
    """The counts of all of them together, which have the bounds of MILLISECONDS."""
    every = (Histogram().counts, *(each.counts for each in histograms))
    return [sum(counts) for counts in zip(*every, strict=True)]
