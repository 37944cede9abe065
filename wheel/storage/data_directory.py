"""One shard's data directory: opens its files, holds its locks, and redoes an interrupted batch.

    state timerwheel topics timerlog/<hour> messages/<hour>     see byte_layouts.py and checkpoints/
    cancelled/<hour>                                            see cancelled_records.py
    cancels/<hour> requests/<hour>                              see cancel_log.py
    ingest.lock dequeue.lock    each held for life by the only process of its role
    engine.lock                 held for milliseconds: to commit, close, link, start, stop
    wheel.lock                  held while an empty timeline is made: a wheel may take minutes

A kill may leave a batch half applied: the next holder of engine.lock finishes it first (redo).

A clean stop: the last process to stop syncs all files, and records that in `state`; the next start
clears the record. After a boot of the host without it, bytes of the page cache may be lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Self

import numpy as np
import structlog

from duewheel.checkpoints.commit_and_close_pages import Commit, HourLengths
from duewheel.checkpoints.file_lock import ENGINE_LOCK, FileLock, lock_is_held
from duewheel.checkpoints.fs import HOST_FS, FileSystem
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.state_file import Damage, State
from duewheel.errors import CorruptFile, RecoveryPending
from duewheel.schemas.arrays import Int32, Int64
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.hashing import lookup_hashes
from duewheel.wheel.slots import LATEST_SLOT, WheelConfig, hour_of
from duewheel.wheel.storage import log_scan
from duewheel.wheel.storage.byte_layouts import MAGIC_ABANDONED
from duewheel.wheel.storage.cancel_log import CancelLog
from duewheel.wheel.storage.cancelled_records import CancelledRecords
from duewheel.wheel.storage.creation import with_files
from duewheel.wheel.storage.hour_files import HourFiles
from duewheel.wheel.storage.message_store import MessageStore, split_by_limits
from duewheel.wheel.storage.runs import OnProgress, Runs
from duewheel.wheel.storage.timelines.kinds import timeline_class
from duewheel.wheel.storage.timelines.timeline import DirectoryFiles
from duewheel.wheel.storage.timer_log import Records, TimerLog
from duewheel.wheel.storage.topic_numbers import TopicNames

log = structlog.get_logger(__name__)

# A holder needs the lock for less than a millisecond plus the apply: after this long it is stuck.
LOCK_DEADLINE_S = 10.0
_LIFE_LOCK_DEADLINE_S = 0.2


class DataDirectory:
    """The opened files: an attribute for each file and lock. Not thread-safe: one thread of one
    process owns an instance.

    A simulation's subclass has other classes for the mapped files, to count their stores.
    """

    state_class, log_class = State, TimerLog
    timeline_class = staticmethod(timeline_class)

    def __init__(self, path: Path, config: WheelConfig, fs: FileSystem = HOST_FS) -> None:
        """Opens the files of an existing directory, and makes none. Without `start` this is for
        readers (status, list).

        Raises:
            FileNotFoundError: there is no data directory at `path`.
            ConfigError: it was made with another geometry.
            CorruptFile: a file is damaged.
        """
        self.path = path
        self.config = config
        self.fs = fs
        self.state = self.state_class.open(path, fs)
        self.state.require(config.precision_ms, config.slots)
        self.log = self.log_class(path, fs)
        files = DirectoryFiles(path, config, self.state, self.log, fs)
        self.timeline = self.timeline_class(config.timeline)(files)
        self.messages = MessageStore(path, fs)
        self.cancelled = CancelledRecords(path, fs)
        self.cancels = CancelLog(path, fs)
        self.topics = TopicNames(path, fs)
        self.engine_lock = FileLock(path / ENGINE_LOCK, fs)
        self._recovered = self.state.recovered  # the recovery that made the open files
        self._life_lock: FileLock | None = None

    @classmethod
    def start(
        cls,
        path: Path,
        config: WheelConfig,
        role: Role,
        progress: OnProgress | None = None,
        fs: FileSystem = HOST_FS,
    ) -> DataDirectory:
        """Opens the directory to work in it; makes it if it is missing. `progress` gets bytes done
        and bytes in all while a timeline is made.

        Raises:
            Locked: another process has this role there, or makes the timeline and does not end.
            DiskFull: there is too little room for the timeline.
            ConfigError: the directory was made with another geometry.
            CorruptFile: a file is damaged without which no other can be read.
            PermissionError: others can read a file that another user owns.
        """
        fs.make_directory(path)
        _close_to_others(path, fs)
        life_lock = hold_role(path, role, fs)
        engine_lock = FileLock(path / ENGINE_LOCK, fs)
        try:
            directory = with_files(
                path,
                config,
                fs,
                engine_lock,
                LOCK_DEADLINE_S,
                progress,
                lambda newest_batch: cls._begin(path, config, fs, role, newest_batch),
            )
        except BaseException:
            life_lock.close()
            raise
        finally:
            engine_lock.close()
        directory._life_lock = life_lock
        return directory

    @classmethod
    def _begin(
        cls, path: Path, config: WheelConfig, fs: FileSystem, role: Role, newest_batch: int
    ) -> DataDirectory:
        """Opens the files and counts the start, under engine.lock. Records damage instead of
        refusing it: a recovery repairs that.
        """
        directory = cls(path, config, fs)
        directory._make_missing()
        directory._note_damage(newest_batch)
        directory.state.begin()
        if role is Role.INGEST:
            directory._hold_timeline()
            directory._finish_batch()
        if role is Role.DEQUEUE:
            # Before the first heartbeat: ingest must not apply the recovery record of an
            # earlier start.
            directory.state.count_dequeue_start()
        return directory

    def lookup_hashes(
        self, id_hash: Int64, partitions: Sequence[TopicPartition], partition: Int32
    ) -> Int64:
        """Computes the hashes of the rows in this directory's log records (schemas/hashing.py)."""
        return lookup_hashes(id_hash, partitions, partition, self.state.uuid)

    def _make_missing(self) -> None:
        """Makes empty folders and an empty `topics`; the commit page shows lost content."""
        for folder in (*self.hour_folders, *self.cancels.folders):
            folder.make_folder()
        self.topics.make_file()

    def _hold_timeline(self) -> None:
        """Opens the timeline to write; a recovery makes a new one if that is impossible."""
        try:
            self.timeline.hold()
        except CorruptFile as error:
            log.warning("the timeline is damaged: a new one is built", reason=str(error))
            self.state.note_damage(Damage.CACHE_LOST)

    def _finish_batch(self) -> None:
        """Applies the batch that an earlier ingest was killed in. Dequeue cannot while this process
        writes to the timeline.
        """
        if self.state.needs_recovery:
            return
        try:
            if not (commit := self.state.commit()).applied:
                self._redo(commit)
        except CorruptFile as error:
            log.warning("the interrupted batch is damaged", reason=str(error))
            self.state.note_damage(Damage.FILES_LOST)

    def _note_damage(self, newest_batch: int) -> None:
        """Records contradictions between the files as damage, under engine.lock. `newest_batch` is
        that of the timeline, read some time ago.
        """
        if self.state.needs_recovery:
            return
        try:
            self.require_whole_state(self.state.commit(), newest_batch)
        except CorruptFile as error:
            log.warning("the state file is damaged", reason=str(error))
            self.state.note_damage(Damage.CACHE_LOST)

    def require_whole_state(self, commit: Commit, newest_batch: int) -> None:
        """Refuses contradictions that only damage to the state file explains. Under engine.lock.

        Raises:
            CorruptFile: the page of the timeline's newest batch is lost: its rows would be taken
                again. Or hours are dropped that are not delivered, or segments of cancels above all
                possible ones; or slots count as linked that the ring does not reach.
        """
        path, close, live = self.state.path, self.state.close(), self.state.live
        if newest_batch > commit.batch:
            detail = (
                f"the timeline has batch {newest_batch}, the newest commit page is {commit.batch}"
            )
            raise CorruptFile(path, 0, detail)
        kept = hour_of(close.floor + 1, self.config.precision_ms) if close else 0
        if not 0 <= live.gc_hour <= kept:
            raise CorruptFile(
                path, 0, f"hours below {live.gc_hour} are dropped, {kept} is not delivered"
            )
        newest = max(commit.cancels, default=kept)  # ingest may still write to this segment
        if not 0 <= live.gc_cancels <= newest:
            detail = f"cancels below hour {live.gc_cancels} are dropped, those of {newest} are not"
            raise CorruptFile(path, 0, detail)
        most = max(self.timeline.reach(close.lower), close.floor) if close else 0
        if self.state.linked > most:
            raise CorruptFile(path, 0, f"slots up to {self.state.linked} are linked, {most} can be")

    @property
    def hour_folders(self) -> tuple[HourFiles, HourFiles, HourFiles]:
        """The folders of log, messages and cancelled records, in the order of an hour's lengths."""
        return self.log.files, self.messages.files, self.cancelled.files

    def blocks(self, hour: int, start: int, end: int) -> Iterator[tuple[Int64, Int64, Records]]:
        """Reads a part of an hour's log, as log_scan.py."""
        return log_scan.blocks(self.log, self.config.precision_ms, hour, start, end)

    def count(self, commit: Commit, after: int) -> int:
        """Counts the rows of the commit in slots later than `after`, in the logs."""
        return log_scan.count_between(
            self.log, self.config.precision_ms, commit, after, LATEST_SLOT
        )

    @contextmanager
    def locked(self) -> Iterator[Commit]:
        """Takes engine.lock, brings the timeline up to date, and yields the newest commit.

        Raises:
            Locked: a stuck process has the lock.
            RecoveryPending: the files must be recovered first.
            CorruptFile: the timeline, or the interrupted batch, is damaged.
        """
        with self.engine_lock.held(LOCK_DEADLINE_S):
            if self.state.needs_recovery:
                raise RecoveryPending(f"the files of {self.path} are to be recovered first")
            if self._recovered != self.state.recovered:
                self._reopen()
            commit = self.state.commit()
            if not commit.applied:
                self._redo(commit)
            self.timeline.refresh(commit.batch)
            yield commit

    def _redo(self, commit: Commit) -> None:
        """Applies the newest batch again, from its records in the log.

        Raises:
            CorruptFile: a record or its message is damaged; the timeline is unchanged.
        """
        batch = []
        for hour, lengths in commit.hours.items():
            if lengths.batch_from < lengths.log_bytes:
                records = self.log.read(hour, lengths.batch_from, lengths.log_bytes)
                # A damaged record could overwrite another slot's entry.
                for block in split_by_limits(records[records["magic"] != MAGIC_ABANDONED]):
                    self.messages.read(hour, block)
                start, precision_ms = lengths.batch_from, self.config.precision_ms
                batch.append(self.log.runs(hour, records, start, precision_ms))
        self.append_runs(Runs.joined(batch), commit.batch)
        for hour, lengths in commit.hours.items():
            self.mark_cancelled(hour, lengths, lengths.cancelled_from)
        # Last: a kill before it repeats all of this, which changes nothing a second time.
        self.state.mark_applied()

    def append_runs(self, runs: Runs, batch: int) -> None:
        """Adds a batch's runs to the timeline, in slots up to its reach. Under engine.lock."""
        close = self.state.close()
        assert close is not None, "there is no batch before the first closing"
        # Not those of delivered slots: a later lap of the wheel may have their entries.
        inside = (runs.slot > close.lower) & (runs.slot <= self.state.linked)
        self.timeline.append(runs.where(inside), batch)

    def mark_cancelled(self, hour: int, lengths: HourLengths, start: int) -> None:
        """Marks the log records that cancelled/<hour> names from position `start` on.

        Raises:
            CorruptFile: the file is damaged, or the log is shorter than `lengths` says.
        """
        for rows in self.cancelled.blocks(hour, start, lengths.cancelled_bytes):
            self.log.mark_cancelled(hour, lengths.log_bytes, rows["position"].astype(np.int64))

    def restore_cancelled(self, hour: int, lengths: HourLengths) -> None:
        """Marks the log records that cancelled/<hour> names, and no others: a loss of power may
        have undone marks, and may have kept marks of a batch that it has undone.

        Raises:
            CorruptFile: as `mark_cancelled`.
        """
        if lengths.log_bytes:
            self.log.remove_marks(hour, lengths.log_bytes)
        self.mark_cancelled(hour, lengths, 0)

    def _reopen(self) -> None:
        """Opens the files again after a recovery, which has unlinked the open ones."""
        self.log.close()
        self.messages.close()
        self.cancelled.close()
        self.cancels.close()
        self.topics.forget()
        self._recovered = self.state.recovered

    def mark_damaged(self, error: CorruptFile) -> RecoveryPending:
        """Records the damage durably; returns the exception to raise. The next start of dequeue
        decides on a recovery, and ingest applies it: pending timers are read again from Kafka.
        """
        log.error("a file is damaged: pending timers will be read again", reason=str(error))
        with self.engine_lock.held(LOCK_DEADLINE_S):
            self.state.note_damage(Damage.FILES_LOST)
        return RecoveryPending(f"{error}; the next start reads pending timers from Kafka again")

    def require_decided(self) -> None:
        """Refuses to wait for ingest if it has no recovery to apply: the wait would never end.

        Raises:
            RecoveryPending: damage was recorded after the last recovery: the next start of dequeue
                decides on another one.
        """
        # In this order: a recovery that is applied in between clears the damage first.
        is_applied = self.state.recovered >= self.state.generation
        if is_applied and self.state.damage is not Damage.NONE:
            raise RecoveryPending(f"the files of {self.path} are to be recovered first")

    def stop(self) -> None:
        """Gives up the role; the last process to do so syncs all files and declares a clean stop.
        On a full or failing disk the stop is not clean, and the next start recovers.
        """
        self.close()
        try:
            declare_stopped(self.path, self.fs)
        except OSError as error:
            log.warning("no clean stop", data_dir=str(self.path), reason=str(error))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files and releases the role, as a kill would."""
        if self._life_lock is not None:
            self._life_lock.close()
        self.timeline.close()
        self.log.close()
        self.messages.close()
        self.cancelled.close()
        self.cancels.close()
        self.topics.close()
        self.engine_lock.close()
        self.state.release()


def hold_role(path: Path, role: Role, fs: FileSystem = HOST_FS) -> FileLock:
    """Takes the lock that a process with this role has for life.

    Raises:
        Locked: another process has the role there.
    """
    # The short wait: a process that only tests the lock has it for a moment.
    refusal = f"{path}: {role.name.lower()} runs already"
    return FileLock.taken(path / role.lock_name, _LIFE_LOCK_DEADLINE_S, refusal, fs)


def declare_stopped(path: Path, fs: FileSystem = HOST_FS) -> bool:
    """Syncs all files and declares a clean stop, if no process works in the directory; returns
    whether it is stopped cleanly now. Also after a kill: all bytes are in the page cache, and a
    half-applied batch can be redone from the disk as well.
    """
    try:
        state = State.open(path, fs)
    except FileNotFoundError:
        return False
    with state, closing(FileLock(path / ENGINE_LOCK, fs)) as engine_lock:
        with engine_lock.held(LOCK_DEADLINE_S):
            starts = state.starts
            runs = any(lock_is_held(path / role.lock_name) for role in Role)
        # A sync of the remaining bytes does not restore the lost ones.
        if runs or state.damage is not Damage.NONE:
            return False
        if not state.stopped_cleanly:
            fs.sync_tree(path)
            with engine_lock.held(LOCK_DEADLINE_S):
                # A process may have started during the sync, and have written bytes since.
                if state.starts == starts:
                    state.set_stopped_cleanly()
        return state.stopped_cleanly


def _close_to_others(path: Path, fs: FileSystem) -> None:
    """Repairs files that an earlier version, or a copy, has left readable for all users of the
    host.
    """
    if changed := fs.close_to_others(path):
        log.warning(
            "others could read files with message bodies or the key of copies: closed to them",
            files=len(changed),
            first=str(changed[0]),
        )
