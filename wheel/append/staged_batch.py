"""Writes a batch to the files before its commit page: steps 3 and 4 of engine.py.

- The bytes are beyond the lengths of the newest commit page, so no reader sees them. After a kill
  ingest's next start cuts them, or the next batch overwrites them.
- Rows go to the files of their slot's hour, in slot order: records and messages side by side, a
  run per slot.
- Records whose rows are written again elsewhere stay in the log, *abandoned*: no chain leads there.
- Cancels go to the segment of the earliest open slot (cancel_log.py), under engine.lock: their
  outcome depends on closed slots. The records that they cancel are listed in cancelled/<hour>, with
  the hour of these records (cancelled_records.py).
- `commit` returns the page with the new lengths, without expired hours and segments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from duewheel.checkpoints.commit_and_close_pages import Commit, HourLengths, Marks
from duewheel.clock import Clock
from duewheel.schemas import columns
from duewheel.schemas.arrays import Int32, Int64
from duewheel.schemas.batches import TimerBatch
from duewheel.wheel.append.placement import PlacedRows, first_of_each, slot_order
from duewheel.wheel.recurrence import without_recurrence
from duewheel.wheel.slots import hour_of
from duewheel.wheel.storage.byte_layouts import MAGIC_ABANDONED, RECORD_BYTES
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.record_builder import RowPositions, log_records, seal, stored_messages
from duewheel.wheel.storage.runs import Runs
from duewheel.wheel.storage.timer_log import Records


class HourExtent(NamedTuple):
    """The rows [first, end) of one hour, in slot order, which are neighbours in its files."""

    hour: int
    first: int
    end: int
    log_position: int  # of the first one's record


_NO_FILES = HourLengths(0, 0, 0)


class StagedRows(NamedTuple):
    """The final positions of a batch's rows, and their runs, to link."""

    runs: Runs
    slot: Int64
    position: Int64  # of the row's record in the log of the slot's hour


@dataclass(frozen=True, slots=True)
class Written:
    """Rows appended to log and messages, in slot order."""

    order: Int64  # index of each row in the batch
    slot: Int64
    position: Int64  # of its record in the log of the slot's hour
    records: Records
    extents: list[HourExtent]  # one per hour
    runs: Runs

    def staged(self) -> StagedRows:
        """Returns slots and positions in the order of the batch."""
        slot, position = np.empty_like(self.slot), np.empty_like(self.position)
        slot[self.order], position[self.order] = self.slot, self.position
        return StagedRows(self.runs, slot, position)


