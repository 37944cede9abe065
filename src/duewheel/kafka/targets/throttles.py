"""Throttles: some work takes a tenth of the time at most. After it there is none for nine times as
long.

Such work is lookups of names that were not known, appends that a target's settings make slow, and
transactions that are lost because a target refuses a record. One producer can cause each of these,
and the rows of all others wait meanwhile.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

_PARTS = 10  # of the time; work has one of them
_REMEMBERED_S = 600  # after a rest
_REFUSED_S = (3.0, 60.0)  # the shortest and the longest rest after a refusal


class Throttle:
    """Throttles one kind of work. The publisher's thread changes it; any thread may read it."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._until_s = 0.0

    @property
    def is_closed(self) -> bool:
        """Whether no work may begin now."""
        return self._now_s() < self._until_s

    def note_duration(self, seconds: float) -> None:
        """The work has ended, and has lasted so long."""
        self._until_s = self._now_s() + (_PARTS - 1) * seconds


class TimerTopicThrottle:
    """Throttles work for each timer topic: the topic *rests* after it. The n topics that rest share
    a tenth of the time: each rests for 10n - 1 times as long as its work has lasted. Threads: as
    Throttle.
    """

    def __init__(
        self,
        bounds_s: tuple[float, float] = (0.0, math.inf),
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`bounds_s`: the shortest and the longest rest."""
        self._bounds_s = bounds_s
        self._now_s = now_s
        self._until_s: dict[str, float] = {}  # of the remembered; replaced as a whole

    @property
    def resting(self) -> frozenset[str]:
        return self._until(self._now_s())

    def is_resting(self, topic: str) -> bool:
        """Whether this one rests."""
        return self._now_s() < self._until_s.get(topic, -math.inf)

    @property
    def remembered(self) -> frozenset[str]:
        """Those that rest, or have rested in the last minutes."""
        return self._until(self._now_s() - _REMEMBERED_S)

    def _until(self, least_s: float) -> frozenset[str]:
        return frozenset(topic for topic, until_s in self._until_s.items() if least_s < until_s)

    def note_duration(self, topics: frozenset[str], seconds: float) -> None:
        """Work for these timer topics has ended, and has lasted so long."""
        shortest_s, longest_s = self._bounds_s
        rest_s = (_PARTS * len(self.resting | topics) - 1) * seconds
        until_s = self._now_s() + min(max(rest_s, shortest_s), longest_s)
        others = {topic: self._until_s[topic] for topic in self.remembered - topics}
        self._until_s = others | dict.fromkeys(topics, until_s)


class RefusalThrottle(TimerTopicThrottle):
    """Throttles timer topics that abort transactions. Such a rest is counted from the next commit
    on, because a start of the publisher before it may take long.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__(_REFUSED_S, now_s)
        self._lost: frozenset[str] = frozenset()  # those with refusals since the last commit
        self._lost_since_s = math.inf  # the start of the first attempt that they have aborted

    def note_refusals(self, topics: frozenset[str], seconds: float) -> None:
        """An attempt of so many seconds is aborted, because of these timer topics."""
        self._lost |= topics
        self._lost_since_s = min(self._lost_since_s, self._now_s() - seconds)
        self.note_duration(self._lost, math.inf)  # the longest, until the commit

    def note_commit(self) -> None:
        """A transaction is committed."""
        if self._lost:
            self.note_duration(self._lost, self._now_s() - self._lost_since_s)
            self._lost, self._lost_since_s = frozenset(), math.inf
