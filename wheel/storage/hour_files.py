"""A folder of append-only files, one per slot hour, such as timerlog/ and messages/.

The committed length of a file is in the newest commit page, not in the file. Bytes beyond it are
the remains of a batch that was never committed; the next batch overwrites them. The files of an
hour are unlinked together once no timer of the hour is pending. Not thread-safe.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from duewheel.checkpoints.fs import HOST_FS, Bytes, FileSystem, read_into
from duewheel.errors import CorruptFile
from duewheel.wheel.storage.byte_layouts import hour_from_name, hour_name

_HOUR_NAME = re.compile(r"\d{10}|h\d+")
_OPEN_MAX = 128  # wrong timestamps may spread rows over any number of hours, beyond the file limit


@functools.lru_cache(maxsize=4 * _OPEN_MAX)
def _path(directory: Path, hour: int) -> Path:
    """Returns the path of an hour's file; cached, because a batch with cancels needs it some two
    hundred times.
    """
    return directory / hour_name(hour)


class HourFiles:
    """The descriptors of one folder, opened when first needed, and bounded in number."""

    def __init__(self, directory: Path, fs: FileSystem = HOST_FS) -> None:
        """Opens and makes nothing: a reader must not hide that the folder is missing."""
        self.directory = directory
        self._fs = fs
        self._fds: dict[int, int] = {}

    def make_folder(self) -> None:
        """Makes the folder, unless it exists; needed once before the first `write`."""
        self._fs.make_folder(self.directory)

    def path(self, hour: int) -> Path:
        return _path(self.directory, hour)

    def fd(self, hour: int) -> int:
        """Returns the descriptor of an hour's file.

        Raises:
            CorruptFile: the file is missing.
        """
        fd = self._fds.get(hour)
        if fd is None:
            try:
                fd = self._keep(hour, self._fs.open_existing(self.path(hour)))
            except FileNotFoundError as error:
                raise CorruptFile(self.path(hour), 0, "the hour's file is missing") from error
        return fd

    def write(self, hour: int, data: Bytes, position: int) -> None:
        """Writes at `position`, in bytes; makes the file if it is missing."""
        fd = self._fds.get(hour)
        if fd is None:
            fd = self._keep(hour, self._fs.open_file(self.path(hour)))
        self._fs.write_at(fd, data, position)

    def _keep(self, hour: int, fd: int) -> int:
        if len(self._fds) >= _OPEN_MAX:
            self._fs.close(self._fds.pop(next(iter(self._fds))))
        self._fds[hour] = fd
        return fd

    def read(self, hour: int, position: int, size: int) -> memoryview:
        """Reads `size` bytes from `position`.

        Raises:
            CorruptFile: the file is shorter than that.
        """
        target = memoryview(bytearray(size))
        read_into(self.fd(hour), target, position, self.path(hour))
        return target

    def size(self, hour: int) -> int:
        """Returns the bytes of the hour's file, committed or not; 0 if it is missing."""
        try:
            return self.path(hour).stat().st_size
        except FileNotFoundError:
            return 0

    def hours(self) -> list[int]:
        """Returns the hours that have a file, rising. Ignores files with other names."""
        if not self.directory.exists():
            return []
        names = (path.name for path in self.directory.iterdir())
        return sorted(hour_from_name(name) for name in names if _HOUR_NAME.fullmatch(name))

    def cut(self, hour: int, size: int) -> None:
        """Truncates an hour's file to `size` bytes."""
        if self.size(hour) > size:
            self._fs.cut(self.fd(hour), size)

    def unlink_below(self, hour: int) -> None:
        self.forget_below(hour)
        for old in self.hours():
            if old < hour:
                self._fs.discard(self.path(old))

    def unlink(self, hour: int) -> None:
        """Removes the file of an hour, if it exists."""
        if hour in self._fds:
            self._fs.close(self._fds.pop(hour))
        self._fs.discard(self.path(hour))

    def forget_below(self, hour: int) -> None:
        """Closes descriptors of hours below `hour`."""
        for old in [h for h in self._fds if h < hour]:
            self._fs.close(self._fds.pop(old))

    def close(self) -> None:
        for fd in self._fds.values():
            self._fs.close(fd)
        self._fds.clear()
