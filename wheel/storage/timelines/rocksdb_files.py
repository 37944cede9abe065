"""The files of a timeline in RocksDB: databases in a data directory, made, opened and named.

    rocksdb/<number>/      a database; the highest number counts. A rebuild makes the next one and
                           removes the others: a damaged one is never written to
    rocksdb.readers/       the messages of RocksDB in reading processes: rocksdb_readers.py

A database is opened to write, by one process; to read it as it is now; or as RocksDB's *secondary*,
which reads new writes each time that it catches up. `path` is that of the data directory.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
)

from duewheel.checkpoints.fs import HOST_FS, FileSystem
from duewheel.errors import CorruptFile, Locked
from duewheel.wheel.storage.timelines.rocksdb_readers import ReaderFolder

FOLDER = "rocksdb"

# The cache of a process, and a buffer of a database, however much is pending. A database has two:
# one is flushed while the other one fills; a secondary has the same runs in memory.
CACHE_BYTES, BUFFER_BYTES = 32 << 20, 16 << 20
LOG_BYTES = 64 << 20  # on disk
_MESSAGES_BYTES = 1 << 20
_TRIES = 5

Files = Mapping[str, int]

# The binding writes this file at each opening, also a reader's, and does not need it.
_BINDING_FILE = "rocksdict-config.json"

# RocksDB's text if this very process has the lock (LockFile in its env/fs_posix.cc).
_OWN_LOCK = "lock hold by current process"

# Errors of the host: they do not mean that files are damaged.
_REFUSALS = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOLCK,
    errno.ENOMEM,
    errno.EACCES,
    errno.EROFS,
)


class NewRocksdb:
    """An empty database under a temporary name."""

    def __init__(self, path: Path, fs: FileSystem) -> None:
        self._path = path
        self._fs = fs
        self._made = path / f"{FOLDER}.new"
        fs.remove_tree(self._made)
        make(self._made / f"{0:010}", fs)
        fs.sync_tree(self._made)

    def put_in_place(self) -> None:
        """Renames it, durably. Anything that has its name is damaged, and removed."""
        self._fs.remove_tree(self._path / FOLDER)
        self._fs.replace(self._made, self._path / FOLDER)
        self._fs.sync_directory(self._path)

    def close(self) -> None:
        """Removes it, if it is not in place."""
        self._fs.remove_tree(self._made)


@cache
def block_cache() -> Cache:
    """Returns the cache that all databases of this process share."""
    return Cache(CACHE_BYTES)


def options() -> Options:
    """Returns options that bound memory and disk; docs/timelines.md compares others."""
    blocks = BlockBasedOptions()
    blocks.set_block_cache(block_cache())
    blocks.set_block_size(16 << 10)
    blocks.set_cache_index_and_filter_blocks(True)
    made = Options(raw_mode=True)
    made.set_block_based_table_factory(blocks)
    made.set_compression_type(DBCompressionType.lz4())
    made.set_write_buffer_size(BUFFER_BYTES)
    made.set_max_write_buffer_number(2)
    made.set_max_total_wal_size(LOG_BYTES)
    # By default RocksDB drops silently everything that its log has after damaged bytes.
    made.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    made.set_max_background_jobs(2)
    made.set_keep_log_file_num(2)
    made.set_max_log_file_size(_MESSAGES_BYTES)
    made.create_if_missing(False)
    return made


def _opened(folder: Path, its: Options, access: AccessType | None = None) -> Rdict:
    """Opens a database with these options. Without `column_families` it would have those of the
    file OPTIONS, which has no checksum.
    """
    access = access or AccessType.read_write()
    return Rdict(str(folder), its, column_families={"default": its}, access_type=access)


def _spare_readers(database: Path) -> None:
    """Makes the binding write to /dev/null: a reader needs neither the right to write nor room."""
    path = database / _BINDING_FILE
    if not path.is_symlink():
        HOST_FS.discard(path)
        path.symlink_to(os.devnull)


def close(database: Rdict) -> None:
    """Closes a database. If it cannot flush, the write-ahead log has the missing runs."""
    with suppress(Exception):
        database.close()


def make(database: Path, fs: FileSystem) -> None:
    """Makes an empty database: it appears whole, or not at all.

    Raises:
        OSError: the disk is full, or fails.
    """
    made = database.with_name(f"{database.name}.new")
    fs.remove_tree(made)
    fs.make_directory(made)
    creating = options()
    creating.create_if_missing(True)
    try:
        _spare_readers(made)
        _opened(made, creating).close()
    except Exception as error:
        raise as_raised(made, error) from error
    fs.replace(made, database)


def opened_to_write(path: Path, number: int) -> Rdict:
    """Opens a database to write.

    Raises:
        Locked: another process has it open to write.
        CorruptFile: it is missing or damaged.
        OSError: the host refuses: the disk is full, for example.
    """
    folder = database(path, number)
    try:
        _spare_readers(folder)
        return _opened(folder, options())
    except Exception as error:
        if _OWN_LOCK in str(error) or _says(error, errno.EAGAIN):
            raise Locked(f"{folder}: another process writes there") from error
        raise as_raised(folder, error) from error


def as_it_is(path: Path, number: int) -> Rdict:
    """Opens a database as it is now, to read; makes no file.

    Raises:
        CorruptFile: it is missing or damaged.
        OSError: the host refuses: too many files are open, for example.
    """
    return _opened_to_read(database(path, number), AccessType.read_only(False))


def secondary(path: Path, number: int) -> tuple[Rdict, ReaderFolder]:
    """Opens a database as a secondary; returns it, and the folder of its messages.

    Raises:
        CorruptFile, OSError: as `as_it_is`.
    """
    messages = ReaderFolder(path)
    try:
        opened = _opened_to_read(database(path, number), AccessType.secondary(str(messages.path)))
    except BaseException:
        messages.remove()
        raise
    return opened, messages


def _opened_to_read(folder: Path, access: AccessType) -> Rdict:
    """Opens a database that may be written meanwhile: RocksDB may remove a file after it has read
    the name, and finds all files at the next try.
    """
    for tries_left in reversed(range(_TRIES)):
        try:
            return _opened(folder, options(), access)
        except Exception as error:
            if not tries_left or not _says(error, errno.ENOENT):
                raise as_raised(folder, error) from error
    raise AssertionError("the last try returns or raises")


def as_raised(folder: Path, error: Exception) -> CorruptFile | OSError:
    """Converts RocksDB's error: a full disk is no damage, which would lead to a recovery."""
    for number in _REFUSALS:
        if _says(error, number):
            return OSError(number, str(error), str(folder))
    return CorruptFile(folder, 0, str(error))


