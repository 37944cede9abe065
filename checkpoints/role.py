"""The two processes of a shard, as its data directory knows them.

The number finds a process's fields in `state`, the lock says whether it runs. Both are on disk:
neither may change.
"""

from __future__ import annotations

from enum import IntEnum


class Role(IntEnum):
    """What a process does in a data directory."""

    INGEST = 0
    DEQUEUE = 1

    @property
    def lock_name(self) -> str:
        """File whose lock the process holds for life."""
        return f"{self.name.lower()}.lock"
