"""The one seam to the file system: whole writes, exact reads, atomic replacement, locks.

Everything that duewheel keeps on disk goes through here. Writes go to the page cache: they survive
the death of this process, not the loss of power; what must survive that is synced by the caller.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import time
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from duewheel.errors import CorruptFile, Locked

Bytes = bytes | bytearray | memoryview


def open_file(path: Path) -> int:
    """Open for reading and writing, made if absent; returns the descriptor."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def open_existing(path: Path) -> int:
    """Open for reading and writing; returns the descriptor.

    Raises:
        FileNotFoundError: there is no such file.
    """
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


def open_unnamed(folder: Path) -> int:
    """A new file on the disk of `folder` that is gone with its descriptor, however that goes."""
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):  # in some containers
            raise
    temporary = folder / f".unnamed.{os.getpid()}"
    fd = _open_emptied(temporary)
    temporary.unlink()
    return fd


def allocate(fd: int, size: int) -> None:
    """Give a file all the blocks of its first `size` bytes: a mapped store then needs none.

    Raises:
        OSError: the file system has too little room.
    """
    os.posix_fallocate(fd, 0, size)


def _open_emptied(temporary: Path) -> int:
    # A killed process may have left one; in a container its id is soon another one's.
    fd = open_file(temporary)
    cut(fd, 0)
    return fd