def _says(error: Exception, number: int) -> bool:
    """Returns whether the host refused RocksDB something with this errno.

    The binding raises a plain Exception with RocksDB's text. That is made of status, context, file
    and strerror (IOError in RocksDB's env/io_posix.cc), and may be quoted in another text:

        IO error: While lock file: /data/rocksdb/0000000000/LOCK: Resource temporarily unavailable
    """
    return os.strerror(number) in str(error)


def files(path: Path, number: int) -> Files:
    """Returns the files that show whether a database has changed: the write-ahead logs by name,
    each until it has become a table; CURRENT, which names the list of tables; and that list,
    MANIFEST, which grows with every change.
    """
    found = {}
    with os.scandir(database(path, number)) as entries:
        for each in entries:
            if each.name.endswith(".log") or each.name == "CURRENT":
                found[each.name] = each.inode()
            elif each.name.startswith("MANIFEST"):
                # It may be removed at this moment.
                with suppress(FileNotFoundError):
                    found[each.name] = each.stat().st_size
    return found


def numbers(path: Path) -> list[int]:
    """Returns the numbers of the existing databases, rising."""
    try:
        return sorted(int(each.name) for each in (path / FOLDER).iterdir() if each.name.isdecimal())
    except FileNotFoundError:
        return []


def newest(path: Path) -> int:
    """Returns the number of the database that counts.

    Raises:
        CorruptFile: there is none.
    """
    found = numbers(path)
    if not found:
        raise CorruptFile(path / FOLDER, 0, "there is no database: timer.timeline may differ")
    return found[-1]


def identity(path: Path, number: int) -> str:
    """Returns the random name that RocksDB gave a database: after a loss of all of them another one
    has the same number.

    Raises:
        CorruptFile: it is missing.
    """
    file = database(path, number) / "IDENTITY"
    try:
        return file.read_text()
    except FileNotFoundError as error:
        raise CorruptFile(file, 0, "it is missing") from error


def database(path: Path, number: int) -> Path:
    """Returns the folder of a database."""
    return path / FOLDER / f"{number:010}"
