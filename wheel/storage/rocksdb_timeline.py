"""A timeline in RocksDB: one key for each run, ordered by slot.

    key    slot (8 bytes, big-endian), log position of the run's first record (8)
    value  number of its records (4)
    key    0xff…, "batch": the newest batch, which its runs come with in one atomic write

It lies beside the logs, which have everything else of a record. There is no ring and no chain:
every slot is within reach, and the log's prev_pos stays NO_POSITION.

    rocksdb/<number>/      the database; the highest number counts. A rebuild makes the next one and
                           removes the others: a damaged one is never written to
    rocksdb.readers/<pid>  the messages of RocksDB in a reading process; ingest empties it

One process writes: ingest, for life; or, while there is no ingest, dequeue for the moment in which
it appends an interrupted batch, under engine.lock. All others read: what was there when they
opened it, and from the first `refresh` on as a secondary, which sees what was written before that.
The write-ahead log is not synced: the page cache outlives a process, and a loss of power is
followed by a rebuild from the logs.

Cost: 0.3 µs for each run that is written, the same for each that is read; 1 to 3 ms for a refresh.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import numpy as np
from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DbClosedError,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
)

from duewheel.checkpoints.commit_and_close_pages import Commit
from duewheel.checkpoints.fs import HOST_FS, FileSystem
from duewheel.checkpoints.state_file import State
from duewheel.errors import CorruptFile, Locked, RecoveryPending
from duewheel.schemas.arrays import Int64
from duewheel.wheel.slots import LATEST_SLOT, WheelConfig
from duewheel.wheel.storage.byte_layouts import NO_POSITION
from duewheel.wheel.storage.log_scan import count_between
from duewheel.wheel.storage.rocksdb_check import RocksdbVerifier
from duewheel.wheel.storage.runs import OnProgress, Runs, SlotRuns
from duewheel.wheel.storage.timeline import Timeline
from duewheel.wheel.storage.timer_log import TimerLog

FOLDER = "rocksdb"
READERS = "rocksdb.readers"

_KEY_BYTES = 16
_COUNT_BYTES = 4
_NEWEST_BATCH = b"\xff" * 8 + b"batch"
_FIRST, _END = bytes(_KEY_BYTES), b"\xff" * 8
_KEYS_AT_ONCE = 1 << 12
_MIB = 1 << 20
_CACHE_MIB, _BUFFER_MIB, _LOG_MIB = 32, 16, 64


class RocksdbTimeline(Timeline):
    """The database of one data directory; see the module's head. Not thread-safe."""

    def __init__(
        self,
        path: Path,
        config: WheelConfig,
        state: State,
        log: TimerLog,
        fs: FileSystem = HOST_FS,
    ) -> None:
        """Opens the database to read.

        Raises:
            CorruptFile: it is missing or damaged.
        """
        self._path = path
        self._config = config
        self._state = state
        self._log = log
        self._fs = fs
        self._writes = False
        self._forgotten = 0  # the runs of slots below it are dropped
        self._number = _newest(path)
        self._messages: Path | None = None  # of a secondary
        self._db = _still(path, self._number)

    # ---- its files -------------------------------------------------------------------------

    @classmethod
    def exists(cls, path: Path, config: WheelConfig, fs: FileSystem) -> bool:
        """As Timeline: opens it."""
        try:
            _still(path, _newest(path)).close()
        except CorruptFile:
            return False
        return True

    @classmethod
    def create(
        cls, path: Path, config: WheelConfig, progress: OnProgress, fs: FileSystem
    ) -> NewRocksdb:
        """As Timeline."""
        return NewRocksdb(path, fs)

    def hold(self) -> None:
        """As Timeline: opens it to write, for life."""
        self._close_database()
        for other in _numbers(self._path):
            if other != self._number:
                self._fs.remove_tree(_database(self._path, other))
        self._db = self._opened_to_write()
        self._writes = True
        shutil.rmtree(self._path / READERS, ignore_errors=True)

    def close(self) -> None:
        """As Timeline."""
        self._close_database()

    def _open_to_read(self) -> None:
        self._number = _newest(self._path)
        self._db, self._messages = _secondary(self._path, self._number)

    def _opened_to_write(self) -> Rdict:
        path = _database(self._path, self._number)
        try:
            return Rdict(str(path), _options())
        except Exception as error:
            if "lock hold" in str(error) or "LOCK" in str(error):
                raise Locked(f"{path}: another process writes there") from error
            raise CorruptFile(path, 0, str(error)) from error

    def _close_database(self) -> None:
        with suppress(DbClosedError):
            self._db.close()
        if self._messages is not None:
            shutil.rmtree(self._messages, ignore_errors=True)
            self._messages = None

    # ---- writing ---------------------------------------------------------------------------

    def reach(self, lower: int) -> int:
        """As Timeline: every slot."""
        return LATEST_SLOT

    def predecessors(self, slots: Int64, before: Int64, commit: Commit) -> Int64:
        """As Timeline: none is needed."""
        return np.full(len(slots), NO_POSITION)

    def append(self, runs: Runs, batch: int) -> None:
        """As Timeline: in one atomic write."""
        written = WriteBatch(raw_mode=True)
        keys, counts = _encoded(runs)
        for at in range(len(runs)):
            key = keys[at * _KEY_BYTES : (at + 1) * _KEY_BYTES]
            written.put(key, counts[at * _COUNT_BYTES : (at + 1) * _COUNT_BYTES])
        written.put(_NEWEST_BATCH, batch.to_bytes(8, "big"))
        self._write(written)

    def link(self, runs: Runs, batch: int) -> None:
        """As Timeline: each run has a key of its own."""
        self.append(runs, batch)

    def clear(self, batch: int) -> None:
        """As Timeline: in a new database, for the old one may be damaged."""
        assert self._writes, "only ingest recovers"
        self._close_database()
        old, self._number = self._number, self._number + 1
        _made(_database(self._path, self._number), self._fs)
        self._db = self._opened_to_write()
        self._forgotten = 0
        empty = WriteBatch(raw_mode=True)
        empty.put(_NEWEST_BATCH, batch.to_bytes(8, "big"))
        self._write(empty)
        self._fs.remove_tree(_database(self._path, old))

    def forget_below(self, slot: int) -> None:
        """As Timeline."""
        if slot > self._forgotten:
            dropped = WriteBatch(raw_mode=True)
            dropped.delete_range(_FIRST, _key(slot))
            self._write(dropped)
            self._forgotten = slot

    def _write(self, batch: WriteBatch) -> None:
        if self._writes:
            _checked_write(self._db, batch, self._path)
            return
        self._close_database()
        self._number = _newest(self._path)
        writer = self._opened_to_write()
        try:
            _checked_write(writer, batch, self._path)
        finally:
            writer.close()
            self._open_to_read()

    # ---- reading ---------------------------------------------------------------------------

    def refresh(self) -> None:
        """As Timeline; after a rebuild by another process, in the new database."""
        if self._writes:
            return
        if self._messages is None or not _database(self._path, self._number).exists():
            self._close_database()
            self._open_to_read()
            return
        with self._damage():
            self._db.try_catch_up_with_primary()

    def require_sound(self, after: int, until: int) -> None:
        """As Timeline: RocksDB has checksums, and a scan fails at the first that does not match."""

    def runs(self, after: int, until: int, records_max: int) -> tuple[SlotRuns, int]:
        """As Timeline."""
        keys, counts, records = bytearray(), bytearray(), 0
        for some_keys, some_counts in self._scan(after, until):
            keys += some_keys
            counts += some_counts
            records += int(_numbers_in(some_counts).sum())
            # A slot is whole once a key of a later one is there.
            if records > records_max and keys[:8] != keys[-_KEY_BYTES : -_KEY_BYTES + 8]:
                break
        found = _decoded(keys, counts)
        if records <= records_max:
            return found, until
        return _whole_slots(found, records_max)

    def count(self, after: int, until: int) -> int:
        """As Timeline: in the logs, 50 to 100 million records a second."""
        return count_between(
            self._log, self._config.precision_ms, self._state.commit(), after, until
        )

    def is_empty(self, after: int, until: int) -> bool:
        """As Timeline."""
        return next(self._scan(after, until, 1), None) is None

    def newest_batch(self, near: int) -> int:
        """As Timeline."""
        with self._damage():
            stored: bytes | None = self._db.get(_NEWEST_BATCH)
        return int.from_bytes(stored, "big") if stored else 0

    def verifier(self, lower: int, linked: int, *, alone: bool = False) -> RocksdbVerifier:
        """As Timeline: nobody refreshes this object during the check."""
        return RocksdbVerifier(self, f"{FOLDER}/{self._number:010}", lower, linked, self._config)

    def _scan(
        self, after: int, until: int, keys_max: int = _KEYS_AT_ONCE
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yields keys and values of the slots after < s ≤ until, so many at a time.

        Not by `items()`: damage would end it as if nothing came behind. RocksDB does not copy the
        bound: without the variable its bytes would be gone, and the scan would end anywhere.
        """
        bounds, end = ReadOptions(), _key(until + 1)
        bounds.set_iterate_upper_bound(end)
        with self._damage():
            at = self._db.iter(bounds)
            at.seek(_key(after + 1))
            while at.valid():
                keys: list[bytes] = []
                counts: list[bytes] = []
                while at.valid() and len(keys) < keys_max:
                    keys.append(at.key())
                    counts.append(at.value())
                    at.next()
                at.status()
                yield b"".join(keys), b"".join(counts)
            at.status()

    @contextmanager
    def _damage(self) -> Iterator[None]:
        try:
            yield
        except (GeneratorExit, CorruptFile):
            raise
        except Exception as error:
            raise CorruptFile(_database(self._path, self._number), 0, str(error)) from error


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
        _made(self._made / f"{0:010}", fs)
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


def _made(path: Path, fs: FileSystem) -> None:
    """Makes an empty database."""
    fs.remove_tree(path)
    fs.make_directory(path)
    options = _options()
    options.create_if_missing(True)
    Rdict(str(path), options).close()


def _still(path: Path, number: int) -> Rdict:
    """Opens a database as it is now, to read; makes no file.

    Raises:
        CorruptFile: it is missing or damaged.
    """
    database = _database(path, number)
    try:
        return Rdict(str(database), _options(), access_type=AccessType.read_only(False))
    except Exception as error:
        raise CorruptFile(database, 0, str(error)) from error


def _secondary(path: Path, number: int) -> tuple[Rdict, Path]:
    """Opens a database to follow it; returns it, and the folder of its messages.

    Raises:
        CorruptFile: it is missing or damaged.
    """
    database, messages = _database(path, number), _folder_of_reader(path)
    access = AccessType.secondary(str(messages))
    try:
        return Rdict(str(database), _options(), access_type=access), messages
    except Exception as error:
        shutil.rmtree(messages, ignore_errors=True)
        raise CorruptFile(database, 0, str(error)) from error


def _checked_write(db: Rdict, batch: WriteBatch, path: Path) -> None:
    try:
        db.write(batch)
    except Exception as error:
        # The commit page is written: the next start appends the batch again.
        raise RecoveryPending(f"{path / FOLDER} takes no write: {error}") from error


def _folder_of_reader(path: Path) -> Path:
    """Makes a folder for a secondary: in the data directory, or where this user may write."""
    with suppress(OSError):
        (path / READERS).mkdir(mode=0o700, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=path / READERS))
    return Path(tempfile.mkdtemp(prefix="duewheel-rocksdb-"))


def _numbers(path: Path) -> list[int]:
    try:
        return sorted(int(each.name) for each in (path / FOLDER).iterdir() if each.name.isdecimal())
    except FileNotFoundError:
        return []


def _newest(path: Path) -> int:
    numbers = _numbers(path)
    if not numbers:
        raise CorruptFile(path / FOLDER, 0, "there is no database")
    return numbers[-1]


def _database(path: Path, number: int) -> Path:
    return path / FOLDER / f"{number:010}"


def _key(slot: int) -> bytes:
    return max(slot, 0).to_bytes(8, "big") + bytes(8)


def _encoded(runs: Runs) -> tuple[bytes, bytes]:
    """Returns the keys of the runs, one behind the other, and the values."""
    assert not len(runs) or int(runs.slot.min()) >= 0, "no slot lies before 1970"
    keys = np.stack([runs.slot, runs.first_pos], 1).astype(">i8")
    return keys.tobytes(), runs.count.astype(">u4").tobytes()


def _numbers_in(counts: bytes | bytearray) -> Int64:
    return np.frombuffer(counts, ">u4").astype(np.int64)


def _decoded(keys: bytes | bytearray, counts: bytes | bytearray) -> SlotRuns:
    columns = np.frombuffer(keys, ">i8").astype(np.int64).reshape(-1, 2)
    return SlotRuns(columns[:, 0].copy(), columns[:, 1].copy(), _numbers_in(counts))


def _whole_slots(runs: SlotRuns, records_max: int) -> tuple[SlotRuns, int]:
    """Returns the runs of the first slots that have so many records together, of one at least."""
    ends = np.cumsum(runs.count)
    begins = np.flatnonzero(np.append(True, runs.slot[1:] != runs.slot[:-1]))
    of_slots = ends[np.append(begins[1:], len(runs)) - 1]
    slots = max(1, int((of_slots <= records_max).sum()))
    if slots == len(begins):
        return runs, int(runs.slot[-1])
    rows = slice(0, int(begins[slots]))
    cut = SlotRuns(runs.slot[rows], runs.first_pos[rows], runs.count[rows])
    return cut, int(runs.slot[rows.stop]) - 1
