"""A host that a test boots, and whose disk it fills."""

from __future__ import annotations

import errno
import uuid

from duewheel.checkpoints.fs import Bytes, FileSystem


class ManualHost(FileSystem):
    """The file system of this host, with a boot and an end of its own.

    Attributes:
        writes_left: how many writes there is room for; None: for all.
        in_halves: whether a write writes half of what it is given.
    """

    def __init__(self) -> None:
        self.writes_left: int | None = None
        self.in_halves = False
        self._boot_id = super().boot_id()

    def boot(self) -> None:
        """The host has another boot id from here on; up to then, that of the real one."""
        self._boot_id = str(uuid.uuid4())

    def boot_id(self) -> str:
        return self._boot_id

    def pwrite(self, fd: int, data: Bytes, offset: int) -> int:
        self._take_room()
        return super().pwrite(fd, data[: len(data) // 2 + 1] if self.in_halves else data, offset)

    def allocate(self, fd: int, size: int) -> None:
        self._take_room()
        super().allocate(fd, size)

    def _take_room(self) -> None:
        if self.writes_left == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        if self.writes_left is not None:
            self.writes_left -= 1
