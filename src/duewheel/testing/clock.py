"""A clock that only a test moves: the host's, and that of brokers beside it."""

from __future__ import annotations


class ManualClock:
    """A clock that only the test moves. Not thread-safe.

    Time passes (`sleep`, `set` to a later time) for the host and for the brokers; a step (`step`,
    `set` to an earlier time) is an error of the host's clock.
    """

    def __init__(self, now_ms: int = 1_800_000_000_000) -> None:
        self._started_ms = now_ms
        self._true_ms = now_ms
        self._error_ms = 0

    def now_ms(self) -> int:
        return self._true_ms + self._error_ms

    def boottime_ms(self) -> int:
        return self._true_ms - self._started_ms

    @property
    def true_ms(self) -> int:
        """The brokers' time, which has no steps."""
        return self._true_ms

    def sleep(self, seconds: float) -> None:
        self._true_ms += round(seconds * 1000)

    def set(self, now_ms: int) -> None:
        """Lets time pass until `now_ms`; steps back if that is earlier."""
        passed_ms = now_ms - self._true_ms - self._error_ms
        if passed_ms < 0:
            self.step(passed_ms)
        else:
            self._true_ms += passed_ms

    def step(self, ms: int) -> None:
        """Sets the host's clock forward or back by `ms`, without time passing."""
        self._error_ms += ms
