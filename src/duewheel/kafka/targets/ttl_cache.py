"""A cache whose entries expire, and whose size is bounded."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_ENTRIES_MAX = 10_000

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class TtlCache(Generic[K, T]):
    """Values by key, each with its own time to live. The oldest make room for new ones.

    One thread changes it; any thread may read an entry.
    """

    def __init__(
        self, entries_max: int = _ENTRIES_MAX, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        # Value and expiry; the oldest first. A dict looks for its first entry past all those that
        # were removed there: at 100,000 keys a `put` would cost some 20 us, here one.
        self._entries = OrderedDict[K, tuple[T, float]]()
        self._entries_max = entries_max
        self._now_s = now_s

    def get(self, key: K, grace_s: float = 0.0) -> T | None:
        """The value, unless it has expired more than `grace_s` ago."""
        value, until = self._entries.get(key, (None, 0.0))
        return value if until + grace_s > self._now_s() else None

    def get_stale(self, key: K) -> T | None:
        """The value, expired or not."""
        return self._entries.get(key, (None, 0.0))[0]

    def put(self, key: K, value: T, age_s: float) -> None:
        """Stores it; it expires in `age_s`."""
        self._entries.pop(key, None)
        self._entries[key] = (value, self._now_s() + age_s)
        if len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)

    def pop(self, key: K) -> None:
        """Removes the key, if present."""
        self._entries.pop(key, None)

    def expire(self) -> None:
        """Lets all values expire, as if long ago."""
        for key, (value, _) in self._entries.items():
            self._entries[key] = (value, -math.inf)

    def clear(self) -> None:
        """Removes everything."""
        self._entries.clear()
