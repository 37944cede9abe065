"""The only place that reads the wall clock. Everything below the shell takes a Clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall clock and sleep, handed in so that tests can turn them."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait, in seconds."""
        ...


class SystemClock:
    """This host's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
