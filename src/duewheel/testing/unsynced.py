"""A file system for tests that need no power-safe files: it syncs nothing."""

from __future__ import annotations

import mmap

from duewheel.checkpoints.fs import FileSystem


class Unsynced(FileSystem):
    """Syncs nothing. After a kill all writes are in the page cache, synced or not."""

    def fsync(self, fd: int) -> None:
        pass

    def msync(self, mapped: mmap.mmap) -> None:
        pass
