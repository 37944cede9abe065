"""A file system for tests that need no power-safe files: it syncs nothing."""

from __future__ import annotations

import mmap

from duewheel.checkpoints.fs import FileSystem


class Unsynced(FileSystem):
    """Syncs nothing. What a kill leaves is in the page cache, synced or not."""

    def fsync(self, fd: int) -> None:
        pass

    def msync(self, mapped: mmap.mmap) -> None:
        pass
