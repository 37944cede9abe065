"""The clocks of a simulation: the brokers' is right, the host's is set, boottime only advances."""

from __future__ import annotations

from collections.abc import Callable

from duewheel.testing import ManualClock


class WorldClock(ManualClock):
    """The host's; `true_ms` is the brokers'. Whoever sleeps lets something else happen.

    Attributes:
        closable_ms: the latest time that the host's clock has shown while it was not ahead by more
            than the bound: nothing that is due later may have been published.
    """

    def __init__(self, slept: Callable[[], None], ahead_max_ms: int) -> None:
        super().__init__()
        self._slept = slept
        self._ahead_max_ms = ahead_max_ms
        self.closable_ms = self.now_ms()

    @property
    def error_ms(self) -> int:
        """By how much the host's clock is ahead."""
        return self.now_ms() - self.true_ms

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self._look()
        self._slept()

    def step(self, ms: int) -> None:
        super().step(ms)
        self._look()

    def pass_ms(self, ms: int) -> None:
        """Time goes by."""
        self.set(self.now_ms() + ms)
        self._look()

    def _look(self) -> None:
        if self.error_ms <= self._ahead_max_ms:
            self.closable_ms = max(self.closable_ms, self.now_ms())
