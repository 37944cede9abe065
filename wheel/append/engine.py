"""Ingest's side of the wheel: makes a batch of timers part of it, all of it or nothing.

One batch:

    1. slots: a rejected row's is the earliest; a slot that is closed becomes the earliest open one
       (rows that come again after a recovery are judged by wheel/recovery/rebuild.py)
    2. in a standby rows at or above C stay out (wheel/dequeue/standby.py)
    3. messages and log records are appended (staged_batch.py); the timers that the batch's cancels
       may be for are looked up (cancel_lookup.py); nothing refers to the batch yet
    4. under engine.lock: slots that were closed since 1 are left, their rows written again. The
       cancels are resolved (cancel_outcomes.py); their outcomes and the records that they cancel
       are appended
    5. the commit page is written: from here on the batch exists
    6. its runs are linked into the wheel, as far as the ring reaches: the others lie in their
       hours' files until it does (far_slots.py). The records that it cancels are marked so. The
       commit page is marked

A kill before 5 leaves bytes behind the committed lengths, which the next batch overwrites, and
Spark delivers the batch again. A kill between 5 and 6 is redone by whoever takes the lock next.
No fsync anywhere: the page cache outlives the process.

Rows of a source partition come in offset order and leave in offset order within a slot: a batch has
one run per slot, in batch order, and runs follow each other in batch order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import structlog

from duewheel.checkpoints.config_epochs import Epochs
from duewheel.checkpoints.page_codec import Close, Commit
from duewheel.checkpoints.progress import Progress
from duewheel.clock import Clock
from duewheel.errors import CorruptFile, RecoveryPending, RecoveryRefused
from duewheel.schemas.arrays import Bool, Int64
from duewheel.schemas.batches import TimerBatch, TopicPartition
from duewheel.wheel.append.cancels import CancelResolver
from duewheel.wheel.append.placement import meant_slots, put_back
from duewheel.wheel.append.staged_batch import Uncommitted, Written, cut_uncommitted
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.far_slots import ChainEnds
from duewheel.wheel.storage.timer_wheel import Runs

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Appended:
    """What became of a batch.

    Attributes:
        rows: how many timers are in the wheel now.
        ahead: some lie above all that the owner of a followed shard has closed: their partitions'
            marks stop before the first of them, and the rest is to be appended again later.
    """

    rows: int
    ahead: bool = False


class _Places(NamedTuple):
    """Where the rows of a batch lie in the end.

    Attributes:
        runs: to be linked.
        slot, position: of each row: its slot, and its record in the log of the slot's hour.
    """

    runs: Runs
    slot: Int64
    position: Int64


class Engine:
    """The only writer of log, messages, wheel, cancels and topics. Not thread-safe.

    The directory must have been started as INGEST, and dequeue must have said where the floor is
    (the first close page).
    """

    def __init__(
        self,
        directory: DataDirectory,
        clock: Clock,
        topic_ids: Mapping[str, str] | None = None,
    ) -> None:
        """Take over the directory: redo an interrupted batch, cut what was never committed.

        Args:
            directory: started as INGEST.
            clock: for the write time of log records.
            topic_ids: Kafka's id of each timer topic, kept with the marks.

        Raises:
            RecoveryRefused: no close page: dequeue has never started here. Or a topic was
                recreated: its offsets are not those that the marks speak of.
            RecoveryPending: a file is damaged: dequeue must decide on a recovery.
        """
        self._directory = directory
        self._clock = clock
        self._topic_ids = dict(topic_ids or {})
        self._cancels = CancelResolver(directory)
        self._chain_ends = ChainEnds(directory)
        mirror = directory.state.mirror()
        if directory.state.close() is None or mirror is None:
            raise RecoveryRefused(f"{directory.path}: dequeue must have started here once")
        self._epochs = mirror.progress.epochs
        self._lineages = directory.state.lineages
        try:
            with directory.locked() as commit:
                require_same_topics(commit.topic_ids, self._topic_ids)
                directory.topics.require(commit.topics)
                cut_uncommitted(directory, commit)
        except CorruptFile as error:
            raise directory.give_up(error) from error

    def know_topics(self, topic_ids: Mapping[str, str]) -> None:
        """Kafka's ids of the timer topics, of which some may have come since.

        Raises:
            RecoveryRefused: one was recreated.
        """
        require_same_topics(self._directory.state.commit().topic_ids, topic_ids)
        self._topic_ids |= topic_ids

    @property
    def epochs(self) -> Epochs:
        """The settings under which rows are judged, as dequeue's progress has them."""
        return self._epochs

    @property
    def marks(self) -> Mapping[TopicPartition, int]:
        """Next offset to take, per source partition."""
        return self._directory.state.commit().marks

    def append(self, batch: TimerBatch, marks: Mapping[TopicPartition, int]) -> Appended:
        """Make `batch` part of the wheel, and `marks` the partitions' new marks.

        Args:
            batch: only rows at or above the present marks, in offset order per partition.
            marks: end of the batch for every partition that it covers.

        Raises:
            OSError: a write failed; nothing has changed.
            Locked: engine.lock is held by a process that does not move; nothing has changed.
            RecoveryPending: dequeue has decided on a recovery, or must, for a file is damaged;
                nothing of the batch has been taken.
        """
        try:
            return self._append(batch, marks)
        except CorruptFile as error:
            raise self._directory.give_up(error) from error

    def let_go(self) -> None:
        """Close the files of hours that are given up: until then unlinking them frees nothing."""
        directory = self._directory
        gone = directory.state.gc_hour
        directory.log.forget_below(gone)
        directory.messages.files.forget_below(gone)
        directory.cancelled.files.forget_below(gone)
        directory.cancels.forget_below(directory.state.gc_cancels)

    def _append(self, batch: TimerBatch, marks: Mapping[TopicPartition, int]) -> Appended:
        state = self._directory.state
        # Also for its redo: what follows reads the wheel.
        with self._directory.locked() as before:
            close, follows = self._close(), state.standby
            catches_up = bool(close.missing(before.marks))
            progress = self._progress() if catches_up else None
            self._require_same_epochs(progress)
        known = before.marks
        _require_new(batch, known, marks)
        # 1. and 2.
        ahead = False
        if follows:
            ends, marks = marks, _up_to(close.marks, known, marks)
            ahead = marks != ends
            batch = batch.take(self._rows_below(batch, marks))
        # What a row cancels counts also if its timer is done.
        cancels = batch.take(np.flatnonzero(batch.cancels))
        batch = batch.take(np.flatnonzero(batch.timer))
        batch, slots, rolled = self._open_slots(batch, close, progress)
        if not len(batch) and not len(cancels) and marks.items() <= known.items():
            return Appended(0, ahead)
        # 3.
        uncommitted = Uncommitted(self._directory, before, self._clock, self._chain_ends)
        written = uncommitted.write(batch, slots, rolled)
        candidates = self._cancels.look_up(cancels, batch, before)
        with self._directory.locked():
            # 4.
            places = _places(written)
            # Rows that come again stay where they were, whatever a followed owner has closed since.
            if not catches_up and self._close().floor > close.floor:
                places = self._replace_closed(batch, rolled, written, uncommitted)
            self.let_go()
            cancelled = {}
            if candidates is not None:
                cancelled = self._cancels.resolve(
                    cancels, batch, candidates, places.slot, places.position, uncommitted
                )
            # 5.
            commit = Commit(
                before.batch + 1,
                {**known, **marks},
                uncommitted.hours(),
                before.placed + len(batch),
                {**before.topic_ids, **self._topic_ids},
                len(self._directory.topics),
                uncommitted.segments(),
            )
            state.write_commit(commit)
            # 6.
            self._directory.link(places.runs, commit.batch)
            for hour, positions in cancelled.items():
                log_bytes = commit.hours[hour].log_bytes
                self._directory.log.mark_cancelled(hour, log_bytes, positions)
            state.mark_applied()
        return Appended(len(batch), ahead)

    # ---- 1. and 2.: slots ------------------------------------------------------------------

    def _open_slots(
        self, batch: TimerBatch, close: Close, progress: Progress | None
    ) -> tuple[TimerBatch, Int64, Bool]:
        """The rows that are not done, the slot of each, none of them closed as far as is known
        without the lock, and whether the timer is to be rolled then.

        Args:
            batch: rows at or above the marks.
            close: the newest close page, as known without the lock.
            progress: what it follows from, if rows that were there when slots were closed are still
                to come; else None.
        """
        window_ms = self._epochs.windows_ms(batch.partitions, batch.partition, batch.offset)
        slots, rolled = meant_slots(batch, self._directory.config.precision_ms, window_ms)
        if progress is None:
            return batch, np.maximum(slots, close.floor + 1), rolled
        pending, slots = put_back(batch, slots, close, progress)
        if not self._directory.state.standby:  # which does nothing else
            log.info("rows come again", rows=len(batch), done=int((~pending).sum()))
        rows = np.flatnonzero(pending)
        return batch.take(rows), slots[rows], rolled[rows]

    def _close(self) -> Close:
        close = self._directory.state.close()
        assert close is not None, "checked when the engine was made"
        return close

    def _progress(self) -> Progress:
        mirror = self._directory.state.mirror()
        assert mirror is not None, "dequeue mirrors the progress before it decides"
        return mirror.progress

    def _require_same_epochs(self, progress: Progress | None) -> None:
        """They change only while no owner runs: with a start of dequeue, or under a standby.

        Args:
            progress: the newest, if it is known.
        """
        lineages = self._directory.state.lineages
        if progress is None and lineages == self._lineages:
            return
        if (progress or self._progress()).epochs != self._epochs:
            raise RecoveryPending("the slot configuration has changed: starting anew")
        self._lineages = lineages

    def _rows_below(self, batch: TimerBatch, marks: Mapping[TopicPartition, int]) -> Int64:
        ends = np.array([marks[partition] for partition in batch.partitions], np.int64)
        return np.flatnonzero(batch.offset < ends[batch.partition])

    # ---- 4.: what was closed meanwhile -----------------------------------------------------

    def _replace_closed(
        self,
        batch: TimerBatch,
        rolled: Bool,
        written: Written,
        uncommitted: Uncommitted,
    ) -> _Places:
        """Under the lock: rows whose slot was closed meanwhile go to the earliest open one.

        Together with the batch's rows that are there already, as one run in batch order: that
        keeps a partition's rows in offset order within the slot.
        """
        floor, places = self._close().floor, _places(written)
        if not len(written.slot) or written.slot[0] > floor:
            return places
        earliest = floor + 1
        count = int(np.searchsorted(written.slot, earliest, "right"))
        rows = np.sort(written.order[:count])
        uncommitted.abandon(written, count)
        slots = np.full(count, earliest)
        again = uncommitted.write(batch.take(rows), slots, rolled[rows])
        places.slot[rows], places.position[rows[again.order]] = earliest, again.position
        runs = again.runs.followed_by(written.runs.where(written.runs.slot > earliest))
        return places._replace(runs=runs)


