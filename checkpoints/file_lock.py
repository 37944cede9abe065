"""Locks between processes: an flock on a file that names its holder.

Invariant: a held lock has a living holder, because the kernel frees the lock of a process that
ends, however it ends. The process id in the file is for messages, and stays after the holder.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from duewheel.checkpoints.fs import HOST_FS, READING_FS, FileSystem
from duewheel.errors import Locked

ENGINE_LOCK = "engine.lock"  # of a data directory: held for milliseconds


class FileLock:
    """An exclusive flock on a file, which the first attempt to take it makes if it is missing. Not
    thread-safe: one instance belongs to one thread.
    """

    _POLL_S = 0.0005

    def __init__(self, path: Path, fs: FileSystem = HOST_FS) -> None:
        self.path = path
        self._fs = fs
        self._opened_fd: int | None = None

    @classmethod
    def taken(
        cls, path: Path, deadline_s: float, refusal: str, fs: FileSystem = HOST_FS
    ) -> FileLock:
        """Takes the lock at `path`.

        Raises:
            Locked: another process kept it for `deadline_s`; the message is `refusal` and the id
                of that process.
        """
        lock = cls(path, fs)
        try:
            lock.acquire(deadline_s)
        except Locked:
            holder = lock.holder()
            lock.close()
            raise Locked(f"{refusal}, as process {holder}") from None
        return lock

    @property
    def _fd(self) -> int:
        if self._opened_fd is None:
            self._opened_fd = self._fs.open_file(self.path)
        return self._opened_fd

    def try_acquire(self) -> bool:
        """Takes the lock if it is free."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self._fs.write_at(self._fd, b"%-10d\n" % os.getpid(), 0)
        return True

    def acquire(self, deadline_s: float) -> None:
        """Takes the lock, waiting `deadline_s` at most.

        Raises:
            Locked: another process kept it; the message names the holder.
        """
        end = time.monotonic() + deadline_s
        while not self.try_acquire():
            if time.monotonic() >= end:
                raise Locked(f"{self.path} is held by process {self.holder()}")
            time.sleep(self._POLL_S)

    def release(self) -> None:
        """Frees the lock."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    @contextmanager
    def held(self, deadline_s: float) -> Iterator[None]:
        """Holds the lock for the length of a with block.

        Raises:
            Locked: as `acquire`.
        """
        self.acquire(deadline_s)
        try:
            yield
        finally:
            self.release()

    def is_free(self) -> bool:
        """Returns whether the lock is free. The check itself takes it for a moment."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self.release()
        return True

    def holder(self) -> int:
        """Returns the process id of the last holder, 0 before the first."""
        text = os.pread(self._fd, 16, 0).strip()
        return int(text) if text.isdigit() else 0

    def taken_ns(self) -> int:
        """Returns when it was last taken, in epoch nanoseconds, as exactly as the filesystem notes
        it.
        """
        return os.fstat(self._fd).st_mtime_ns

    def close(self) -> None:
        """Frees the lock and the descriptor."""
        if self._opened_fd is not None:
            self._fs.close(self._opened_fd)
            self._opened_fd = None


def holder_of(path: Path) -> int | None:
    """Returns the process id of the holder of the lock at `path`, None if it is free."""
    if not path.exists():
        return None
    with closing(FileLock(path, READING_FS)) as lock:  # a sidecar has it read-only
        return None if lock.is_free() else lock.holder()


def lock_is_held(path: Path) -> bool:
    """Returns whether another process holds the lock at `path`."""
    return holder_of(path) is not None
