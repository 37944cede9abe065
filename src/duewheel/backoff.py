"""How long to wait before something is tried again: twice as long after each failure in a row."""

from __future__ import annotations

import random

from duewheel.clock import Clock

_DOUBLINGS_MAX = 7  # beyond the longest


class Backoff:
    """The only wait between attempts of one loop, whatever has failed. Not thread-safe.

    A wait is drawn from its upper half, so that the shards of a cluster that was away do not come
    back in one instant.
    """

    def __init__(
        self, clock: Clock, chance: random.Random, first_ms: int = 50, longest_ms: int = 5_000
    ) -> None:
        self._clock = clock
        self._chance = chance
        self._first_ms, self._longest_ms = first_ms, longest_ms
        self._failures = 0

    def next_ms(self) -> int:
        """How long the next wait takes; each call counts one more failure."""
        doubled_ms = self._first_ms << min(self._failures, _DOUBLINGS_MAX)
        longest_ms = min(doubled_ms, self._longest_ms)
        self._failures += 1
        return self._chance.randint(longest_ms // 2, longest_ms)

    def wait(self, wait_ms: int) -> None:
        """Let that much time pass."""
        self._clock.sleep(wait_ms / 1000)

    def succeeded(self) -> None:
        """The next failure is the first one again."""
        self._failures = 0