class StagedBatch:
    """The bytes of one batch. Not thread-safe."""

    def __init__(self, directory: DataDirectory, before: Commit, clock: Clock) -> None:
        self._directory = directory
        self._before = before
        self._clock = clock
        # Bytes of log, messages and cancelled records by hour; of records and requests by segment.
        self._lengths = {hour: files.lengths for hour, files in before.hours.items()}
        self._segments = dict(before.cancels)

    # ---- rows ------------------------------------------------------------------------------

    def write(self, rows: PlacedRows) -> Written:
        """Appends the rows, in slot order."""
        directory, precision_ms = self._directory, self._directory.config.precision_ms
        order = slot_order(rows.slot)
        rows = rows.take(order)
        slot, batch = rows.slot, rows.batch
        sources = directory.topics.ids([topic for topic, _ in batch.partitions])
        messages = stored_messages(batch, sources)
        size = columns.lengths(messages)
        positions, extents = self._allocate(slot, size)
        now_ms = self._clock.now_ms()
        hashes = directory.lookup_hashes(batch.id_hash, batch.partitions, batch.partition)
        key = directory.state.uuid
        records = log_records(
            batch, rows.rolled, hashes, positions, size, precision_ms, now_ms, key
        )
        octets = seal(messages, records, batch.id_hash)
        ends = np.cumsum(size)
        for hour, first, end, log_position in extents:
            begin = int(ends[first] - size[first])
            directory.messages.files.write(
                hour, octets[begin : int(ends[end - 1])], int(positions.message_position[first])
            )
            # Messages and records may come in any order here: no reader looks beyond the committed
            # lengths.
            directory.log.files.write(hour, records[first:end].view(np.uint8).data, log_position)
        return Written(order, slot, positions.log_position, records, extents, positions.runs())

    def _allocate(self, slot: Int64, size: Int64) -> tuple[RowPositions, list[HourExtent]]:
        """Returns positions from the present lengths on, which grow by these rows."""
        hour = hour_of(slot, self._directory.config.precision_ms)
        bounds = [*first_of_each(hour).tolist(), len(slot)]
        log_position, message_position = np.empty_like(slot), np.empty_like(slot)
        extents = []
        for first, end in pairwise(bounds):
            this_hour = int(hour[first])
            log_end, message_end, cancelled = self._lengths.get(this_hour, (0, 0, 0))
            log_position[first:end] = log_end + np.arange(end - first) * RECORD_BYTES
            until = message_end + np.cumsum(size[first:end])
            message_position[first:end] = until - size[first:end]
            extents.append(HourExtent(this_hour, first, end, log_end))
            log_end += (end - first) * RECORD_BYTES
            self._lengths[this_hour] = (log_end, int(until[-1]), cancelled)
        starts = first_of_each(slot)
        previous = log_position - RECORD_BYTES
        previous[starts] = self._directory.timeline.predecessors(
            slot[starts], log_position[starts], self._before
        )
        return RowPositions(slot, log_position, message_position, previous, starts), extents

    def abandon(self, written: Written, count: int) -> None:
        """Marks the first `count` records as abandoned in the log."""
        for hour, first, end, log_position in written.extents:
            if first < count:
                left = written.records[first : min(end, count)].copy()
                # No chain leads there, but a rebuild reads every record: it would deliver the row
                # twice.
                left["magic"] = MAGIC_ABANDONED
                self._directory.log.files.write(hour, left.tobytes(), log_position)

    def move_closed(self, rows: PlacedRows, written: Written, floor: int) -> StagedRows:
        """Moves rows whose slot was closed meanwhile to the earliest open one, after `floor`. Under
        the lock. They and the batch's rows of that slot become one run in batch order, which keeps
        a partition's rows in offset order within the slot.
        """
        staged = written.staged()
        if not len(written.slot) or written.slot[0] > floor:
            return staged
        earliest = floor + 1
        count = int(np.searchsorted(written.slot, earliest, "right"))
        moved = np.sort(written.order[:count])
        self.abandon(written, count)
        again = self.write(replace(rows.take(moved), slot=np.full(count, earliest)))
        staged.slot[moved], staged.position[moved[again.order]] = earliest, again.position
        runs = Runs.joined([again.runs, written.runs.where(written.runs.slot > earliest)])
        return staged._replace(runs=runs)

    # ---- cancels ---------------------------------------------------------------------------

    def write_cancels(self, cancels: TimerBatch, outcome: Int32, floor: int) -> None:
        """Appends to the segment of the earliest open slot, after `floor`. Under the lock."""
        directory = self._directory
        hour = hour_of(floor + 1, directory.config.precision_ms)
        ids = directory.topics.ids([topic for topic, _ in cancels.partitions])
        length = self._segments.get(hour, (0, 0))
        self._segments[hour] = directory.cancels.write(
            hour, length, without_recurrence(cancels), ids, outcome, self._clock.now_ms()
        )

    def write_cancelled(self, hour: int, offset: Int64, position: Int64) -> None:
        """Lists records of an hour's log, which is not expired, as cancelled. Under the lock."""
        log_end, message_end, length = self._lengths[hour]
        length = self._directory.cancelled.write(hour, length, offset, position)
        self._lengths[hour] = (log_end, message_end, length)

    # ---- lengths ---------------------------------------------------------------------------

    def commit(self, marks: Marks, rows: int, topic_ids: Mapping[str, str], floor: int) -> Commit:
        """Makes the batch's commit page. Under the lock. `marks` are those that move; a topic may
        be missing in `topic_ids`; `floor` is the last closed slot.
        """
        before, state = self._before, self._directory.state
        return Commit(
            before.batch + 1,
            {**before.marks, **marks},
            {
                hour: before.hours.get(hour, _NO_FILES).extended_by(lengths)
                for hour, lengths in self._lengths.items()
                if hour >= state.live.gc_hour
            },
            before.placed + rows,
            {**before.topic_ids, **topic_ids},
            len(self._directory.topics),
            {h: length for h, length in self._segments.items() if h >= state.live.gc_cancels},
            floor=floor,
        )


def cut_to_committed(directory: DataDirectory, commit: Commit) -> None:
    """Truncates bytes of ingest's files that belong to no batch. Under the lock."""
    hours = {hour: files.lengths for hour, files in commit.hours.items()}
    for folders, lengths, gc_hour in (
        (directory.hour_folders, hours, directory.state.live.gc_hour),
        (directory.cancels.folders, commit.cancels, directory.state.live.gc_cancels),
    ):
        for index, folder in enumerate(folders):
            for hour in folder.hours():
                # Dequeue unlinks expired hours at any moment: the file may vanish before the cut.
                if hour >= gc_hour:
                    folder.cut(hour, lengths[hour][index] if hour in lengths else 0)
