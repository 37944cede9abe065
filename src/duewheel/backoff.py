"""Waits between attempts: twice as long after each failure in a row."""

from __future__ import annotations

import random

from duewheel.clock import Clock

_DOUBLINGS_MAX = 7  # 128 times the first wait is above every `longest_ms` in use


class Backoff:
    """The wait between attempts of one loop. Not thread-safe.

    A wait is a random part, half or more, of its longest: otherwise all shards would return to a
    recovered cluster at the same instant.
    """

    def __init__(
        self, clock: Clock, chance: random.Random, first_ms: int = 50, longest_ms: int = 5_000
    ) -> None:
        self._clock = clock
        self._chance = chance
        self._first_ms, self._longest_ms = first_ms, longest_ms
        self._failures = 0

    def next_ms(self) -> int:
        """The next wait; counts one more failure."""
        doubled_ms = self._first_ms << min(self._failures, _DOUBLINGS_MAX)
        longest_ms = min(doubled_ms, self._longest_ms)
        self._failures += 1
        return self._chance.randint(longest_ms // 2, longest_ms)

    def wait(self, wait_ms: int) -> None:
        """Sleeps. The caller can log the result of `next_ms` first."""
        self._clock.sleep(wait_ms / 1000)

    def succeeded(self) -> None:
        """The next failure counts as the first."""
        self._failures = 0
