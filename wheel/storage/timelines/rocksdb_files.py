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
    Options,
    Rdict,
)

from duewheel.checkpoints.fs import HOST_FS, FileSystem
from duewheel.errors import CorruptFile, Locked

FOLDER = "rocksdb"
READERS = "rocksdb.readers"

_MIB = 1 << 20
_CACHE_MIB, _BUFFER_MIB, _LOG_MIB = 32, 16, 64


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
def _block_cache() -> Cache:
    """Returns the cache of all databases of this process."""
    return Cache(_CACHE_MIB * _MIB)


def _options() -> Options:
    """Bounds memory and disk: 32 MiB of blocks and 32 MiB of buffers, for all pending timers."""
    blocks = BlockBasedOptions()
    blocks.set_block_cache(_block_cache())
    blocks.set_block_size(16 << 10)
    blocks.set_cache_index_and_filter_blocks(True)
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(blocks)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_write_buffer_size(_BUFFER_MIB * _MIB)
    options.set_max_write_buffer_number(2)
    options.set_max_total_wal_size(_LOG_MIB * _MIB)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(_MIB)
    options.create_if_missing(False)
    return options


def make(database: Path, fs: FileSystem) -> None:
    """Makes an empty database in this folder."""
    fs.remove_tree(database)
    fs.make_directory(database)
    options = _options()
    options.create_if_missing(True)
    Rdict(str(database), options).close()


def opened_to_write(path: Path, number: int) -> Rdict:
    """Opens a database to write.

    Raises:
        Locked: another process has it open to write.
        CorruptFile: it is missing or damaged.
    """
    found = database(path, number)
    try:
        return Rdict(str(found), _options())
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
        return Rdict(str(found), _options(), access_type=AccessType.read_only(False))
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
        return Rdict(str(found), _options(), access_type=access), messages
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
