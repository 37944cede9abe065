"""Values that are believed for a while, a bounded number of them."""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import Generic, TypeVar

_ENTRIES_MAX = 10_000

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class TtlCache(Generic[K, T]):
    """Values by key, each believed for a while. The oldest make room for new ones.

    One thread changes it; any may look up an entry.
    """

    def __init__(self) -> None:
        self._entries: dict[K, tuple[T, float]] = {}  # until when; the oldest first

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> T | None:
        """The value while it is believed."""
        value, until = self._entries.get(key, (None, 0.0))
        return value if until > time.monotonic() else None

    def get_stale(self, key: K) -> T | None:
        """The value however old."""
        return self._entries.get(key, (None, 0.0))[0]

    def all_keys(self) -> list[K]:
        """The keys, also of what is no longer believed."""
        return list(self._entries)

    def put(self, key: K, value: T, age_s: float) -> None:
        """Believe it from now on for `age_s`."""
        self._entries.pop(key, None)
        self._entries[key] = (value, time.monotonic() + age_s)
        if len(self._entries) > _ENTRIES_MAX:
            del self._entries[next(iter(self._entries))]

    def drop_expired(self) -> None:
        """Forget what is no longer believed."""
        now = time.monotonic()
        for key in [key for key, (_, until) in self._entries.items() if until <= now]:
            del self._entries[key]

    def pop(self, key: K) -> None:
        """Forget it, if it is there."""
        self._entries.pop(key, None)

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