def _places(written: Written) -> _Places:
    slot, position = np.empty_like(written.slot), np.empty_like(written.position)
    slot[written.order], position[written.order] = written.slot, written.position
    return _Places(written.runs, slot, position)


def require_same_topics(known: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Refuse a topic that was deleted and recreated under its old name.

    Raises:
        RecoveryRefused: naming the topic and both ids.
    """
    for topic, topic_id in known.items():
        if found.get(topic, topic_id) != topic_id:
            raise RecoveryRefused(
                f"timer topic {topic!r} has the id {found[topic]}, it had {topic_id}: it was made "
                "anew, and offsets in it are not those that were taken. `duewheel reconfigure "
                "--accept-loss` lets the shard go on with it"
            )


def _up_to(
    c: Mapping[TopicPartition, int],
    known: Mapping[TopicPartition, int],
    marks: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """The marks, no further than C."""
    return {p: max(min(end, c.get(p, 0)), known.get(p, 0)) for p, end in marks.items()}


def _require_new(
    batch: TimerBatch, known: Mapping[TopicPartition, int], marks: Mapping[TopicPartition, int]
) -> None:
    """Our own callers' duties, asserted: they guard exactly once, and order."""
    for index, partition in enumerate(batch.partitions):
        offsets = batch.offset[batch.partition == index]
        if len(offsets):
            assert np.all(offsets[1:] > offsets[:-1]), "offsets rise within a partition"
            assert offsets[0] >= known.get(partition, 0), "no row is taken twice"
            assert offsets[-1] < marks[partition], "every row lies below the new mark"
    for partition, mark in marks.items():
        assert mark >= known.get(partition, 0), "marks never fall"
