"""Ingest's side of the wheel: appends a batch of timers, all of it or nothing.

One batch:

    1. the pages of `state` decide the placement policy (placement.py); in a standby rows at or
       above C are left out (wheel/dequeue/standby.py)
    2. each row gets a slot: a rejected row the earliest; a row of a closed slot the earliest open
       one, except rows that are read again after a recovery. The timers that the batch's cancels
       may match are loaded (cancel_lookup.py); a timer with `keep` that finds one pending is left
       out (keeps.py)
    3. messages and log records are appended (staged_batch.py); nothing refers to the batch yet
    4. under engine.lock: rows of slots that were closed since 1 are written again, to the earliest
       open slot. The cancels are resolved (cancel_matches.py); their outcomes and the records that
       they cancel are appended
    5. the commit page is written: from here on the batch exists
    6. its runs are linked into the wheel, as far as the ring reaches; the others wait in their
       hours' files (far_slots.py). Cancelled records and the commit page are marked

A kill before 5 leaves uncommitted bytes at the ends of files, which the next batch overwrites; the
next start reads the same rows again, from the marks. After a kill between 5 and 6 the next holder
of the lock redoes 6. No fsync anywhere: the page cache outlives the process.

Rows of a source partition come in offset order, and are delivered in offset order within a slot: a
batch has one run per slot, in batch order, and runs follow each other in batch order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import structlog

from duewheel.checkpoints.commit_and_close_pages import Close, Commit, Marks
from duewheel.checkpoints.config_epochs import Epochs
from duewheel.checkpoints.progress import Progress
from duewheel.clock import Clock
from duewheel.errors import CorruptFile, RecoveryRefused, SettingsChange
from duewheel.schemas.arrays import Bool, Int64
from duewheel.schemas.batches import TimerBatch
from duewheel.wheel.append.cancel_files import CancelFiles
from duewheel.wheel.append.cancel_lookup import CancelLimits
from duewheel.wheel.append.far_hours import ends_before_far_hours
from duewheel.wheel.append.placement import CatchUp, Owner, PlacedRows, Policy, Standby
from duewheel.wheel.append.staged_batch import StagedBatch, cut_to_committed
from duewheel.wheel.roll_rule import requested_slots
from duewheel.wheel.slots import hour_of, slot_of
from duewheel.wheel.storage import garbage_collection
from duewheel.wheel.storage.data_directory import DataDirectory

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Appended:
    """The outcome of a batch."""

    rows: int  # the number of its timers in the wheel
    # In a standby, whether rows at or above the owner's C were left out. The marks stop before the
    # first of them; the caller appends the others again later.
    ahead: bool = False
    kept_out: int = 0  # timers with `keep` that were dropped


class Engine:
    """The only writer of log, messages, cancel log and topics while it exists. Not thread-safe.

    Dequeue writes the wheel, too, under engine.lock: it redoes a batch, and links slots that the
    ring has come to reach. The directory must have been started as INGEST, after dequeue's first
    close page.
    """

    def __init__(
        self,
        directory: DataDirectory,
        clock: Clock,
        topic_ids: Mapping[str, str] | None = None,
        cancel_limits: CancelLimits | None = None,
    ) -> None:
        """Takes over the directory: redoes an interrupted batch, truncates uncommitted bytes.
        `topic_ids` are Kafka's ids of the timer topics, kept with the marks.

        Raises:
            RecoveryRefused: no close page: dequeue has never started here. Or a topic was
                recreated: the marks are offsets of the old one.
            RecoveryPending: a file is damaged: dequeue must decide on a recovery.
        """
        self._directory = directory
        self._clock = clock
        self._topic_ids = dict(topic_ids or {})
        self._cancels = CancelFiles(directory, cancel_limits or CancelLimits())
        if directory.state.close() is None or directory.state.mirror() is None:
            raise RecoveryRefused(f"{directory.path}: dequeue must have started here once")
        self._incarnations, self._epochs = self._read_epochs()
        try:
            with directory.locked() as commit:
                require_same_topics(commit.topic_ids, self._topic_ids)
                directory.topics.require(commit.topics)
                cut_to_committed(directory, commit)
        except CorruptFile as error:
            raise directory.mark_damaged(error) from error

    def add_topic_ids(self, topic_ids: Mapping[str, str]) -> None:
        """Adds Kafka's ids of timer topics, which may be new topics.

        Raises:
            RecoveryRefused: one was recreated.
        """
        require_same_topics(self._directory.state.commit().topic_ids, topic_ids)
        self._topic_ids |= topic_ids

    @property
    def epochs(self) -> Epochs:
        """The settings epochs for the placement of rows, from the progress mirrored by dequeue."""
        return self._epochs

    def load_epochs(self) -> None:
        """Loads the settings epochs for later batches, whose rows must be parsed under them."""
        self._incarnations, self._epochs = self._read_epochs()

    def _read_epochs(self) -> tuple[tuple[int, int], Epochs]:
        # In this order: a start of dequeue writes the mirror first. Otherwise the epochs of before
        # it could seem to be those of this start.
        incarnations = self._directory.state.incarnations
        return incarnations, self._progress().epochs

    @property
    def settings_change(self) -> bool:
        """Whether `append` would raise SettingsChange now."""
        try:
            self._require_same_epochs(None)
        except SettingsChange:
            return True
        return False

    @property
    def marks(self) -> Marks:
        return self._directory.state.commit().marks

    def ends_before_far_hours(self, batch: TimerBatch) -> Marks:
        """Returns for a batch that is not taken yet the partitions that must end before a row of
        it, and where (far_hours.py). Another thread may call it while a batch is appended.
        """
        close, config = self._close(), self._directory.config
        present = max(close.floor, slot_of(self._clock.now_ms(), config.precision_ms))
        first_far = hour_of(present + config.slots, config.precision_ms) + 1
        # No slot is further than a roll window from its record's timestamp. So nearly every batch
        # ends here, without its slots, which take 15 ms for 300,000 rows.
        latest_ms = int(batch.timestamp_ms.max(initial=0)) + self._epochs.longest_window_ms
        if hour_of(slot_of(latest_ms, config.precision_ms), config.precision_ms) < first_far:
            return {}
        commit, (slot, _) = self._directory.state.commit(), self._requested_slots(batch)
        marks = {**close.marks, **commit.marks}
        taken = {p: max(mark, close.marks.get(p, 0)) for p, mark in marks.items()}
        hour = hour_of(slot, config.precision_ms)
        return ends_before_far_hours(batch, hour, commit.hours, first_far, taken)

    def closes_within(self, batch: TimerBatch, ms: int) -> Bool:
        """Returns the timers whose requested slot is closed, or closes within this time: they may
        have to be written again, under engine.lock.
        """
        config, (slot, _) = self._directory.config, self._requested_slots(batch)
        present = max(self._close().floor, slot_of(self._clock.now_ms() + ms, config.precision_ms))
        closes: Bool = batch.timer & (slot <= present)
        return closes

    def append(self, batch: TimerBatch, marks: Marks) -> Appended:
        """Appends `batch`, whose rows are at or above the present marks, in offset order per
        partition; `marks` is the end of the batch for every partition that it covers, and becomes
        its mark.

        Raises:
            OSError: a write failed; nothing has changed.
            Locked: a stuck process has engine.lock; nothing has changed.
            SettingsChange: the batch was parsed under settings that change, or have changed; no row
                of it was taken.
            RecoveryPending: dequeue has decided on a recovery, or must, because a file is damaged;
                no row of the batch was taken.
        """
        try:
            return self._append(batch, marks)
        except CorruptFile as error:
            raise self._directory.mark_damaged(error) from error

    def close_expired_files(self) -> None:
        """Closes files of expired hours; ingest calls it without a batch while the disk is full."""
        garbage_collection.close_expired_files(self._directory)

    def _append(self, batch: TimerBatch, ends: Marks) -> Appended:
        # 1. Under the lock, whose holder redoes a batch: the next steps read the wheel.
        with self._directory.locked() as before:
            policy = self._policy(before)
        _require_new(batch, before.marks, ends)
        marks = policy.marks_reached(before.marks, ends)
        ahead = marks != ends
        if marks.items() <= before.marks.items():
            return Appended(0, ahead)
        if ahead:
            batch = batch.take(_rows_below(batch, marks))
        # 2. Cancels first: a reschedule cancels also if its own timer is done.
        cancels = batch.take(np.flatnonzero(batch.cancels | batch.keeps))
        rows = self._place(batch.take(np.flatnonzero(batch.timer)), policy)
        placed = len(rows.batch)
        candidates = self._cancels.load_candidates(cancels, rows.batch, before)
        if candidates is not None and cancels.keeps.any():
            rows, candidates = self._cancels.without_dropped(
                cancels, rows, candidates, policy.close
            )
        # 3. Bytes without a commit page: no reader sees them.
        staged = StagedBatch(self._directory, before, self._clock)
        written = staged.write(rows)
        with self._directory.locked():
            # 4. Dequeue cannot close a slot, nor begin an epoch below these marks, from here on.
            self._require_same_epochs(None)
            floor, staged_rows = self._close().floor, written.staged()
            if policy.must_move(floor):
                staged_rows = staged.move_closed(rows, written, floor)
            self.close_expired_files()
            garbage_collection.forget_expired_runs(self._directory)
            cancelled = self._cancels.resolve(cancels, rows.batch, candidates, staged, staged_rows)
            # 5. A kill from here on leaves the whole batch.
            commit = staged.commit(marks, len(rows.batch), self._topic_ids, floor)
            self._directory.state.write_commit(commit)
            # 6. Redo repeats these three.
            self._directory.append_runs(staged_rows.runs, commit.batch)
            self._mark_cancelled(commit, cancelled)
            self._directory.state.mark_applied()
        return Appended(len(rows.batch), ahead, placed - len(rows.batch))

    # ---- 1.: the policy --------------------------------------------------------------------

    def _policy(self, before: Commit) -> Policy:
        """Returns the placement policy, by the present pages. Called under engine.lock."""
        close = self._close()
        progress = self._progress() if close.missing(before.marks) else None
        self._require_same_epochs(progress)
        beneath = Owner(close) if progress is None else CatchUp(close, progress)
        return Standby(beneath) if self._directory.state.standby else beneath

    def _close(self) -> Close:
        close = self._directory.state.close()
        assert close is not None, "checked when the engine was made"
        return close

    def _progress(self) -> Progress:
        mirror = self._directory.state.mirror()
        assert mirror is not None, "dequeue mirrors the progress before it decides"
        return mirror.progress

    def _require_same_epochs(self, progress: Progress | None) -> None:
        """Refuses settings epochs other than those under which batches are parsed. They change only
        before a start of dequeue, or of a standby's owner, with the incarnation; from the request
        of a change to that start no batch is committed. `progress` is the newest, if it is loaded
        already.

        Raises:
            SettingsChange: they are about to change, or have changed.
        """
        state = self._directory.state
        if state.live.wanted_settings:
            raise SettingsChange("the shard is to take other settings: ingest waits for dequeue")
        incarnations = state.incarnations
        if progress is None and incarnations == self._incarnations:
            return
        if (progress or self._progress()).epochs != self._epochs:
            raise SettingsChange("the shard has other settings: its messages are parsed again")
        self._incarnations = incarnations

    # ---- 2.: slots -------------------------------------------------------------------------

    def _place(self, batch: TimerBatch, policy: Policy) -> PlacedRows:
        """Places the rows that are not done, by the close page of 1."""
        requested, rolled = self._requested_slots(batch)
        pending, slot = policy.place(batch, requested)
        # Only while an owner catches up: a standby places all its rows like this, without end, and
        # would log a line with each batch.
        if isinstance(policy, CatchUp):
            log.info("rows are read again", rows=len(batch), done=int((~pending).sum()))
        rows = PlacedRows(batch, slot, rolled)
        return rows if pending.all() else rows.take(np.flatnonzero(pending))

    def _requested_slots(self, batch: TimerBatch) -> tuple[Int64, Bool]:
        window_ms = self._epochs.windows_ms(batch.partitions, batch.partition, batch.offset)
        by_offset = self._epochs.rolls_by_offset(batch.partitions, batch.partition, batch.offset)
        return requested_slots(batch, self._directory.config.precision_ms, window_ms, by_offset)

    # ---- 6.: the cancelled timers ----------------------------------------------------------

    def _mark_cancelled(self, commit: Commit, cancelled: Mapping[int, Int64]) -> None:
        for hour, positions in cancelled.items():
            log_bytes = commit.hours[hour].log_bytes
            self._directory.log.mark_cancelled(hour, log_bytes, positions)


def require_same_topics(recorded: Mapping[str, str], current: Mapping[str, str]) -> None:
    """Refuses a topic that was deleted and recreated under its old name.

    Raises:
        RecoveryRefused: with the topic and both ids.
    """
    for topic, topic_id in recorded.items():
        if current.get(topic, topic_id) != topic_id:
            raise RecoveryRefused(
                f"timer topic {topic!r} has the id {current[topic]}, it had {topic_id}: it was "
                "recreated, and its offsets are not those that were taken. `duewheel reconfigure "
                "--accept-loss` accepts that"
            )


def _rows_below(batch: TimerBatch, marks: Marks) -> Int64:
    ends = np.array([marks[partition] for partition in batch.partitions], np.int64)
    return np.flatnonzero(batch.offset < ends[batch.partition])


def _require_new(batch: TimerBatch, before: Marks, marks: Marks) -> None:
    """Refuses rows that are taken already or twice, which would be delivered twice, and marks that
    fall or do not cover their rows: by AssertionError, also under `python -O`.
    """
    first = np.array([before.get(partition, 0) for partition in batch.partitions], np.int64)
    until = np.array([marks[partition] for partition in batch.partitions], np.int64)
    by_partition = np.argsort(batch.partition, kind="stable")
    partition, offset = batch.partition[by_partition], batch.offset[by_partition]
    if np.any((np.diff(offset) <= 0) & (np.diff(partition) == 0)):
        raise AssertionError("offsets rise within a partition")
    if np.any(offset < first[partition]):
        raise AssertionError("no row is taken twice")
    if np.any(offset >= until[partition]):
        raise AssertionError("every row is below the new mark")
    if any(mark < before.get(partition, 0) for partition, mark in marks.items()):
        raise AssertionError("marks never fall")
