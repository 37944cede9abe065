"""Waits between attempts: twice as long after each failure in a row."""

from __future__ import annotations

import random

from duewheel.clock import Clock

_DOUBLINGS_MAX = 7  # 128 times the first wait is above every `longest_ms` in use


class Backoff:
    """The wait between attempts of one loop, whatever has failed. Not thread-safe.

    Each wait is random, between half of its length and all of it: otherwise all shards would return
    to a recovered cluster at the same instant.
    """

    def __init__(
        self, clock: Clock, chance: random.Random, first_ms: int = 50, longest_ms: int = 5_000
    ) -> None:
        self._clock = clock
        self._chance = chance
        self._first_ms, self._longest_ms = first_ms, longest_ms
        self._failures = 0

    def next_ms(self) -> int:
        """The length of the next wait; counts one more failure."""
        doubled_ms = self._first_ms << min(self._failures, _DOUBLINGS_MAX)
        longest_ms = min(doubled_ms, self._longest_ms)
        self._failures += 1
        return self._chance.randint(longest_ms // 2, longest_ms)

    def wait(self, wait_ms: int) -> None:
        """Sleep; apart from `next_ms`, so that the caller can log the wait first."""
        self._clock.sleep(wait_ms / 1000)

    def succeeded(self) -> None:
        """Reset: the next failure counts as the first."""
        self._failures = 0
