"""Ingest's side of the wheel: makes a batch of timers part of it, all of it or nothing.

One batch:

    1. slots: a rejected row's is the earliest; a slot that is closed becomes the earliest open one
       (rows that come again after a recovery are judged by wheel/recovering.py)
    2. what the ring cannot take yet stays out, and with it the rest of its partition; it waits for
       deliveries, or, in a catch-up, which they wait for, until everything else has come. Likewise
       cancels, while as many are in memory as may be. In a standby rows at or above C stay out,
       too (wheel/following.py)
    3. messages and log records are appended, and what cancels (cancel_log.py), of rows below the
       new marks, and what copies bring again (bringing_again.py); nobody knows of them yet
    4. under engine.lock: slots that were closed since 1 are left, their rows written again; if the
       ring cannot take them there, nothing of the batch exists and all of it waits
    5. the commit page is written: from here on the batch exists
    6. its runs are linked into the wheel; the commit page is marked

A kill before 5 leaves bytes behind the committed lengths, which the next batch overwrites, and
Spark delivers the batch again. A kill between 5 and 6 is redone by whoever takes the lock next.
No fsync anywhere: the page cache outlives the process.

Rows of a source partition come in offset order and leave in offset order within a slot: a batch has
one run per slot, in batch order, and runs follow each other in batch order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import structlog

from duewheel.checkpoints.epochs import Epochs
from duewheel.checkpoints.page_contents import Close, Commit, HourFiles
from duewheel.checkpoints.progress import Progress
from duewheel.clock import Clock
from duewheel.errors import CorruptFile, RecoveryPending, RecoveryRefused
from duewheel.schemas import columns
from duewheel.schemas.timers import Bool, Int64, TimerBatch, TopicPartition
from duewheel.wheel.bringing_again import brought_again
from duewheel.wheel.cancel_log import CancelRows
from duewheel.wheel.cancel_room import CancelRoom
from duewheel.wheel.data_directory import DataDirectory
from duewheel.wheel.dequeue_config import CANCELS_MAX
from duewheel.wheel.layout import MAGIC_ABANDONED, RECORD_BYTES, hour_of
from duewheel.wheel.placing import (
    Places,
    first_of_each,
    log_records,
    meant_slots,
    seal,
    slot_order,
    stored_messages,
)
from duewheel.wheel.recovering import put_back
from duewheel.wheel.timer_log import Records
from duewheel.wheel.timer_wheel import Runs

log = structlog.get_logger(__name__)

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Appended:
    """What became of a batch.

    Attributes:
        rows: how many timers are in the wheel now.
        waiting: the ring was full for some: their partitions' marks stop before the first of them,
            and the rest is to be appended again later.
        ahead: the same, for what lies above all that the owner of a followed shard has closed.
        cancels_full: the same, for cancels beyond as many as may be in memory.
    """

    rows: int
    waiting: bool
    ahead: bool = False
    cancels_full: bool = False


@dataclass(frozen=True, slots=True)
class _Cancels:
    """What a batch writes to the cancel log.

    Attributes:
        rows: its cancels and reschedules.
        again: what its copies bring.
    """

    rows: TimerBatch
    again: CancelRows | None

    def __len__(self) -> int:
        return len(self.rows) + (len(self.again) if self.again else 0)


@dataclass(frozen=True, slots=True)
class _Written:
    """Rows appended to the files and not committed, in slot order.

    Attributes:
        order: row of the batch that each one is.
        slot: of each.
        records: their log records.
        segments: hour, first row, row after the last, log position of the first: one per hour.
        runs: to be linked.
    """

    order: Int64
    slot: Int64
    records: Records
    segments: list[tuple[int, int, int, int]]
    runs: Runs


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
        cancels_max: int = CANCELS_MAX,
    ) -> None:
        """Take over the directory: redo an interrupted batch, cut what was never committed.

        Args:
            directory: started as INGEST.
            clock: for the write time of log records.
            topic_ids: Kafka's id of each timer topic, kept with the marks.
            cancels_max: with as many in dequeue's memory, or on their way there, no more are taken.

        Raises:
            RecoveryRefused: no close page: dequeue has never started here. Or a topic was made
                anew: its offsets are not those that the marks speak of.
            RecoveryPending: a file is damaged: dequeue must decide on a recovery.
        """
        self._directory = directory
        self._clock = clock
        self._topic_ids = dict(topic_ids or {})
        self._cancel_room = CancelRoom(directory, cancels_max)
        self._left: set[TopicPartition] = set()
        mirror = directory.state.mirror()
        if directory.state.close() is None or mirror is None:
            raise RecoveryRefused(f"{directory.path}: dequeue must have started here once")
        self._epochs = Progress.decode(mirror[2]).epochs
        self._lineages = directory.state.lineages
        try:
            with directory.locked() as commit:
                require_same_topics(commit.topic_ids, self._topic_ids)
                directory.topics.require(commit.topics)
                self._cut(commit)
        except CorruptFile as error:
            raise directory.give_up(error) from error

    def know_topics(self, topic_ids: Mapping[str, str]) -> None:
        """Kafka's ids of the timer topics, of which some may have come since.

        Raises:
            RecoveryRefused: one was made anew.
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
                nothing of the batch has been taken. Or a catch-up has ended that the ring was too
                small for: read on from the marks.
        """
        try:
            return self._append(batch, marks)
        except CorruptFile as error:
            raise self._directory.give_up(error) from error

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
        batch, marks = self._without_left(batch, known, marks)
        ahead = False
        if follows:
            ends, marks = marks, _up_to(close.c, known, marks)
            ahead = marks != ends
            batch = batch.take(self._rows_below(batch, marks))
        batch, marks, full = self._with_room(batch, marks, None if catches_up else before)
        # What a row cancels counts also if its timer is done.
        cancels = batch.take(np.flatnonzero(batch.cancels))
        batch = batch.take(np.flatnonzero(batch.timer))
        batch, slots, rolled = self._open_slots(batch, close, progress)
        fits = self._fits(slots)
        waiting = not bool(fits.all())
        if waiting:
            ends, marks = marks, self._marks_before(batch, fits, marks)
            if catches_up and not follows:
                self._left |= {p for p, mark in marks.items() if mark < ends[p]}
                waiting = False
            rows = self._rows_below(batch, marks)
            batch, slots, rolled = batch.take(rows), slots[rows], rolled[rows]
        cancels = cancels.take(self._rows_below(cancels, marks))
        if not len(batch) and not len(cancels) and marks.items() <= known.items():
            return Appended(0, waiting, ahead, full)
        writes = _Cancels(cancels, brought_again(self._directory, before, batch))
        lengths, segments = _lengths(before), dict(before.cancels)
        written = self._write(batch, slots, rolled, lengths)
        self._write_cancels(writes, close, segments)
        with self._directory.locked():
            runs = written.runs
            # Rows that come again stay where they were, whatever a followed owner has closed since.
            if not catches_up and self._close().floor > close.floor:
                if not self._closed_fit(written):
                    return Appended(0, True, ahead, full)
                runs = self._replace_closed(batch, rolled, written, lengths)
            segments = self._segments_after(writes, segments, dict(before.cancels))
            number = before.batch + 1
            hours = self._hours_after(before, lengths)
            placed = before.placed + len(batch)
            ids = {**before.topic_ids, **self._topic_ids}
            names = len(self._directory.topics)
            taken = before.cancels_taken + len(writes)
            state.write_commit(
                number, {**known, **marks}, hours, placed, ids, names, segments, taken
            )
            self._directory.wheel.apply(runs, number)
            state.mark_applied()
        self._require_none_left()
        return Appended(len(batch), waiting, ahead, full)

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
        return Progress.decode(mirror[2])

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

    def _fits(self, slots: Int64) -> Bool:
        """Whether each slot overwrites nothing undelivered, seen from the local mirror."""
        mirror = self._directory.state.mirror()
        delivered = mirror[0] if mirror else self._close().floor
        return slots - delivered < self._directory.config.ring

    def _with_room(
        self, batch: TimerBatch, marks: Mapping[TopicPartition, int], before: Commit | None
    ) -> tuple[TimerBatch, Mapping[TopicPartition, int], bool]:
        """Both, up to the first row of each partition that has to wait for cancels to be over, and
        whether any has; `before`: the newest commit, None if nothing has to wait.
        """
        fits = None if before is None else self._cancel_room.fits(batch, before)
        if fits is None or fits.all():
            return batch, marks, False
        marks = self._marks_before(batch, fits, marks)
        return batch.take(self._rows_below(batch, marks)), marks, True

    def _closed_fit(self, written: _Written) -> bool:
        """Under the lock: whether the earliest open slot may take rows of slots closed meanwhile.

        Dequeue may have closed more than a lap at once, after a long stop.
        """
        earliest = np.maximum(written.slot[:1], self._close().floor + 1)
        return bool(self._fits(earliest).all())

    def _marks_before(
        self, batch: TimerBatch, fits: Bool, marks: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """The marks, stopped in each partition before its first row that does not fit."""
        first = np.full(len(batch.partitions), _NEVER)
        np.minimum.at(first, batch.partition[~fits], batch.offset[~fits])
        stops = dict(zip(batch.partitions, first.tolist(), strict=True))
        return {p: min(mark, stops.get(p, _NEVER)) for p, mark in marks.items()}

    def _without_left(
        self,
        batch: TimerBatch,
        known: Mapping[TopicPartition, int],
        marks: Mapping[TopicPartition, int],
    ) -> tuple[TimerBatch, Mapping[TopicPartition, int]]:
        """The batch but for partitions in which the ring has had no room in this catch-up.

        Deliveries make room, and wait for the catch-up to end: it must not wait for room. The
        source goes on behind what is left; in the end it has to begin anew at the marks.
        """
        if not self._left:
            return batch, marks
        marks = {p: known.get(p, 0) if p in self._left else end for p, end in marks.items()}
        return batch.take(self._rows_below(batch, marks)), marks

    def _require_none_left(self) -> None:
        if self._left and not self._close().missing(self.marks):
            names = ", ".join(f"{topic}-{number}" for topic, number in sorted(self._left))
            raise RecoveryPending(
                f"all is read again but for what the ring had no room for in {names}: starting "
                "anew at the marks"
            )

    def _rows_below(self, batch: TimerBatch, marks: Mapping[TopicPartition, int]) -> Int64:
        ends = np.array([marks[partition] for partition in batch.partitions], np.int64)
        return np.flatnonzero(batch.offset < ends[batch.partition])

    # ---- 3. and 4.: files ------------------------------------------------------------------

    def _write(
        self, batch: TimerBatch, slots: Int64, rolled: Bool, lengths: dict[int, tuple[int, int]]
    ) -> _Written:
        """Append the rows in slot order behind `lengths`, which move on."""
        directory, precision_ms = self._directory, self._directory.config.precision_ms
        order = slot_order(slots)
        slot, batch = slots[order], batch.take(order)
        sources = directory.topics.ids([topic for topic, _ in batch.partitions])
        targets = directory.topics.ids(batch.targets)
        messages = stored_messages(batch, sources, targets)
        size = columns.lengths(messages)
        places, segments = self._places(slot, size, lengths)
        now_ms = self._clock.now_ms()
        records = log_records(batch, rolled[order], places, size, precision_ms, now_ms)
        octets = seal(messages, records)
        ends = np.cumsum(size)
        for hour, first, end, log_position in segments:
            begin = int(ends[first] - size[first])
            directory.messages.files.write(
                hour, octets[begin : int(ends[end - 1])], int(places.message_position[first])
            )
            directory.log.files.write(hour, records[first:end].tobytes(), log_position)
        return _Written(order, slot, records, segments, places.runs())

    def _places(
        self, slot: Int64, size: Int64, lengths: dict[int, tuple[int, int]]
    ) -> tuple[Places, list[tuple[int, int, int, int]]]:
        """Positions behind `lengths` (log and message bytes per hour), which move on."""
        hour = hour_of(slot, self._directory.config.precision_ms)
        bounds = [*first_of_each(hour).tolist(), len(slot)]
        log_position, message_position = np.empty_like(slot), np.empty_like(slot)
        segments = []
        for first, end in pairwise(bounds):
            name = int(hour[first])
            log_end, message_end = lengths.get(name, (0, 0))
            log_position[first:end] = log_end + np.arange(end - first) * RECORD_BYTES
            until = message_end + np.cumsum(size[first:end])
            message_position[first:end] = until - size[first:end]
            segments.append((name, first, end, log_end))
            lengths[name] = (log_end + (end - first) * RECORD_BYTES, int(until[-1]))
        starts = first_of_each(slot)
        self._directory.require_entries(slot[starts])
        previous = log_position - RECORD_BYTES
        previous[starts] = self._directory.wheel.last_positions(slot[starts])
        return Places(slot, log_position, message_position, previous, starts), segments

    def _replace_closed(
        self,
        batch: TimerBatch,
        rolled: Bool,
        written: _Written,
        lengths: dict[int, tuple[int, int]],
    ) -> Runs:
        """Under the lock: rows whose slot was closed meanwhile go to the earliest open one.

        Together with the batch's rows that are there already, as one run in batch order: that
        keeps a partition's rows in offset order within the slot.
        """
        floor = self._close().floor
        if not len(written.slot) or written.slot[0] > floor:
            return written.runs
        earliest = floor + 1
        count = int(np.searchsorted(written.slot, earliest, "right"))
        rows = np.sort(written.order[:count])
        self._abandon(written, count)
        slots = np.full(count, earliest)
        again = self._write(batch.take(rows), slots, rolled[rows], lengths)
        return again.runs.followed_by(written.runs.where(written.runs.slot > earliest))

    def _abandon(self, written: _Written, count: int) -> None:
        """Say in the log that the first `count` records lead nowhere."""
        for hour, first, end, log_position in written.segments:
            if first < count:
                left = written.records[first : min(end, count)].copy()
                left["magic"] = MAGIC_ABANDONED
                self._directory.log.files.write(hour, left.tobytes(), log_position)

    # ---- cancels ---------------------------------------------------------------------------

    def _write_cancels(
        self, cancels: _Cancels, close: Close, segments: dict[int, tuple[int, int]]
    ) -> None:
        """Append to the segment of the earliest open slot, behind `segments`, which move on."""
        directory, rows, again = self._directory, cancels.rows, cancels.again
        hour = hour_of(close.floor + 1, directory.config.precision_ms)
        now_ms, length = self._clock.now_ms(), segments.get(hour, (0, 0))
        if len(rows):
            ids = directory.topics.ids([topic for topic, _ in rows.partitions])
            length = directory.cancels.write(hour, length, rows, ids, now_ms)
        if again is not None:
            length = directory.cancels.write_again(hour, length, again, now_ms)
        if len(cancels):
            segments[hour] = length

    def _segments_after(
        self,
        cancels: _Cancels,
        segments: dict[int, tuple[int, int]],
        before: dict[int, tuple[int, int]],
    ) -> dict[int, tuple[int, int]]:
        """Under the lock: what the commit page says of segments; those that are gone are left out.

        The segment that was written to may have been given up meanwhile: what was over there is
        not what has just come.
        """
        gone = self._directory.state.gc_cancels
        self._directory.cancels.forget_below(gone)
        written = [hour for hour, length in segments.items() if before.get(hour) != length]
        if any(hour < gone for hour in written):
            segments = before
            self._write_cancels(cancels, self._close(), segments)
        return {hour: length for hour, length in segments.items() if hour >= gone}

    # ---- lengths ---------------------------------------------------------------------------

    def let_go(self) -> None:
        """Close the files of hours that are given up: until then unlinking them frees nothing."""
        directory = self._directory
        gone = directory.state.gc_hour
        directory.log.forget_below(gone)
        directory.messages.files.forget_below(gone)
        directory.cancels.forget_below(directory.state.gc_cancels)

    def _hours_after(
        self, before: Commit, lengths: Mapping[int, tuple[int, int]]
    ) -> dict[int, HourFiles]:
        """What the commit page says of the files; hours that are gone are left out."""
        gone = self._directory.state.gc_hour
        self.let_go()
        old = before.hours
        return {
            hour: HourFiles(log, messages, old[hour].log_bytes if hour in old else 0)
            for hour, (log, messages) in lengths.items()
            if hour >= gone
        }

    def _cut(self, commit: Commit) -> None:
        """Drop bytes that belong to no batch."""
        directory = self._directory
        hours = (directory.log.files, directory.messages.files)
        for folders, lengths, gone in (
            (hours, _lengths(commit), directory.state.gc_hour),
            (directory.cancels.folders, commit.cancels, directory.state.gc_cancels),
        ):
            for kind, folder in enumerate(folders):
                for hour in folder.hours():
                    # What was given up is dequeue's to unlink, at any moment.
                    if hour >= gone:
                        folder.cut(hour, lengths.get(hour, (0, 0))[kind])


def require_same_topics(known: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Refuse a topic that was deleted and made anew under its old name.

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


def _lengths(commit: Commit) -> dict[int, tuple[int, int]]:
    """Committed log and message bytes of every hour."""
    return {hour: (h.log_bytes, h.message_bytes) for hour, h in commit.hours.items()}


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
