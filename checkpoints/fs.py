"""The one seam to the file system: whole writes, exact reads, atomic replacement.

Every change of a data directory goes through `FileSystem`, except stores to mapped files; so a
simulation sees each one. Writes go to the page cache: they survive the death of this process, not
a loss of power. The caller syncs bytes that must survive that.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from duewheel.errors import CorruptFile

Bytes = bytes | bytearray | memoryview

_OTHERS = 0o007
_GROUP_AND_OTHERS = 0o077


class FileSystem:
    """Changes the files of a data directory. Each is its owner's alone: message bodies and the key
    of copies are in them. Stateless.

    The first methods are single calls of the operating system; a simulation overrides them, to see
    each store and to refuse it. The others are made of these.
    """

    # ---- single calls ----------------------------------------------------------------------

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        """As `os.open`; a child process does not inherit the descriptor."""
        return os.open(path, flags | os.O_CLOEXEC, mode)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pwrite(self, fd: int, data: Bytes, offset: int) -> int:
        """Writes some of `data` at byte `offset`; returns how many bytes."""
        return os.pwrite(fd, data, offset)

    def cut(self, fd: int, size: int) -> None:
        """Truncates a file to `size` bytes."""
        os.ftruncate(fd, size)

    def allocate(self, fd: int, size: int) -> None:
        """Allocates all blocks of a file's first `size` bytes, so that a mapped store needs none.

        Raises:
            OSError: the file system has too little room.
        """
        os.posix_fallocate(fd, 0, size)

    def fsync(self, fd: int) -> None:
        """Makes the content of a file, or the entries of a directory, durable."""
        os.fsync(fd)

    def msync(self, mapped: mmap.mmap) -> None:
        """Makes the content of a mapped file durable."""
        mapped.flush()

    def map(self, fd: int, size: int, *, writable: bool) -> mmap.mmap:
        """Maps the first `size` bytes, shared with every other process that maps them."""
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        return mmap.mmap(fd, size, access=access)

    def replace(self, path: Path, target: Path) -> None:
        """Gives the file or directory at `path` the name `target`, atomically."""
        path.replace(target)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def mkdir(self, path: Path) -> None:
        """Makes a directory, for its owner only: its files have message bodies."""
        path.mkdir(mode=0o700)

    def chmod(self, path: Path, mode: int) -> None:
        path.chmod(mode)

    def remove_tree(self, path: Path) -> None:
        """Removes a directory and everything below it, as far as possible."""
        import shutil  # not at the top: `duewheel health` imports this module, too

        shutil.rmtree(path, ignore_errors=True)

    def boot_id(self) -> str:
        """Returns the id of this boot of the host: another one means a lost page cache."""
        return _boot_id()

    def random_bits(self, count: int) -> int:
        import secrets  # not at the top: `duewheel health` imports this module, too

        return secrets.randbits(count)

    # ---- whole files -----------------------------------------------------------------------

    def open_file(self, path: Path) -> int:
        """Opens for reading and writing; makes a missing file."""
        return self.open(path, os.O_RDWR | os.O_CREAT)

    def open_existing(self, path: Path) -> int:
        """Opens for reading and writing."""
        return self.open(path, os.O_RDWR)

    def open_emptied(self, path: Path) -> int:
        """Opens for reading and writing, with nothing in it."""
        # A killed process may have left such a file. The process id in its name does not prevent
        # that: in a container another process soon has the same id.
        fd = self.open_file(path)
        self.cut(fd, 0)
        return fd

    def open_unnamed(self, folder: Path) -> int:
        """Opens a new unnamed file on `folder`'s disk; it vanishes with its descriptor."""
        try:
            return self.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):  # in some containers
                raise
        temporary = folder / f".unnamed.{os.getpid()}"
        fd = self.open_emptied(temporary)
        self.unlink(temporary)
        return fd

    def write_at(self, fd: int, data: Bytes, offset: int) -> None:
        """Writes all of `data` at byte `offset`, however many calls the kernel needs."""
        view = memoryview(data).cast("B")
        while view:
            written = self.pwrite(fd, view, offset)
            view = view[written:]
            offset += written

    def replace_file(self, path: Path, data: bytes) -> None:
        """Replaces a file's content; a reader sees the old or the new one, never a mixture.

        Temporary file, fsync, rename, fsync of the directory: durable when this returns.
        """
        with self._successor(path, str(os.getpid())) as fd:
            self.write_at(fd, data, 0)
            # Before the rename: after a loss of power the new name could have an empty file.
            self.fsync(fd)
        self.sync_directory(path.parent)

    def swap_file(self, path: Path, data: bytes) -> None:
        """Replaces a file's content like `replace_file`, without a sync: atomic over a kill, not
        over a loss of power. One writer at a time; it overwrites the file that a killed one left.
        """
        with self._successor(path, "new") as fd:
            self.write_at(fd, data, 0)

    @contextmanager
    def _successor(self, path: Path, suffix: str) -> Iterator[int]:
        """Opens an empty file that replaces `path` when the with block ends without an error."""
        temporary = path.with_name(f".{path.name}.{suffix}")
        try:
            fd = self.open_emptied(temporary)
            try:
                yield fd
            finally:
                self.close(fd)
            self.replace(temporary, path)
        except BaseException:
            self.discard(temporary)
            raise

    def discard(self, path: Path) -> None:
        """Removes a file, if it exists."""
        with suppress(FileNotFoundError):
            self.unlink(path)

    def remove(self, path: Path) -> None:
        """Removes a file, if it exists; durably."""
        self.discard(path)
        self.sync_directory(path.parent)

    # ---- directories -----------------------------------------------------------------------

    def make_folder(self, path: Path) -> None:
        """Makes a directory, unless it exists; its parent must exist."""
        try:
            self.mkdir(path)
        except OSError:
            if not path.is_dir():
                raise

    def make_directory(self, path: Path) -> None:
        """Makes a directory and its missing parents; its entry is durable when this returns."""
        if not path.parent.exists():
            self.make_directory(path.parent)
        self.make_folder(path)
        # Also for an existing one: an earlier process may have died between making and syncing it.
        with suppress(PermissionError):  # no right to open the parent: then it existed already
            self.sync_directory(path.parent)

    def sync_path(self, path: Path) -> None:
        """Makes a file's content durable."""
        self._sync(path, os.O_RDONLY)

    def sync_directory(self, path: Path) -> None:
        """Makes the directory's entries durable."""
        self._sync(path, os.O_RDONLY | os.O_DIRECTORY)

    def _sync(self, path: Path, flags: int) -> None:
        fd = self.open(path, flags)
        try:
            self.fsync(fd)
        finally:
            self.close(fd)

    def readable_by_others(self, folder: Path) -> Iterator[Path]:
        """Yields `folder`, and files and directories below it, if others have rights to them. The
        group may have some to directories, and to files of another user: Kubernetes gives them by
        fsGroup.
        """
        for root, _, names in os.walk(folder):
            yield from (
                path
                for path in (Path(root), *(Path(root, name) for name in names))
                if self._surplus(path)
            )

    def close_to_others(self, folder: Path) -> list[Path]:
        """Takes these rights away; returns the changed paths.

        Raises:
            PermissionError: another user owns one.
        """
        changed = []
        for path in self.readable_by_others(folder):
            with suppress(FileNotFoundError):
                self.chmod(path, stat.S_IMODE(path.stat().st_mode) & ~self._surplus(path))
                changed.append(path)
        return changed

    def _surplus(self, path: Path) -> int:
        """Returns the rights to a file or directory that others should not have."""
        try:
            status = path.lstat()
        except FileNotFoundError:
            return 0
        if stat.S_ISLNK(status.st_mode):
            return 0
        is_own_file = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
        return status.st_mode & (_GROUP_AND_OTHERS if is_own_file else _OTHERS)

    def sync_tree(self, directory: Path) -> None:
        """Makes every file and entry below `directory` durable. A file may vanish meanwhile; a link
        has no content.
        """
        for root, _, names in os.walk(directory):
            for path in (Path(root) / name for name in names):
                with suppress(FileNotFoundError):
                    if not path.is_symlink():
                        self.sync_path(path)
            self.sync_directory(Path(root))


