"""A timeline in RocksDB: one key for each run, ordered by slot.

    key    slot (8 bytes, big-endian), log position of the run's first record (8)
    value  number of its records (4)
    key    0xff… (8 bytes), batch (8): its runs come with it in one atomic write

No key is ever written with another value: a reader keeps in memory what it has read from a log that
is a table by now, and would take that for newer than the table once a compaction has dropped the
table's sequence numbers. It may also see keys that were deleted, all of which are passed.

It lies beside the logs, which have everything else of a record. There is no ring and no chain:
every slot is within reach, and the log's prev_pos stays NO_POSITION; records of the wheel's time
keep theirs, which nothing here reads.

rocksdb_files.py    the databases of a data directory: made, opened, named
rocksdb_check.py    a database, compared with the log

One process writes: ingest, for life; or, while there is no ingest, dequeue for the moment in which
it appends an interrupted batch, under engine.lock. All others read: what was there when they
opened it, and from the first `refresh` on as a secondary, which sees what was written before that.
The write-ahead log is not synced: the page cache outlives a process, and a loss of power is
followed by a rebuild from the logs.

Cost: 0.3 µs for each run that is written, the same for each that is read; half a millisecond for
the first refresh after a batch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from rocksdict import Rdict, ReadOptions, WriteBatch

from duewheel.checkpoints.commit_and_close_pages import Commit
from duewheel.checkpoints.fs import HOST_FS, FileSystem
from duewheel.errors import CorruptFile, Locked, RecoveryPending
from duewheel.schemas.arrays import Int64
from duewheel.wheel.slots import LATEST_SLOT, WheelConfig
from duewheel.wheel.storage.byte_layouts import NO_POSITION
from duewheel.wheel.storage.log_scan import count_between
from duewheel.wheel.storage.runs import OnProgress, Runs, SlotRuns
from duewheel.wheel.storage.timelines import rocksdb_files
from duewheel.wheel.storage.timelines.rocksdb_check import RocksdbVerifier
from duewheel.wheel.storage.timelines.timeline import DirectoryFiles, Timeline

_KEY_BYTES = 16
_COUNT_BYTES = 4
_BATCHES = b"\xff" * 8  # behind the last slot
_FIRST = bytes(_KEY_BYTES)
_KEYS_AT_ONCE = 1 << 12
_CATCH_UPS = 3
_TRIES, _TRY_AGAIN_S = 100, 0.01


class RocksdbTimeline(Timeline):
    """The database of one data directory; see the module's head. Not thread-safe."""

    def __init__(self, directory: DirectoryFiles) -> None:
        """Opens the database to read.

        Raises:
            CorruptFile: it is missing or damaged.
        """
        super().__init__(directory)
        self._path = path = directory.path
        self._writes = False
        self._forgotten = 0  # the runs of slots below it are dropped
        self._number = rocksdb_files.newest(path)
        self._messages: Path | None = None  # of a secondary
        self._seen = 0  # `applied` before it last caught up
        self._db = rocksdb_files.as_it_is(path, self._number)

    # ---- its files -------------------------------------------------------------------------

    @classmethod
    def exists(cls, path: Path, config: WheelConfig, fs: FileSystem) -> bool:
        """As Timeline: opens it."""
        try:
            rocksdb_files.close(rocksdb_files.as_it_is(path, rocksdb_files.newest(path)))
        except CorruptFile:
            return False
        return True

    @classmethod
    def create(
        cls, path: Path, config: WheelConfig, progress: OnProgress, fs: FileSystem
    ) -> rocksdb_files.NewRocksdb:
        """As Timeline."""
        return rocksdb_files.NewRocksdb(path, fs)

    def hold(self) -> None:
        """As Timeline: opens it to write, for life."""
        self._close_database()
        self._writes = True
        for other in rocksdb_files.numbers(self._path):
            if other != self._number:
                self._directory.fs.remove_tree(rocksdb_files.database(self._path, other))
        self._db = rocksdb_files.opened_to_write(self._path, self._number)
        rocksdb_files.remove_dead_readers(self._path)

    def close(self) -> None:
        """As Timeline."""
        self._close_database()

    def _open_to_read(self) -> None:
        self._number = rocksdb_files.newest(self._path)
        self._db, self._messages = rocksdb_files.secondary(self._path, self._number)

    def _close_database(self) -> None:
        rocksdb_files.close(self._db)
        if self._messages is not None:
            HOST_FS.remove_tree(self._messages)
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
        written.put(_batch_key(batch), b"")
        self._write(written)

    def link(self, runs: Runs, batch: int) -> None:
        """As Timeline: each run has a key of its own."""
        self.append(runs, batch)

    def clear(self, batch: int) -> None:
        """As Timeline: in a new database, for the old one may be damaged."""
        assert self._writes, "only ingest recovers"
        self._close_database()
        old, self._number = self._number, self._number + 1
        rocksdb_files.make(rocksdb_files.database(self._path, self._number), self._directory.fs)
        self._db = rocksdb_files.opened_to_write(self._path, self._number)
        self._forgotten = 0
        empty = WriteBatch(raw_mode=True)
        empty.put(_batch_key(batch), b"")
        self._write(empty)
        self._directory.fs.remove_tree(rocksdb_files.database(self._path, old))

    def forget_below(self, slot: int) -> None:
        """As Timeline."""
        if slot > self._forgotten:
            dropped = WriteBatch(raw_mode=True)
            dropped.delete_range(_FIRST, _key(slot))
            dropped.delete_range(_BATCHES, _batch_key(self.newest_batch(0)))
            self._write(dropped)
            self._forgotten = slot

    def _write(self, batch: WriteBatch) -> None:
        if self._writes:
            _checked_write(self._db, batch, self._path)
            return
        self._close_database()
        self._number = rocksdb_files.newest(self._path)
        writer = self._opened_after_a_kill()
        try:
            _checked_write(writer, batch, self._path)
        finally:
            rocksdb_files.close(writer)
            self._open_to_read()

    def _opened_after_a_kill(self) -> Rdict:
        """Opens it to write, in the place of an ingest that has ended: the system may release
        engine.lock a moment before RocksDB's own lock.
        """
        for _ in range(_TRIES):
            with suppress(Locked):
                return rocksdb_files.opened_to_write(self._path, self._number)
            time.sleep(_TRY_AGAIN_S)
        return rocksdb_files.opened_to_write(self._path, self._number)

    # ---- reading ---------------------------------------------------------------------------

    def refresh(self, batch: int = 0) -> None:
        """As Timeline. RocksDB does not say that its log was cut, or removed beside a reader that
        was about to open it: only the batch shows that runs are missing.
        """
        if not self._writes:
            self._follow()
        for _ in range(_CATCH_UPS):
            if (newest := self.newest_batch(batch)) >= batch:
                return
            if not self._writes:
                self._catch_up()
        detail = f"batch {newest} is the newest, {batch} was appended"
        raise CorruptFile(rocksdb_files.database(self._path, self._number), 0, detail)

    def _follow(self) -> None:
        """Catches up; after a rebuild by another process, in the new database. Without a new batch
        there is nothing to catch up with: that costs half a millisecond, at every slot's end.
        """
        # Read first: a batch is marked once all of its runs are written.
        applied = self._directory.state.applied
        if self._messages is None or rocksdb_files.newest(self._path) != self._number:
            self._close_database()
            self._open_to_read()
            self._catch_up()
        elif applied != self._seen:
            self._catch_up()
        self._seen = applied

    def _catch_up(self) -> None:
        """Reads what was written since. RocksDB reads first which tables there are, then the logs
        that it finds: of a log that becomes a table in between, a reader would see neither.
        """
        with self._damage():
            while True:
                logs = rocksdb_files.logs(self._path, self._number)
                self._db.try_catch_up_with_primary()
                if logs <= rocksdb_files.logs(self._path, self._number):
                    return

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
        files = self._directory
        precision_ms, commit = files.config.precision_ms, files.state.commit()
        return count_between(files.log, precision_ms, commit, after, until)

    def is_empty(self, after: int, until: int) -> bool:
        """As Timeline."""
        return next(self._scan(after, until, 1), None) is None

    def newest_batch(self, near: int) -> int:
        """As Timeline: that of the last key."""
        with self._damage():
            at = self._db.iter()
            at.seek_to_last()
            last: bytes = at.key() if at.valid() else b""
            at.status()
        return int.from_bytes(last[8:], "big") if last.startswith(_BATCHES) else 0

    def verifier(self, lower: int, linked: int, *, alone: bool = False) -> RocksdbVerifier:
        """As Timeline: nobody refreshes this object during the check."""
        name = f"{rocksdb_files.FOLDER}/{self._number:010}"
        return RocksdbVerifier(self, name, lower, linked, self._directory.config)

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
            found = rocksdb_files.database(self._path, self._number)
            raise rocksdb_files.as_raised(found, error) from error


def _checked_write(db: Rdict, batch: WriteBatch, path: Path) -> None:
    try:
        db.write(batch)
    except Exception as error:
        # The commit page is written: the next start appends the batch again.
        raise RecoveryPending(f"{path / rocksdb_files.FOLDER} takes no write: {error}") from error


def _key(slot: int) -> bytes:
    return max(slot, 0).to_bytes(8, "big") + bytes(8)


def _batch_key(batch: int) -> bytes:
    return _BATCHES + batch.to_bytes(8, "big")


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
