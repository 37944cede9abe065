"""The file system of a simulated process: each store is counted, may be its last, may be refused.

- What writes, cuts, makes, renames and removes; stores to mapped pages, too. Reading passes.
- fsync and msync are recorded in the disk's shadow (disk.py); the kernel is not asked for them.
- Locks are taken as ever, and opened files are noted: they are closed when the process is killed.
- The boot id of the host is the simulation's, and so is what is drawn: incarnations, names.
"""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from tests.simulation.seam import Actor, Seam

from duewheel.checkpoints.fs import Bytes, FileSystem
from duewheel.schemas.arrays import Bool
from duewheel.wheel.storage.timelines.timeline import Timeline


class WatchedMap(mmap.mmap):
    """A mapped file whose stores are counted."""

    path: Path
    fs: WatchedFileSystem

    def __setitem__(self, key: Any, value: Any) -> None:
        small = len(value) <= 8  # one store of the processor
        middle = (key.start + key.stop) // 2
        part = slice(key.start, middle)
        self.fs.store(
            "page",
            None
            if small
            else lambda: mmap.mmap.__setitem__(self, part, value[: middle - key.start]),
            fails=False,
        )
        super().__setitem__(key, value)


class WatchedFileSystem(FileSystem):
    """The files as one process sees them; without an actor those of the simulation itself."""

    def __init__(self, seam: Seam, actor: Actor | None) -> None:
        self.seam, self.disk = seam, seam.disk
        self._fds = {} if actor is None else actor.fds
        self._actor = actor

    def store(
        self, kind: str, half: Callable[[], object] | None = None, *, fails: bool = True
    ) -> None:
        """Called before a store: see Seam.store."""
        if self._actor is not None:
            self.seam.store(self._actor, kind, half, fails=fails)

    def opened(self, timeline: Timeline) -> None:
        """A timeline with descriptors of its own, which close when the process ends."""
        if self._actor is not None:
            self._actor.timelines.append(timeline)

    def some_of(self, count: int) -> Bool:
        """Which of so many rows are stored by a process that dies meanwhile."""
        return np.array([self.seam.rng.random() < 0.5 for _ in range(count)], np.bool_)

    def open(self, path: Path, flags: int, mode: int = 0o644) -> int:
        is_new = bool(flags & os.O_CREAT) and not _is_lock(path) and not path.exists()
        if is_new:
            self.store("make")
        fd = super().open(path, flags, mode)
        if is_new:
            self.disk.made(os.fstat(fd).st_ino)
        self._fds[fd] = path
        return fd

    def close(self, fd: int) -> None:
        self._fds.pop(fd, None)
        super().close(fd)

    def pwrite(self, fd: int, data: Bytes, offset: int) -> int:
        if not _is_lock(self._fds[fd]):
            half = memoryview(data)[: len(data) // 2]
            self.store("write", lambda: os.pwrite(fd, half, offset))
        return super().pwrite(fd, data, offset)

    def cut(self, fd: int, size: int) -> None:
        self.store("cut", fails=False)
        super().cut(fd, size)

    def allocate(self, fd: int, size: int) -> None:
        self.store("write")
        super().allocate(fd, size)

    def fsync(self, fd: int) -> None:
        path = self._fds[fd]
        self.store("sync")
        # The name may be another file's by now, or nobody's.
        if path.exists() and path.stat().st_ino == os.fstat(fd).st_ino:
            self.disk.synced(path)

    def msync(self, mapped: mmap.mmap) -> None:
        assert isinstance(mapped, WatchedMap)
        self.store("sync")
        self.disk.synced(mapped.path)

    def map(self, fd: int, size: int, *, writable: bool) -> mmap.mmap:
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        new_map: Callable[..., WatchedMap] = WatchedMap
        mapped = new_map(fd, size, access=access)
        mapped.path, mapped.fs = self._fds[fd], self
        return mapped

    def replace(self, path: Path, target: Path) -> None:
        self.store("name")
        super().replace(path, target)

    def unlink(self, path: Path) -> None:
        self.store("unlink")
        super().unlink(path)

    def mkdir(self, path: Path) -> None:
        self.store("make")
        super().mkdir(path)
        self.disk.made(path.stat().st_ino)

    def remove_tree(self, path: Path) -> None:
        with suppress(OSError):
            for each in path.iterdir():
                shutil.rmtree(each) if each.is_dir() else each.unlink()
            self.store("unlink")
            path.rmdir()

    def boot_id(self) -> str:
        return self.seam.boot_id

    def random_bits(self, count: int) -> int:
        return self.seam.rng.getrandbits(count)


def _is_lock(path: Path) -> bool:
    return path.suffix == ".lock"