def sync_path(path: Path) -> None:
    """Make a file's content durable, by name.

    Raises:
        FileNotFoundError: there is no such file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def close(fd: int) -> None:
    """Close a descriptor of `open_file`."""
    os.close(fd)


def write_at(fd: int, data: Bytes, offset: int) -> None:
    """Write all of `data` at byte `offset`, however many calls the kernel needs."""
    view = memoryview(data).cast("B")
    while view:
        written = os.pwrite(fd, view, offset)
        view = view[written:]
        offset += written


def cut(fd: int, size: int) -> None:
    """Drop what lies behind `size` bytes."""
    os.ftruncate(fd, size)


def read_into(fd: int, target: memoryview, offset: int, path: Path) -> None:
    """Fill `target` from byte `offset`.

    Raises:
        CorruptFile: the file ends before `target` is full.
    """
    while target:
        count = os.preadv(fd, [target], offset)
        if count == 0:
            raise CorruptFile(path, offset, f"the file ends {len(target)} bytes early")
        target = target[count:]
        offset += count


@dataclass(frozen=True, slots=True)
class Space:
    """Of a file system, in bytes: what a user may still write, and all of it."""

    free_bytes: int
    total_bytes: int


def space(directory: Path) -> Space:
    """Of the file system that a directory lies in."""
    found = os.statvfs(directory)
    return Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


# By the magic number of their superblock. They do not write in place: each store takes a new block,
# and a store to a mapped file ends the process by SIGBUS if there is none. What overlay does
# depends on the file system below it.
_COPY_ON_WRITE = {
    0x9123683E: "btrfs",
    0x2FC12FC1: "zfs",
    0xCA451A4E: "bcachefs",
    0x794C7630: "overlay",
}
COPY_ON_WRITE = frozenset(_COPY_ON_WRITE.values())
_STATFS_BYTES = 512  # more than any C library's struct, whose first word is the magic number


def copies_on_write(directory: Path) -> str | None:
    """The name of the file system that a directory lies in if it copies on write, else None."""
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    if ctypes.CDLL(None).statfs(os.fsencode(directory), buffer) != 0:
        return None
    return _COPY_ON_WRITE.get(ctypes.c_uint32.from_buffer(buffer).value)


class NewFile:
    """A file of known size in the making: at `path` it appears whole, with all its blocks and
    durable, or not at all. Only one process may make it at a time; an unfinished file that a
    killed one has left is overwritten.

    A sparse mapped file would kill the process with SIGBUS when the disk is full.
    """

    def __init__(self, path: Path, size: int) -> None:
        """Allocate it, zeroed, beside `path`.

        Raises:
            OSError: the file system has too little room; nothing is left of the file.
        """
        self._path = path
        self._temporary = path.with_name(f".{path.name}.new")
        self._fd = _open_emptied(self._temporary)
        try:
            allocate(self._fd, size)
        except BaseException:
            self.close()
            raise

    def write(self, data: Bytes, offset: int) -> None:
        """Write all of `data` at byte `offset`."""
        write_at(self._fd, data, offset)

    def sync(self) -> None:
        """Make the content durable: what takes long, before `put_in_place`."""
        os.fsync(self._fd)

    def put_in_place(self) -> None:
        """After `sync`: replace what is at `path`, durably."""
        self._temporary.replace(self._path)
        sync_directory(self._path.parent)

    def close(self) -> None:
        """Close the file, and remove it unless it is in place."""
        os.close(self._fd)
        self._temporary.unlink(missing_ok=True)


def make_directory(path: Path) -> None:
    """Make a directory, and what is missing above it; its entry is durable when this returns."""
    if not path.parent.exists():
        make_directory(path.parent)
    path.mkdir(exist_ok=True)
    # Also if it was there: a predecessor may have died, or the power failed, in between.
    with suppress(PermissionError):  # only who may not look there; then it was there already
        sync_directory(path.parent)


def remove(path: Path) -> None:
    """Remove a file, if it is there; durably."""
    path.unlink(missing_ok=True)
    sync_directory(path.parent)


def sync_tree(directory: Path) -> None:
    """Make every file below `directory` durable, and every entry. A file may vanish meanwhile."""
    for root, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                sync_path(Path(root) / name)
        sync_directory(Path(root))


def map_file(fd: int, size: int, *, writable: bool) -> mmap.mmap:
    """Map the first `size` bytes, shared with every other process that maps them."""
    access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
    return mmap.mmap(fd, size, access=access)


def checked_line(text: bytes) -> bytes:
    """A line that carries its own CRC-32: 8 hex digits, a blank, the text."""
    return b"%08x %s\n" % (zlib.crc32(text), text)


def checked_text(line: bytes) -> bytes | None:
    """The text of a `checked_line`, with or without its end; None if it does not match."""
    crc, _, text = line.removesuffix(b"\n").partition(b" ")
    return text if crc == b"%08x" % zlib.crc32(text) else None


def sync_directory(path: Path) -> None:
    """Make the directory's entries durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file's content so that a reader sees the old or the new one, never a mixture.

    Temporary file, fsync, rename, fsync of the directory: durable when this returns.
    """
    with _successor(path, str(os.getpid())) as fd:
        write_at(fd, data, 0)
        os.fsync(fd)
    sync_directory(path.parent)


def swap_file(path: Path, data: bytes) -> None:
    """Replace a file's content like `replace_file`, but nothing is synced: atomic over a kill, not
    over a loss of power. One writer at a time; what a killed one has left is overwritten.
    """
    with _successor(path, "new") as fd:
        write_at(fd, data, 0)


@contextmanager
def _successor(path: Path, suffix: str) -> Iterator[int]:
    """An empty file that takes the place of `path` when the with block ends without an error."""
    temporary = path.with_name(f".{path.name}.{suffix}")
    try:
        fd = _open_emptied(temporary)
        try:
            yield fd
        finally:
            os.close(fd)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def boot_id() -> str:
    """Names this boot of the host: another value means that the page cache has been lost."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class FileLock:
    """An exclusive flock on a file that names its holder. Freed by the kernel when the holder dies.

    Not thread-safe: one instance belongs to one thread.
    """

    _POLL_S = 0.0005

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = open_file(path)

    @classmethod
    def taken(cls, path: Path, deadline_s: float, refusal: str) -> FileLock:
        """The lock at `path`, taken.

        Raises:
            Locked: it stayed taken for `deadline_s`; the message is `refusal` and the holder.
        """
        lock = cls(path)
        try:
            lock.acquire(deadline_s)
        except Locked:
            holder = lock.holder()
            lock.close()
            raise Locked(f"{refusal}, as process {holder}") from None
        return lock

    def try_acquire(self) -> bool:
        """Take the lock if it is free."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        write_at(self._fd, b"%-10d\n" % os.getpid(), 0)
        return True

    def acquire(self, deadline_s: float) -> None:
        """Take the lock, waiting `deadline_s` at most.

        Raises:
            Locked: it stayed taken; the message names the holder.
        """
        end = time.monotonic() + deadline_s
        while not self.try_acquire():
            if time.monotonic() >= end:
                raise Locked(f"{self.path} is held by process {self.holder()}")
            time.sleep(self._POLL_S)

    def release(self) -> None:
        """Free the lock."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    @contextmanager
    def held(self, deadline_s: float) -> Iterator[None]:
        """The lock for the length of a with block."""
        self.acquire(deadline_s)
        try:
            yield
        finally:
            self.release()

    def is_free(self) -> bool:
        """Whether nobody holds the lock. Others see it taken for the moment that the look lasts."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self.release()
        return True

    def holder(self) -> int:
        """Process id of the last holder, 0 if there never was one."""
        text = os.pread(self._fd, 16, 0).strip()
        return int(text) if text.isdigit() else 0

    def close(self) -> None:
        """Free the lock and the descriptor."""
        os.close(self._fd)


def holder_of(path: Path) -> int | None:
    """Process id of the holder of the lock at `path`, None if it is free."""
    if not path.exists():
        return None
    with closing(FileLock(path)) as lock:
        return None if lock.is_free() else lock.holder()


def lock_is_held(path: Path) -> bool:
    """Whether another process holds the lock at `path`."""
    return holder_of(path) is not None
