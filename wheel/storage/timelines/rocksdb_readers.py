"""The folders of RocksDB's readers: a secondary writes its messages to one of its own.

    rocksdb.readers/<random>/lock    held while its reader lives; a start of ingest removes the
                                     others. Nothing reads the folder, so no crash test need see
                                     when it comes and goes

A reader without its folder may end with SIGSEGV when it closes. A lock shows that it lives; a
process id does not, as seen from another container.
"""

from __future__ import annotations

import tempfile
from contextlib import closing, suppress
from pathlib import Path

from duewheel.checkpoints.file_lock import FileLock
from duewheel.checkpoints.fs import HOST_FS

READERS = "rocksdb.readers"
_LOCK = "lock"


class ReaderFolder:
    """The folder of one secondary, in the data directory or where this user may write; `remove` it
    once the secondary is closed.
    """

    def __init__(self, directory: Path) -> None:
        while True:
            self.path = _made(directory)
            self._lock = FileLock(self.path / _LOCK)
            try:
                if self._lock.try_acquire() and self.path.exists():
                    return
            except FileNotFoundError:
                pass
            except BaseException:
                self.remove()
                raise
            self._lock.close()  # `remove_dead_readers` came in between

    def remove(self) -> None:
        """Removes the folder, and frees its lock."""
        HOST_FS.remove_tree(self.path)
        self._lock.close()


def remove_dead_readers(directory: Path) -> None:
    """Removes the folders of readers that were killed, in a data directory."""
    folder = directory / READERS
    for each in folder.iterdir() if folder.exists() else ():
        # Its reader may remove it meanwhile.
        with suppress(FileNotFoundError), closing(FileLock(each / _LOCK)) as lock:
            if lock.try_acquire():
                HOST_FS.remove_tree(each)


def _made(directory: Path) -> Path:
    with suppress(OSError):
        HOST_FS.make_folder(directory / READERS)
        return Path(tempfile.mkdtemp(dir=directory / READERS))
    return Path(tempfile.mkdtemp(prefix="duewheel-rocksdb-"))
