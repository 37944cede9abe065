"""The only module that reads the wall clock and boottime; everything else takes a Clock.

The wall clock decides when a timer is due; it may be set forward or back. Boottime measures
durations: it also counts while the host is suspended, and cannot be set.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The host's clocks and sleep."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...

    def boottime_ms(self) -> int:
        """Milliseconds since the host booted, suspended time included."""
        ...

    def sleep(self, seconds: float) -> None:
        """Waits."""
        ...


class Interval:
    """Limits an action to once per interval, by boottime; the first is at once. Not thread-safe."""

    def __init__(self, clock: Clock, interval_ms: int) -> None:
        self._clock, self._interval_ms = clock, interval_ms
        self._subject: object = None
        self._since_ms = 0

    def is_over(self, subject: object = True) -> bool:
        """Whether to act now, which begins the next interval. A new subject does not wait."""
        now_ms = self._clock.boottime_ms()
        if subject == self._subject and now_ms - self._since_ms < self._interval_ms:
            return False
        self._subject, self._since_ms = subject, now_ms
        return True

    def begin(self) -> None:
        """Begins the next interval after an action without `is_over`."""
        self._subject, self._since_ms = True, self._clock.boottime_ms()


class SystemClock:
    """This host's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def boottime_ms(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
