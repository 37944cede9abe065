"""The seam of the timelines, which find the records of a slot.

A timeline has the runs of each slot, oldest first; a run is a row of neighbouring records in the
log of the slot's hour (storage/runs.py). All timelines share the other files: records with their
ids, levels and marks of cancelled timers, messages, commit page.

    who                         when                                      calls
    storage/creation            at a start                                exists, create
                                at a start, before engine.lock            newest_batch
    storage/data_directory      ingest starts                             hold
                                engine.lock is taken                      refresh
                                a batch has its commit page               append
    append/staged_batch         a batch's records are written             predecessors
    storage/garbage_collection  with each batch                           forget_below
    storage/far_slots           slots come within reach                   reach, link
    dequeue/slot_scan           slots are closed                          require_sound, runs
    dequeue/loop                before it closes slots; at its start      is_empty, count
    dequeue/prefetch, inspect   beside the others, without a lock         refresh, runs
    recovery/rebuild            a recovery                                reach, clear, link
    storage/full_check          `duewheel check`, or a recovery           verifier

Every timeline keeps these rules:

- It is derived: all of it can be made again from the logs.
- It lacks nothing unnoticed: a slot without runs is delivered as empty. After `refresh` a reader
  finds each run that was appended before, whatever the writer does meanwhile, or an error says that
  something is missing.
- A kill loses nothing and spoils nothing: a method returns once its writes are in files of the data
  directory, and an interrupted one is called again. Only a clean stop syncs these files: a start
  after a loss of power builds the timeline again.
- It distinguishes damage from a host that refuses. CorruptFile leads to a recovery, which may read
  all pending timers again from Kafka. After an OSError (a full disk, no descriptor left) the
  process ends, and starts again. Each method that opens or reads files may raise both.
- Each process has an object of its own. One process writes, under engine.lock: ingest, once it has
  called `hold`; while there is no ingest, dequeue, which then finishes a killed ingest's batch, and
  links. The others read. In dequeue one thread reads closed slots (`runs`, `require_sound`) while
  another one links later slots, and refreshes for that; never if every slot is within reach.

There are two:

    wheel      a ring of slots, each with a chain of runs in the log    wheel_timeline.py
    rocksdb    a key for each run, ordered by slot                      rocksdb_timeline.py

A ring is finite, so it has a *reach*: runs of later slots wait in the logs, and are linked once the
ring comes to them. RocksDB reaches every slot.

A third one is a subclass of `Timeline` and one of `Verifier`, a name in `TimelineKind` (slots.py),
and a line in `FILES` and `timeline_class` (kinds.py); a library that it needs is an extra
(extras.py). tests/unit/wheel/storage/timelines/test_kinds.py tests all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from duewheel.checkpoints.commit_and_close_pages import Commit
from duewheel.checkpoints.fs import FileSystem
from duewheel.checkpoints.state_file import State
from duewheel.schemas.arrays import Int64
from duewheel.wheel.slots import WheelConfig
from duewheel.wheel.storage.findings import Finding
from duewheel.wheel.storage.runs import OnProgress, Runs, SlotRuns
from duewheel.wheel.storage.timer_log import TimerLog


@dataclass(frozen=True, slots=True)
class DirectoryFiles:
    """The opened files of a data directory that its timeline needs."""

    path: Path
    config: WheelConfig
    state: State
    log: TimerLog
    fs: FileSystem


class Timeline(ABC):
    """One data directory's runs by slot; see the module's head.

    An interval of slots after < s ≤ until is within one hour, and not longer than `config.ring`,
    unless a method says otherwise.
    """

    @abstractmethod
    def __init__(self, directory: DirectoryFiles) -> None:
        """Opens its files. Before the first `refresh` it may read an old state.

        Raises:
            CorruptFile: the timeline is damaged or missing.
            OSError: the host refuses: no descriptor is left, for example.
        """
        self._directory = directory

    # ---- its files -------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def exists(cls, path: Path, config: WheelConfig, fs: FileSystem) -> bool:
        """Returns whether the directory at `path` has a timeline of this kind and geometry that can
        be opened. Processes may write to it meanwhile.

        Raises:
            OSError: the host refuses, which is no damage.
        """

    @classmethod
    @abstractmethod
    def create(
        cls, path: Path, config: WheelConfig, progress: OnProgress, fs: FileSystem
    ) -> NewTimeline:
        """Writes and syncs the files of an empty timeline, which the caller then puts in place.
        `progress` gets bytes done and bytes in all.

        Raises:
            DiskFull: the file system has too little room.
        """

    def hold(self) -> None:  # noqa: B027 - most timelines have nothing to do
        """Prepares to write for as long as this object lives. Called by ingest's start, under
        engine.lock.

        Raises:
            CorruptFile: the files are damaged. Then only `clear` and `close` work.
            Locked: another process still writes.
        """

    @abstractmethod
    def close(self) -> None:
        """Closes the files."""

    # ---- writing, under engine.lock --------------------------------------------------------

    @abstractmethod
    def reach(self, lower: int) -> int:
        """Computes the last slot that has room for runs once every slot up to `lower` is delivered:
        the most that `state.linked` can be. No run of a later slot is appended or linked.
        """

    @abstractmethod
    def predecessors(self, slots: Int64, before: Int64, commit: Commit) -> Int64:
        """Returns the `prev_pos` for the first record of each new run, also beyond the reach: the
        position of the slot's newest committed record; NO_POSITION if there is none, or the
        timeline has no use for it. `slots` are not delivered yet, and rise; `before` is the log
        position of each new record.

        Raises:
            CorruptFile: the slot's runs cannot be found.
        """

    @abstractmethod
    def append(self, runs: Runs, batch: int) -> None:
        """Adds a batch's runs, maybe none, after those of each slot; from then on the batch is the
        newest. Every batch is appended, in order. A second call, also after a kill during the
        first, changes nothing. All runs are of slots that are not delivered, and within reach.

        Raises:
            RecoveryPending: nothing can be written now; the next start appends the batch again.
            Locked: in dequeue, while an ingest lives.
        """

    @abstractmethod
    def link(self, runs: Runs, batch: int) -> None:
        """Adds runs of many batches, oldest first, of slots that have none since `clear`, or of
        slots that come within reach: runs of an interrupted call, or of a slot delivered long ago,
        may be there, which the slot's first run replaces. Several runs of a slot may come, also in
        several calls of a rebuild. `batch` is the newest in the logs.
        """

    @abstractmethod
    def clear(self, batch: int) -> None:
        """Empties every slot, whatever the damage. Only after `hold`, which may have failed.
        `batch` is the newest from now on, though its commit page is written afterwards.
        """

    @abstractmethod
    def forget_below(self, slot: int) -> None:
        """Drops the runs of slots below `slot`, if that saves anything: their hours are delivered,
        and their logs unlinked. Called with each batch, mostly with the same slot.
        """

    # ---- reading ---------------------------------------------------------------------------

    @abstractmethod
    def refresh(self, batch: int = 0) -> None:
        """Makes the next reads see every batch that any process has marked as applied before this
        call; `batch` is one of them, the newest that the caller knows. Without engine.lock they may
        also see later ones.

        Raises:
            CorruptFile: the timeline is damaged, or lacks a batch.
            RecoveryPending: another timeline has replaced the one that is open.
        """

    @abstractmethod
    def require_sound(self, after: int, until: int) -> None:
        """Refuses slots after < s ≤ until, not delivered yet and maybe of several hours, that only
        seem empty because of damage that `runs` does not find.

        Raises:
            CorruptFile: names the first such slot.
        """

    @abstractmethod
    def runs(self, after: int, until: int, records_max: int) -> tuple[SlotRuns, int]:
        """Finds the runs of the first slots of after < s ≤ until: of as many whole slots as have up
        to `records_max` records together, but of one at least. Also returns the last slot that they
        cover: `until` if there are no more.

        Raises:
            CorruptFile: a slot's runs contradict the log.
        """

    @abstractmethod
    def count(self, after: int, until: int) -> int:
        """Counts the records of the slots after < s ≤ until, of any number of hours."""

    def is_empty(self, after: int, until: int) -> bool:
        """Returns whether no slot of after < s ≤ until has a record, maybe of several hours."""
        return self.count(after, until) == 0

    @abstractmethod
    def newest_batch(self, near: int) -> int:
        """Returns the newest batch that was appended, 0 if there is none. A page is committed
        before its batch is appended, so a number above that of the newest page means that a page is
        lost. `near` is a number close to it: a timeline may store only its lower bits.
        """

    @abstractmethod
    def verifier(self, lower: int, linked: int, *, alone: bool = False) -> Verifier:
        """Takes a snapshot for a check, under engine.lock: slots up to `lower` are delivered, those
        above `linked` are not here yet. `alone`: no process writes before the check has ended, so
        nothing need be copied.
        """


class NewTimeline(Protocol):
    """The files of a timeline that is not in place yet, made under wheel.lock alone: that may take
    minutes.
    """

    def put_in_place(self) -> None:
        """Renames them, durably. Under engine.lock."""

    def close(self) -> None:
        """Closes them; removes them if they are not in place."""


class Verifier(ABC):
    """A snapshot of a timeline, compared with the logs: first entries of no slot, then hour by
    hour, each from its first run to its last, then its end.
    """

    @abstractmethod
    def newest_batch(self, near: int) -> int:
        """As `Timeline.newest_batch`."""

    @abstractmethod
    def misplaced(self) -> Iterator[Finding]:
        """Finds entries that belong to no slot."""

    @abstractmethod
    def of_hour(self, hour: int) -> HourVerifier:
        """Begins the comparison of an hour."""


class HourVerifier(ABC):
    """Compares an hour's log with the timeline, in slots that are not delivered."""

    @abstractmethod
    def follow(self, runs: Runs, log_name: str) -> Iterator[Finding]:
        """Takes the log's next runs; finds those that do not continue their slot's last one."""

    @abstractmethod
    def end(self) -> Iterator[Finding]:
        """Finds slots that have other runs in the timeline than in the log, once all are taken."""
