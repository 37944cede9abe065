"""The seam of the timelines: which records leave in which slot.

    append/staged_batch     a new run      ──► predecessors
    storage/data_directory  a batch's runs ──► append      under engine.lock, behind the commit page
    storage/far_slots       far runs       ──► link        once they come within reach
    dequeue/slot_scan       closed slots   ──► runs        in delivery order
    recovery/rebuild        kept logs      ──► clear, link
    storage/full_check      a snapshot     ──► Verifier    against the logs, hour by hour

Everything else is the logs' and common to all timelines: the records with their ids, levels and
marks of cancelled timers, the messages, the commit page and its lengths. So a timeline is derived:
it can be made again from the logs, a batch that it has half taken is appended once more, and what
it lacks is damage, which it must find: a slot that seems empty is delivered as empty.

What a method has written lies in files of the data directory when it returns, so a kill loses
nothing; a clean stop syncs all files there, and a start after a loss of power builds the timeline
again. Each process has an object of its own, which a start opens under engine.lock. In dequeue a
thread reads closed slots (`runs`, `require_sound`) while another one links later ones or
refreshes. There are two:

    wheel      a ring of slots, each with a chain of runs in the log    wheel_timeline.py
    rocksdb    a key for each run, ordered by slot                      rocksdb_timeline.py

A third one is a subclass of `Timeline` and one of `Verifier`, a name in `TimelineKind` (slots.py),
and a line in `FILES` and `timeline_class` (kinds.py); the tests in
tests/unit/wheel/storage/timelines/test_kinds.py say what all must do.
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
    """An opened data directory, as far as its timeline needs it.

    Attributes:
        path: the data directory.
        config: its geometry.
        state, log: its opened files.
        fs: where it lies.
    """

    path: Path
    config: WheelConfig
    state: State
    log: TimerLog
    fs: FileSystem


class Timeline(ABC):
    """One data directory's runs by slot; see the module's head."""

    @abstractmethod
    def __init__(self, directory: DirectoryFiles) -> None:
        """Opens its files to read.

        Raises:
            CorruptFile: the timeline is damaged or missing.
            OSError: the host refuses: no descriptor is left, for example.
        """
        self._directory = directory

    # ---- its files -------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def exists(cls, path: Path, config: WheelConfig, fs: FileSystem) -> bool:
        """Returns whether the directory at `path` has a timeline of this kind and geometry, which
        can be opened. Processes may write to it meanwhile.

        Raises:
            OSError: the host refuses, which is no damage.
        """

    @classmethod
    @abstractmethod
    def create(
        cls, path: Path, config: WheelConfig, progress: OnProgress, fs: FileSystem
    ) -> NewTimeline:
        """Writes and syncs the files of an empty timeline, which the caller then puts in place.

        Args:
            path: the data directory.
            config: its geometry.
            progress: called with bytes done and bytes in all.
            fs: where it is made.

        Raises:
            DiskFull: the file system has too little room.
        """

    def hold(self) -> None:  # noqa: B027 - most timelines have nothing to do
        """Opens the files to write for as long as this object lives. Called by ingest's start,
        under engine.lock.

        Raises:
            CorruptFile: they are damaged. Then only `clear` works, which makes others.
        """

    @abstractmethod
    def close(self) -> None:
        """Closes the files."""

    # ---- writing, under engine.lock: ingest; or dequeue, `append` and `link` only, unheld ----

    @abstractmethod
    def reach(self, lower: int) -> int:
        """Computes the last slot whose runs can be here once every slot up to `lower` is delivered.
        Runs of later slots wait in the logs (far_slots.py).
        """

    @abstractmethod
    def predecessors(self, slots: Int64, before: Int64, commit: Commit) -> Int64:
        """Returns what `prev_pos` of the first record of a new run in each slot must be: the slot's
        newest committed record, or NO_POSITION where there is none or the timeline needs none.

        Args:
            slots: not delivered yet, rising.
            before: of each, the log position of its new record.
            commit: the newest.

        Raises:
            CorruptFile: the slot's runs cannot be found.
        """

    @abstractmethod
    def append(self, runs: Runs, batch: int) -> None:
        """Adds a batch's runs, maybe none, behind those of each slot; from then on the batch is the
        newest. A second call, also after a kill during the first, changes nothing.

        Raises:
            RecoveryPending: nothing can be written now; the next start appends the batch again.
        """

    @abstractmethod
    def link(self, runs: Runs, batch: int) -> None:
        """Adds runs of many batches, several per slot, oldest first, for a rebuild or for slots
        that come within reach. A slot's first run replaces what the slot had.
        """

    @abstractmethod
    def clear(self, batch: int) -> None:
        """Empties every slot.

        Args:
            batch: of the commit page that says so, which is written afterwards.
        """

    @abstractmethod
    def forget_below(self, slot: int) -> None:
        """Drops the runs of slots below `slot`: their hours are delivered and unlinked. Called with
        each batch.
        """

    # ---- reading ---------------------------------------------------------------------------

    @abstractmethod
    def refresh(self, batch: int = 0) -> None:
        """Lets the next reads see every batch that was applied before this call, by any process:
        all, under engine.lock.

        Args:
            batch: one that is known to be applied.

        Raises:
            CorruptFile: the timeline is damaged, or lacks the batch.
            RecoveryPending: another timeline has taken the place of the one that is open.
        """

    @abstractmethod
    def require_sound(self, after: int, until: int) -> None:
        """Refuses slots after < s ≤ until that only seem to be empty, because of damage. Valid
        before their delivery. The interval must not be longer than the ring.

        Raises:
            CorruptFile: names the first such slot.
        """

    @abstractmethod
    def runs(self, after: int, until: int, records_max: int) -> tuple[SlotRuns, int]:
        """Finds the runs of the first slots of after < s ≤ until, up to a number of records; but of
        one slot at least. The interval must lie in one hour, and not be longer than the ring.

        Returns:
            The runs, and the last slot that they cover: `until` if there are no more.

        Raises:
            CorruptFile: a slot's runs contradict the log.
        """

    @abstractmethod
    def count(self, after: int, until: int) -> int:
        """Counts the records of the slots after < s ≤ until."""

    def is_empty(self, after: int, until: int) -> bool:
        """Returns whether no slot of after < s ≤ until has a record."""
        return self.count(after, until) == 0

    @abstractmethod
    def newest_batch(self, near: int) -> int:
        """Returns the newest batch that was appended, 0 if there is none.

        Args:
            near: a number that is known to be close to it.
        """

    @abstractmethod
    def verifier(self, lower: int, linked: int, *, alone: bool = False) -> Verifier:
        """Takes a snapshot for a check. Under engine.lock.

        Args:
            lower: slots up to this one are delivered.
            linked: slots above this one are not here yet.
            alone: whether no process writes before the check has ended: nothing need be copied.
        """


class NewTimeline(Protocol):
    """The files of a timeline that is not in place yet."""

    def put_in_place(self) -> None:
        """Renames them, durably."""

    def close(self) -> None:
        """Closes them; removes them if they are not in place."""


class Verifier(ABC):
    """A snapshot of a timeline, compared with the logs."""

    @abstractmethod
    def newest_batch(self, near: int) -> int:
        """As `Timeline.newest_batch`."""

    @abstractmethod
    def misplaced(self) -> Iterator[Finding]:
        """Finds what belongs to no slot at all."""

    @abstractmethod
    def of_hour(self, hour: int) -> HourVerifier:
        """Begins the comparison of an hour."""


class HourVerifier(ABC):
    """Compares an hour's log with the timeline, in slots that are not delivered."""

    @abstractmethod
    def follow(self, runs: Runs, log_name: str) -> Iterator[Finding]:
        """Adds the log's next runs; finds those that do not continue their slot's last one."""

    @abstractmethod
    def end(self) -> Iterator[Finding]:
        """Finds slots that have other runs in the timeline than in the log."""