class ReadingFileSystem(FileSystem):
    """Opens and maps files for reading only, and makes none: for a process that only reads, so that
    no error of its own can change a shard's files.
    """

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        return super().open(path, os.O_RDONLY)

    def map(self, fd: int, size: int, *, writable: bool) -> mmap.mmap:
        return super().map(fd, size, writable=False)


HOST_FS = FileSystem()
READING_FS = ReadingFileSystem()


class NewFile:
    """A file of known size under construction: it appears at `path` whole, durable and with all its
    blocks, or not at all. One process may make it at a time; it overwrites the unfinished file of a
    killed one.

    A sparse mapped file would kill the process with SIGBUS when the disk is full.
    """

    def __init__(self, path: Path, size: int, fs: FileSystem = HOST_FS) -> None:
        """Allocates it, zeroed, beside `path`.

        Raises:
            OSError: the file system has too little room; the unfinished file is removed.
        """
        self._path = path
        self._temporary = path.with_name(f".{path.name}.new")
        self._fs = fs
        self._fd = fs.open_emptied(self._temporary)
        try:
            fs.allocate(self._fd, size)
        except BaseException:
            self.close()
            raise

    def write(self, data: Bytes, offset: int) -> None:
        """Writes all of `data` at byte `offset`."""
        self._fs.write_at(self._fd, data, offset)

    def sync(self) -> None:
        """Makes the content durable, which takes long, before `put_in_place`."""
        self._fs.fsync(self._fd)

    def put_in_place(self) -> None:
        """Replaces the file at `path`, durably; called after `sync`."""
        self._fs.replace(self._temporary, self._path)
        self._fs.sync_directory(self._path.parent)

    def close(self) -> None:
        """Closes the file, and removes it unless it is in place."""
        self._fs.close(self._fd)
        self._fs.discard(self._temporary)


def read_into(fd: int, target: memoryview, offset: int, path: Path) -> None:
    """Fills `target` from byte `offset`.

    Raises:
        CorruptFile: the file ends before `target` is full.
    """
    while target:
        count = os.preadv(fd, [target], offset)
        if count == 0:
            raise CorruptFile(path, offset, f"the file ends {len(target)} bytes early")
        target = target[count:]
        offset += count


@cache
def _boot_id() -> str:
    """Reads the id once: no process outlives a boot, and each lock and closing compares it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def checked_line(text: bytes) -> bytes:
    """Makes a line with the CRC-32 of its text: 8 hex digits, a blank, the text."""
    return b"%08x %s\n" % (zlib.crc32(text), text)


def checked_text(line: bytes) -> bytes | None:
    """Returns the text of a `checked_line`, with or without its newline; None if it is damaged."""
    crc, _, text = line.removesuffix(b"\n").partition(b" ")
    return text if crc == b"%08x" % zlib.crc32(text) else None
