"""The two processes of a shard: their numbers and locks in its data directory.

The number selects a process's fields in `state`; the lock shows whether it runs. Both are on disk:
a change would let a new version start beside a running old one.
"""

from __future__ import annotations

from enum import IntEnum


class Role(IntEnum):
    """The job of a process in a data directory."""

    INGEST = 0
    DEQUEUE = 1

    @property
    def lock_name(self) -> str:
        """The file whose lock the process has for life."""
        return f"{self.name.lower()}.lock"
