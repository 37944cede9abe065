"""A timeline in RocksDB: one key for each run, ordered by slot, and one for each batch, which comes
with its runs in one atomic write.

So runs are missing if the key of a batch is. RocksDB opens a database that has lost files without
an error, and a secondary skips a table that it cannot open. `forget_below` drops the keys of
batches one call later than their runs: a new table that a secondary has missed has keys that are
required. It has an older table open; before it opens the database again, each table must open.

No key is ever written with another value: a reader keeps in memory the entries of a log that is a
table by now, and would take them for newer than the table once a compaction has dropped the table's
sequence numbers. It may also see keys that were deleted, all of slots that are delivered.

The logs have everything else of a record. There is no ring and no chain: every slot is within
reach, and the log's prev_pos stays NO_POSITION; records of the wheel's time keep theirs, which
nothing here reads.

rocksdb_files.py    the databases of a data directory: made, opened, named
rocksdb_readers.py  the folders of readers
rocksdb_keys.py     the formats of keys and values
rocksdb_check.py    a database, compared with the log

One process writes: ingest, for life; or, while there is no ingest, dequeue for the moment in which
it appends an interrupted batch, under engine.lock. All others read: its state when they opened it,
and from the first `refresh` on, as a secondary, its state at the last one. The write-ahead log is
not synced: the page cache outlives a process, and a loss of power is followed by a rebuild from the
logs.

Cost: 0.3 µs for each run that is written, the same for each that is read; half a millisecond for
the first refresh after a batch; where files have changed, 0.25 µs for each batch that is kept, 9 ms
for two hours of five a second.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from rocksdict import Rdict, ReadOptions, WriteBatch

from duewheel.checkpoints.commit_and_close_pages import Commit
from duewheel.checkpoints.fs import FileSystem
from duewheel.errors import CorruptFile, Locked, RecoveryPending
from duewheel.schemas.arrays import Int64
from duewheel.wheel.slots import LATEST_SLOT, WheelConfig
from duewheel.wheel.storage.byte_layouts import NO_POSITION
from duewheel.wheel.storage.log_scan import count_between
from duewheel.wheel.storage.runs import OnProgress, Runs, SlotRuns
from duewheel.wheel.storage.timelines import rocksdb_files
from duewheel.wheel.storage.timelines.rocksdb_check import RocksdbVerifier
from duewheel.wheel.storage.timelines.rocksdb_keys import (
    BATCHES,
    COUNT_BYTES,
    END,
    FIRST,
    FIRST_KEPT,
    KEY_BYTES,
    counts_in,
    decoded,
    encoded,
    numbered_key,
    slot_key,
    whole_slots,
)
from duewheel.wheel.storage.timelines.rocksdb_readers import ReaderFolder, remove_dead_readers
from duewheel.wheel.storage.timelines.timeline import DirectoryFiles, Timeline

_KEYS_AT_ONCE = 1 << 12
_NEVER = -1
_TRIES, _TRY_AGAIN_S = 100, 0.01


class RocksdbTimeline(Timeline):
    """The database of one data directory; see the module's head. Not thread-safe: as every slot is
    within reach, dequeue refreshes it only between two closed ranges.
    """

    def __init__(self, directory: DirectoryFiles) -> None:
        super().__init__(directory)
        self._path = path = directory.path
        self._writes = False
        self._forgotten = 0  # runs of slots below it are dropped
        self._newest_then = 0  # the newest batch when they were dropped; 0: not by this object
        self._number = rocksdb_files.newest(path)
        self._messages: ReaderFolder | None = None  # of a secondary
        self._seen = _NEVER  # `applied` before a secondary last caught up
        self._identity = ""
        self._files: rocksdb_files.Files | None = None  # when it last had each batch
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
        return rocksdb_files.NewRocksdb(path, fs)

    def hold(self) -> None:
        """As Timeline: opens it to write, for life."""
        self._close_database()
        self._writes = True
        for other in rocksdb_files.numbers(self._path):
            if other != self._number:
                self._directory.fs.remove_tree(rocksdb_files.database(self._path, other))
        self._db = rocksdb_files.opened_to_write(self._path, self._number)
        remove_dead_readers(self._path)
        self._require_each_batch()

    def close(self) -> None:
        self._close_database()

    def _open_to_read(self) -> None:
        self._seen, self._files = _NEVER, None
        self._number = rocksdb_files.newest(self._path)
        self._identity = rocksdb_files.identity(self._path, self._number)
        self._db, self._messages = rocksdb_files.secondary(self._path, self._number)

    def _close_database(self) -> None:
        rocksdb_files.close(self._db)
        if self._messages is not None:
            self._messages.remove()
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
        keys, counts = encoded(runs)
        for at in range(len(runs)):
            key = keys[at * KEY_BYTES : (at + 1) * KEY_BYTES]
            written.put(key, counts[at * COUNT_BYTES : (at + 1) * COUNT_BYTES])
        written.put(numbered_key(BATCHES, batch), b"")
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
        self._forgotten = self._newest_then = 0
        empty = WriteBatch(raw_mode=True)
        empty.put(numbered_key(FIRST_KEPT, batch), b"")
        empty.put(numbered_key(BATCHES, batch), b"")
        self._write(empty)
        self._directory.fs.remove_tree(rocksdb_files.database(self._path, old))

    def forget_below(self, slot: int) -> None:
        if slot > self._forgotten:
            newest, first = self.newest_batch(0), self._newest_then
            dropped = WriteBatch(raw_mode=True)
            dropped.delete_range(FIRST, slot_key(slot))
            if first:
                for kind in (FIRST_KEPT, BATCHES):
                    dropped.delete_range(kind, numbered_key(kind, first))
                dropped.put(numbered_key(FIRST_KEPT, first), b"")
            self._write(dropped)
            self._forgotten, self._newest_then = slot, newest

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
        """Opens it to write after an ingest has ended: the system may release engine.lock a moment
        before RocksDB's own lock.
        """
        for _ in range(_TRIES):
            with suppress(Locked):
                return rocksdb_files.opened_to_write(self._path, self._number)
            time.sleep(_TRY_AGAIN_S)
        return rocksdb_files.opened_to_write(self._path, self._number)

    # ---- reading ---------------------------------------------------------------------------

    def refresh(self, batch: int = 0) -> None:
        if not self._writes:
            self._follow()
        if (newest := self.newest_batch(batch)) < batch:
            raise self._corrupt(f"batch {newest} is the newest, {batch} was appended")

    def _follow(self) -> None:
        """Catches up; after a rebuild by another process, in the new database. Without a new batch
        it does nothing: catching up costs half a millisecond, at every slot's end.

        The database may be removed or replaced at this moment, and an error half-way may leave the
        reader without a part. So it is opened again; an error that remains is the database's.
        """
        # Before the catch-up: a batch is marked once its runs are written. Read after it, the
        # number could be that of a batch which this reader has not seen, and would never catch up
        # with.
        applied = self._directory.state.applied
        if self._messages is not None and rocksdb_files.newest(self._path) == self._number:
            if applied == self._seen:
                return
            with suppress(CorruptFile, OSError):
                self._catch_up()
                self._seen = applied
                return
        self._close_database()
        if self._identity:
            # Not the first time: since then a table may have been damaged.
            self._require_each_table()
        self._open_to_read()
        self._catch_up()
        self._seen = applied

    def _require_each_table(self) -> None:
        """Refuses a database with a table that cannot be opened, which a secondary would skip.

        Raises:
            CorruptFile: names the table.
        """
        number = rocksdb_files.newest(self._path)
        rocksdb_files.close(rocksdb_files.as_it_is(self._path, number))

    def _catch_up(self) -> None:
        """Reads new writes. RocksDB reads one file after the other: if a log becomes a table
        meanwhile, or a table is compacted, a reader has neither the old file nor the new one,
        without an error. So it reads again until no file has changed.
        """
        with self._damage():
            if rocksdb_files.identity(self._path, self._number) != self._identity:
                raise self._corrupt("another database has its place")
            files = rocksdb_files.files(self._path, self._number)
            while True:
                self._db.try_catch_up_with_primary()
                before, files = files, rocksdb_files.files(self._path, self._number)
                if files == before:
                    break
        if files != self._files:
            self._require_each_batch()
            self._files = files

    def _require_each_batch(self) -> None:
        """Refuses a database that lacks a batch, and its runs with it.

        Raises:
            CorruptFile: with the number that it has, and should have.
        """
        first = newest = found = 0
        for keys, _ in self._between(FIRST_KEPT, END):
            kind, number = np.frombuffer(keys, ">i8").astype(np.int64).reshape(-1, 2).T
            is_batch = kind == -1
            # These keys come before those of the batches.
            first = max(first, int(number[~is_batch].max(initial=0)))
            kept = number[is_batch & (number >= first)]
            found += len(kept)
            newest = int(kept.max(initial=max(first, newest)))
        if max(first, newest) and found != newest - first + 1:
            raise self._corrupt(f"it has {found} of the batches {first} to {newest}")

    def require_sound(self, after: int, until: int) -> None:
        """As Timeline: RocksDB has checksums, and a scan fails at the first that does not match."""

    def runs(self, after: int, until: int, records_max: int) -> tuple[SlotRuns, int]:
        keys, counts, records = bytearray(), bytearray(), 0
        for some_keys, some_counts in self._scan(after, until):
            keys += some_keys
            counts += some_counts
            records += int(counts_in(some_counts).sum())
            # A slot is whole once a key of a later one is there.
            if records > records_max and keys[:8] != keys[-KEY_BYTES : -KEY_BYTES + 8]:
                break
        found = decoded(keys, counts)
        if records <= records_max:
            return found, until
        return whole_slots(found, records_max)

    def count(self, after: int, until: int) -> int:
        """As Timeline: in the logs, 50 to 100 million records a second."""
        files = self._directory
        precision_ms, commit = files.config.precision_ms, files.state.commit()
        return count_between(files.log, precision_ms, commit, after, until)

    def is_empty(self, after: int, until: int) -> bool:
        return next(self._scan(after, until, 1), None) is None

    def newest_batch(self, near: int) -> int:
        """As Timeline: that of the last key."""
        with self._damage():
            at = self._db.iter()
            at.seek_to_last()
            last: bytes = at.key() if at.valid() else b""
            at.status()
        return int.from_bytes(last[8:], "big") if last.startswith(BATCHES) else 0

    def verifier(self, lower: int, linked: int, *, alone: bool = False) -> RocksdbVerifier:
        """As Timeline: this object is not refreshed during the check."""
        name = f"{rocksdb_files.FOLDER}/{self._number:010}"
        return RocksdbVerifier(self, name, lower, linked, self._directory.config)

    def _scan(
        self, after: int, until: int, keys_max: int = _KEYS_AT_ONCE
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yields keys and values of the slots after < s ≤ until, up to `keys_max` at a time."""
        yield from self._between(slot_key(after + 1), slot_key(until + 1), keys_max)

    def _between(
        self, first: bytes, end: bytes, keys_max: int = _KEYS_AT_ONCE
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yields keys and values from key `first` up to `end`, which it excludes. Not by `items()`:
        at damage it would end as if no key followed.
        """
        # RocksDB does not copy the bound: without the variable its bytes would be freed, and the
        # scan would end anywhere.
        bounds = ReadOptions()
        bounds.set_iterate_upper_bound(end)
        with self._damage():
            at = self._db.iter(bounds)
            at.seek(first)
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

    def _corrupt(self, detail: str) -> CorruptFile:
        return CorruptFile(rocksdb_files.database(self._path, self._number), 0, detail)


def _checked_write(db: Rdict, batch: WriteBatch, path: Path) -> None:
    try:
        db.write(batch)
    except Exception as error:
        # The commit page is written: the next start appends the batch again.
        raise RecoveryPending(f"{path / rocksdb_files.FOLDER} takes no write: {error}") from error
