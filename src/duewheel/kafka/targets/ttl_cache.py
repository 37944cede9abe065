"""A cache whose entries expire, and whose size is bounded."""

from __future__ import annotations

import time
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
        self._entries: dict[K, tuple[T, float]] = {}  # value and expiry; the oldest first
        self._entries_max = entries_max
        self._now_s = now_s

    def get(self, key: K, grace_s: float = 0.0) -> T | None:
        """The value, unless it has expired more than `grace_s` ago."""
        value, until = self._entries.get(key, (None, 0.0))
        return value if until + grace_s > self._now_s() else None

    def get_stale(self, key: K) -> T | None:
        """The value, expired or not."""
        return self._entries.get(key, (None, 0.0))[0]

    def all_keys(self) -> list[K]:
        """The keys, those of expired values included."""
        return list(self._entries)

    def put(self, key: K, value: T, age_s: float) -> None:
        """Stores it; it expires in `age_s`."""
        self._entries.pop(key, None)
        self._entries[key] = (value, self._now_s() + age_s)
        if len(self._entries) > self._entries_max:
            del self._entries[next(iter(self._entries))]

    def pop(self, key: K) -> None:
        """Removes the key, if present."""
        self._entries.pop(key, None)

    def clear(self) -> None:
        """Removes everything."""
        self._entries.clear()
