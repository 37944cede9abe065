"""The room of a directory's file system: free bytes, those that ingest leaves free, and whether a
store to a mapped file needs a free block.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Room(NamedTuple):
    """The free bytes of a file system for a user, and those that ingest leaves free."""

    free_bytes: int
    min_free_bytes: int

    @classmethod
    def of(cls, directory: Path, min_free_of: Callable[[int], int] = lambda _: 0) -> Room:
        """Reads the room of a directory's file system; `min_free_of` gets its total bytes."""
        stat = os.statvfs(directory)
        total_bytes = stat.f_blocks * stat.f_frsize
        return cls(stat.f_bavail * stat.f_frsize, min_free_of(total_bytes))

    @property
    def left_bytes(self) -> int:
        """The bytes that ingest may write; below 0 the disk is nearly full."""
        return self.free_bytes - self.min_free_bytes


# File systems that do not write in place, by the magic number of their superblock. Each store takes
# a new block, and without a free one a store to a mapped file kills the process by SIGBUS. Overlay
# behaves as the file system below it.
_COPY_ON_WRITE = {
    0x9123683E: "btrfs",
    0x2FC12FC1: "zfs",
    0xCA451A4E: "bcachefs",
    0x794C7630: "overlay",
}
COPY_ON_WRITE = frozenset(_COPY_ON_WRITE.values())
_STATFS_BYTES = 512  # more than any C library's struct, whose first word is the magic number


def copies_on_write(directory: Path) -> str | None:
    """Returns the name of a directory's file system if it copies on write, else None."""
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    if ctypes.CDLL(None).statfs(os.fsencode(directory), buffer) != 0:
        return None
    return _COPY_ON_WRITE.get(ctypes.c_uint32.from_buffer(buffer).value)
