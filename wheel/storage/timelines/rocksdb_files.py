"""The files of a timeline in RocksDB: databases in a data directory, made, opened and named.

    rocksdb/<number>/      a database; the highest number counts. A rebuild makes the next one and
                           removes the others: a damaged one is never written to
    rocksdb.readers/<pid>  the messages of RocksDB in a reading process; ingest empties it. Nothing
                           reads them, so no crash test need see when they come and go

A database is opened to write by one process; to read as it is now; or to follow it, as RocksDB's
secondary. `path` is that of the data directory.
"""

from __future__ import annotations

import os
import tempfile
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

FOLDER = "rocksdb"
READERS = "rocksdb.readers"

# Of a process, however much is pending. Two buffers: one is flushed while the other one fills.
CACHE_BYTES, BUFFER_BYTES = 32 << 20, 16 << 20
LOG_BYTES = 64 << 20  # on disk
_MESSAGES_BYTES = 1 << 20


class NewRocksdb:
    """An empty database under a temporary name."""

    def __init__(self, path: Path, fs: FileSystem) -> None:
        """
        Args:
            path: the data directory.
            fs: where it lies.
        """
        self._path = path
        self._fs = fs
        self._made = path / f"{FOLDER}.new"
        fs.remove_tree(self._made)
        make(self._made / f"{0:010}", fs)
        fs.sync_tree(self._made)

    def put_in_place(self) -> None:
        """Renames it, durably; what has its name is damaged."""
        self._fs.remove_tree(self._path / FOLDER)
        self._fs.replace(self._made, self._path / FOLDER)
        self._fs.sync_directory(self._path)

    def close(self) -> None:
        """Removes it, if it is not in place."""
        self._fs.remove_tree(self._made)


@cache
def block_cache() -> Cache:
    """Returns the cache of all databases of this process."""
    return Cache(CACHE_BYTES)


def options() -> Options:
    """Returns options that bound memory and disk; docs/timelines.md has what others cost."""
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
    # By default RocksDB drops, without a word, whatever its log has behind damaged bytes.
    made.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    made.set_max_background_jobs(2)
    made.set_keep_log_file_num(2)
    made.set_max_log_file_size(_MESSAGES_BYTES)
    made.create_if_missing(False)
    return made


def make(database: Path, fs: FileSystem) -> None:
    """Makes an empty database in this folder."""
    fs.remove_tree(database)
    fs.make_directory(database)
    creating = options()
    creating.create_if_missing(True)
    Rdict(str(database), creating).close()


def opened_to_write(path: Path, number: int) -> Rdict:
    """Opens a database to write.

    Raises:
        Locked: another process has it open to write.
        CorruptFile: it is missing or damaged.
    """
    found = database(path, number)
    try:
        return Rdict(str(found), options())
    except Exception as error:
        if "lock hold" in str(error) or "LOCK" in str(error):
            raise Locked(f"{found}: another process writes there") from error
        raise CorruptFile(found, 0, str(error)) from error


def as_it_is(path: Path, number: int) -> Rdict:
    """Opens a database as it is now, to read; makes no file.

    Raises:
        CorruptFile: it is missing or damaged.
    """
    found = database(path, number)
    try:
        return Rdict(str(found), options(), access_type=AccessType.read_only(False))
    except Exception as error:
        raise CorruptFile(found, 0, str(error)) from error


def secondary(path: Path, number: int) -> tuple[Rdict, Path]:
    """Opens a database to follow it; returns it, and the folder of its messages.

    Raises:
        CorruptFile: it is missing or damaged.
    """
    found, messages = database(path, number), _folder_of_reader(path)
    access = AccessType.secondary(str(messages))
    try:
        return Rdict(str(found), options(), access_type=access), messages
    except Exception as error:
        HOST_FS.remove_tree(messages)
        raise CorruptFile(found, 0, str(error)) from error


def _folder_of_reader(path: Path) -> Path:
    """Makes a folder for a secondary: in the data directory, or where this user may write."""
    with suppress(OSError):
        HOST_FS.make_folder(path / READERS)
        return Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=path / READERS))
    return Path(tempfile.mkdtemp(prefix="duewheel-rocksdb-"))


def numbers(path: Path) -> list[int]:
    """Returns the numbers of the databases that are there, rising."""
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
        raise CorruptFile(path / FOLDER, 0, "there is no database")
    return found[-1]


def database(path: Path, number: int) -> Path:
    """Returns the folder of a database."""
    return path / FOLDER / f"{number:010}"
