"""The two processes of a shard: their numbers and locks in its data directory.

The number selects a process's fields in `state`; the lock shows whether it runs. Both are on disk:
a change would let a new version start beside a running old one.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Literal

ProcessName = Literal["ingest", "dequeue"]


class Role(IntEnum):
    """The job of a process in a data directory."""

    INGEST = 0
    DEQUEUE = 1

    @classmethod
    def of(cls, process: ProcessName) -> Role:
        """The role of a process."""
        return cls[process.upper()]

    @property
    def lock_name(self) -> str:
        """The file whose lock the process has for life."""
        return f"{self.name.lower()}.lock"
