"""Stand-ins that ship with the package: a clock to turn by hand."""

from __future__ import annotations


class ManualClock:
    """A clock that moves only when told to. Not thread-safe."""

    def __init__(self, now_ms: int = 1_800_000_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def sleep(self, seconds: float) -> None:
        self._now_ms += round(seconds * 1000)

    def set(self, now_ms: int) -> None:
        """Jump to `now_ms`, forward or back."""
        self._now_ms = now_ms
