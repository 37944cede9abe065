"""Time as a test may count it: more slowly, the more programs wait for a processor."""

from __future__ import annotations

import os
import time


class Patience:
    """A number of seconds on a free host; on one with three programs a processor, three times as
    many. Looked at again and again: the load of the host is that of each look.
    """

    def __init__(self, seconds: float) -> None:
        self._left_s = seconds
        self._looked_s = time.monotonic()

    def is_over(self) -> bool:
        """Whether they have passed."""
        now_s = time.monotonic()
        self._left_s -= (now_s - self._looked_s) / max(1.0, _load())
        self._looked_s = now_s
        return self._left_s <= 0


def _load() -> float:
    """Programs that run or wait for a processor, for each of them, in the last minute."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)
