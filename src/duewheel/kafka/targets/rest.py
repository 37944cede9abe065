"""Bounds the share of the time that some work takes: after it there is none for nine times as long.

Used for lookups of names that were not known, and for targets whose settings make appends slow: one
producer causes either, and the rows of all others wait meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_FACTOR = 9  # times the duration of the work, so it takes a tenth of the time


class Rest:
    """The time in which there is no work. The publisher's thread changes it; any thread may read
    it.
    """

    def __init__(self, usual_s: float = 0.0, now_s: Callable[[], float] = time.monotonic) -> None:
        """Work that takes no longer than `usual_s` is followed by no rest."""
        self._usual_s = usual_s
        self._now_s = now_s
        self._until_s = 0.0

    @property
    def goes_on(self) -> bool:
        return self._now_s() < self._until_s

    def note_duration(self, seconds: float) -> None:
        """The work has ended, and has lasted so long."""
        if seconds > self._usual_s:
            self._until_s = self._now_s() + _FACTOR * seconds

    def end(self) -> None:
        self._until_s = 0.0
