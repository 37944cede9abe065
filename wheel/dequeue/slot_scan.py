"""Walks closed slots in delivery order and cuts them into chunks of bounded size.

A *span* is a range of slots of one hour with a bounded number of records (one slot may hold
more: then the span is that slot, and only its runs are in memory, not its records). A *chunk* is
a part of a span, bounded by records, bytes and recurring timers; its log records are in memory, its
messages are still to be read.

Delivery order: by slot, and inside a slot as the log has it. A range of several hours, after a long
stop, passes over the hours that have no log. Not thread-safe; takes no lock: entries of closed
slots no longer change.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from duewheel.errors import CorruptFile
from duewheel.schemas.arrays import Bool, Int64
from duewheel.wheel.dequeue_config import RECURRING_MAX, SPAN_RECORDS
from duewheel.wheel.slots import hour_of, last_slot_of_hour
from duewheel.wheel.storage.byte_layouts import (
    MAGIC_RECURRING,
    MAGIC_ROLL,
    RECORD_BYTES,
    is_timer,
)
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.runs import SlotRuns
from duewheel.wheel.storage.timer_log import Records

# Slots looked up in one go: 2 MiB of the wheel.
_SLOTS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class ScannedChunk:
    """Neighbouring rows in delivery order.

    Attributes:
        hour: the files of this hour have their messages.
        slot: the slot that each row is in.
        records: their log records.
        delivered_after: last slot that is delivered in full after this chunk.
        slot_open: whether this chunk leaves the last row's slot half delivered.
        last: whether the scan ends with this chunk.
    """

    hour: int
    slot: Int64
    records: Records
    delivered_after: int
    slot_open: bool
    last: bool

    def __len__(self) -> int:
        return len(self.slot)

    @property
    def stored_bytes(self) -> int:
        """Bytes of the stored messages, and of the copies that recurring ones leave."""
        return int(_leaving_bytes(self.records).sum())

    @property
    def rolled(self) -> Bool:
        """Rows that go back to their timer topic."""
        rolled: Bool = (self.records["magic"] & MAGIC_ROLL) != 0
        return rolled

    @property
    def recurring(self) -> Bool:
        """Rows of recurring timers."""
        return _is_recurring(self.records)

    def part(self, first: int, end: int) -> ScannedChunk:
        """Rows `first` to `end` − 1 as a chunk of its own; copies nothing."""
        slot, records = self.slot[first:end], self.records[first:end]
        if end == len(self):
            return replace(self, slot=slot, records=records)
        following = int(self.slot[end])
        slot_open = following == slot[-1]
        return replace(
            self,
            slot=slot,
            records=records,
            delivered_after=following - 1,
            slot_open=slot_open,
            last=False,
        )


class SlotScan:
    """A cursor over the closed slots after < s ≤ until."""

    def __init__(
        self,
        directory: DataDirectory,
        after: int,
        until: int,
        span_records: int = SPAN_RECORDS,
        recurring_max: int = RECURRING_MAX,
    ) -> None:
        self._directory = directory
        self._span_records = span_records
        self._recurring_max = recurring_max
        self._scanned = after
        self._until = until
        self._span: _Span | None = None
        precision_ms = directory.config.precision_ms
        is_one_hour = hour_of(after + 1, precision_ms) == hour_of(until, precision_ms)
        self._hours = None if is_one_hour else directory.state.commit().hours

    def next_chunk(self, records_max: int, bytes_max: int) -> ScannedChunk | None:
        """Returns the next rows, at least one; None after the last slot.

        Raises:
            CorruptFile: log or wheel are damaged; nothing of the chunk was returned.
        """
        while self._span is None or self._span.exhausted:
            if not self._open_span():
                return None
        span = self._span
        view = self._directory.log.view(span.hour, span.log_end)
        slot, position = span.slots_and_positions(records_max)
        # For whole records, take is ten times as fast as indexing.
        records = view.take(position // RECORD_BYTES)
        self._require_own(span, slot, position, records)
        by_bytes = _leaving_bytes(records).cumsum().searchsorted(bytes_max, "right")
        by_rows = _is_recurring(records).cumsum().searchsorted(self._recurring_max, "right")
        count = max(1, int(min(by_bytes, by_rows)))
        return span.take(slot[:count], records[:count], self._until)

    def _require_own(self, span: _Span, slot: Int64, position: Int64, records: Records) -> None:
        """Refuses a record that is no timer's, or not of the slot that led to it: another slot's
        timer may not be due yet, and an abandoned one would be delivered twice.

        Raises:
            CorruptFile: names the first such record.
        """
        precision_ms = self._directory.config.precision_ms
        slot_ms = records["write_time"].astype(np.int64) + records["delay"]
        bad = (slot_ms != slot * precision_ms) | ~is_timer(records)
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise CorruptFile(
                self._directory.log.files.path(span.hour),
                int(position[row]),
                f"slot {slot[row]} leads to a record of slot {slot_ms[row] // precision_ms}, "
                f"magic {records['magic'][row]:#x}",
            )

    def _open_span(self) -> bool:
        """Finds the next slots with records; returns False if there are none up to `until`."""
        precision_ms, timeline = self._directory.config.precision_ms, self._directory.timeline
        # After a long stop the closed range may be longer than the ring.
        slots_at_once = min(_SLOTS_AT_ONCE, self._directory.config.ring)
        while self._scanned < self._until:
            hour = hour_of(self._scanned + 1, precision_ms)
            end_of_hour = min(self._until, last_slot_of_hour(hour, precision_ms))
            if self._hours is not None and hour not in self._hours:
                self._scanned = end_of_hour
                continue
            end = min(end_of_hour, self._scanned + slots_at_once)
            timeline.require_sound(self._scanned, end)
            runs, self._scanned = timeline.runs(self._scanned, end, self._span_records)
            if len(runs):
                self._span = _Span(hour, runs, self._scanned)
                return True
        return False


def _leaving_bytes(records: Records) -> Int64:
    """The bytes that each row brings into a transaction: a recurring one its message twice."""
    sizes = records["size_py"].astype(np.int64)
    twice: Int64 = np.where(_is_recurring(records), 2 * sizes, sizes)
    return twice


def _is_recurring(records: Records) -> Bool:
    recurring: Bool = (records["magic"] & MAGIC_RECURRING) != 0
    return recurring


class _Span:
    """Runs in delivery order, and the position in them; rows are numbered from 0."""

    def __init__(self, hour: int, runs: SlotRuns, end: int) -> None:
        self.hour = hour
        self.runs = runs
        self.log_end = int((runs.first_pos + runs.count * RECORD_BYTES).max())
        self._end = end
        self._ends = np.cumsum(runs.count)
        self._next = 0

    @property
    def exhausted(self) -> bool:
        return self._next == int(self._ends[-1])

    def slots_and_positions(self, records_max: int) -> tuple[Int64, Int64]:
        """Returns slot and log position of each of the next rows."""
        rows = np.arange(self._next, min(self._next + records_max, int(self._ends[-1])))
        run = self._ends.searchsorted(rows, "right")
        in_run = rows - (self._ends[run] - self.runs.count[run])
        return self.runs.slot[run], self.runs.first_pos[run] + in_run * RECORD_BYTES

    def take(self, slot: Int64, records: Records, until: int) -> ScannedChunk:
        """Returns the next rows as a chunk, and moves the position past them."""
        self._next += len(slot)
        if self.exhausted:
            last = self._end == until
            return ScannedChunk(self.hour, slot, records, self._end, slot_open=False, last=last)
        following = int(self.runs.slot[self._ends.searchsorted(self._next, "right")])
        slot_open = following == slot[-1]
        return ScannedChunk(
            self.hour, slot, records, following - 1, slot_open=slot_open, last=False
        )
