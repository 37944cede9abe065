"""Takes a batch of timers: gives the engine the rows that it does not have.

    1. rows below the engine's marks are dropped: Spark has delivered them before
    2. skipped offsets are noted as gaps
    3. the engine takes the rest. While ingest is paused all rows wait here; on a full disk those
       without room; in a standby those that its owner has not taken yet

Before, `cut` leaves out rows that lead too far ahead (wheel/append/far_hours.py).

Invariant: only the engine's marks decide which rows are new.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import structlog

from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.clock import Clock, Interval
from duewheel.errors import RecoveryRefused
from duewheel.schemas.arrays import Bool, Int64
from duewheel.schemas.batches import TimerBatch, TopicPartition
from duewheel.schemas.partition_names import by_name, partition_name
from duewheel.schemas.request.unread_batches import UNREADABLE_CODE
from duewheel.streaming.background_append import StoppedWaitingError
from duewheel.streaming.disk_guard import DiskGuard, written_bytes
from duewheel.streaming.offset_gaps import GapWatch
from duewheel.wheel.append.engine import Appended
from duewheel.wheel.inspect.counts_by_topic import (
    Reasons,
    reasons_of,
    rows_of,
    with_reasons,
    with_rows,
)

WAIT_S = 0.05  # between attempts while ingest is paused, or the engine cannot take all of a batch
REMIND_MS = 60_000
CANCELS_MAX = 20_000
LOCKED_BYTES = 16 << 20
_CLOSES_MS = 10_000  # slots that close within this time may be closed while the rows are written
_NEVER = np.iinfo(np.int64).max

_log = structlog.get_logger(__name__)


class TimerEngine(Protocol):
    """The part of the engine (wheel/append/engine.py) that the taker needs."""

    @property
    def marks(self) -> Marks: ...

    def ends_before_far_hours(self, batch: TimerBatch) -> Marks:
        """Returns where partitions must end that lead too far ahead."""
        ...

    def closes_within(self, batch: TimerBatch, ms: int) -> Bool:
        """Returns the timers whose slot is closed, or closes within this time."""
        ...

    def append(self, batch: TimerBatch, marks: Marks) -> Appended:
        """Takes the batch, or the part allowed now, and moves the marks."""
        ...

    def close_expired_files(self) -> None:
        """Closes the files of unlinked hours: an open file keeps its disk space."""
        ...


@dataclass(frozen=True, slots=True)
class TakerStatistics:
    """Counts since the taker was created."""

    batches: int = 0  # finished ones, empty ones included
    rows: int = 0  # timers that the engine took, rejected ones included
    rejected: Reasons = field(default_factory=dict)  # how many of them, by timer topic and reason
    # How many had headers of copies that duewheel did not write, by timer topic
    forged: Mapping[str, int] = field(default_factory=dict)
    # How many timers were dropped because an earlier one of their id was pending
    rows_kept_out: int = 0
    rows_replayed: int = 0  # rows that were dropped because the engine had them
    rows_paused: int = 0  # rows that wait because ingest is paused
    rows_without_room: int = 0  # rows that wait because the disk would be too full with them
    rows_ahead: int = 0  # rows that wait because a standby must not be ahead of its owner
    # Rows that were deleted before they were read, by timer topic, as GapWatch counts them
    rows_lost: Mapping[str, int] = field(default_factory=dict)
    newest_ms: int = 0  # greatest timestamp of a row taken, 0 before the first


class BatchTaker:
    """Takes one batch at a time. `stop`, `is_stopping`, `marks` and `statistics` may be used
    from other threads.
    """

    def __init__(
        self,
        engine: TimerEngine,
        gaps: GapWatch,
        clock: Clock,
        *,
        paused: Callable[[], bool],
        guard: DiskGuard,
    ) -> None:
        self._engine = engine
        self._gaps = gaps
        self._clock = clock
        self._paused = paused
        self._guard = guard
        self._stopping = threading.Event()
        self._far_hours_reminder = Interval(clock, REMIND_MS)
        self._unread_reminder = Interval(clock, REMIND_MS)
        self._unread: Mapping[str, int] = {}  # by topic, batches not logged yet
        self._reached: dict[TopicPartition, int] = {}  # ends of the batches taken so far
        self._statistics = TakerStatistics()

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called since the last `resume`."""
        return self._stopping.is_set()

    @property
    def marks(self) -> Marks:
        return self._engine.marks

    def stop(self) -> None:
        """Ends a wait soon."""
        self._stopping.set()

    def resume(self) -> None:
        """Permits further batches after a `stop`."""
        self._stopping.clear()
        # A condition that stopped a wait may be gone when Spark delivers the batch again.
        self._statistics = replace(
            self._statistics, rows_paused=0, rows_without_room=0, rows_ahead=0
        )

    @property
    def statistics(self) -> TakerStatistics:
        return replace(self._statistics, rows_lost=self._gaps.rows_lost)

    def cut(self, batch: TimerBatch) -> tuple[TimerBatch, Marks]:
        """Drops the rows of partitions from their first one that leads too far ahead; also returns
        where these end. For the thread that reads batches, while another one is taken.
        """
        ends = self._engine.ends_before_far_hours(batch)
        if not ends:
            return batch, ends
        if self._far_hours_reminder.is_over():
            _log.error(
                "a timer partition waits: its records lead to too many hours far ahead",
                at=[f"{name}@{end}" for name, end in by_name(ends).items()],
                remedy="set message.timestamp.type=LogAppendTime; `duewheel reconfigure --skip` "
                "makes a dead letter of each such record",
            )
        until = np.array([ends.get(p, _NEVER) for p in batch.partitions], np.int64)
        return batch.take(np.flatnonzero(batch.offset < until[batch.partition])), ends

    def take(self, batch: TimerBatch, ends: Marks) -> None:
        """Takes a batch; returns once the engine has all of it. `ends` are the batch's end offsets,
        of every partition that it covers.

        Raises:
            RecoveryRefused: an end is below that of an earlier batch.
            StoppedWaitingError: `stop` was called before a wait; rows taken until then stay taken.
        """
        self._require_forward(ends)
        marks_before = self._engine.marks
        fresh = _rows_from(batch, marks_before)
        replayed = len(batch) - len(fresh)
        if replayed:
            batch = batch.take(fresh)
        self._note_gaps(batch, marks_before, ends)
        marks = {p: max(end, marks_before.get(p, 0)) for p, end in ends.items()}
        self._append_as_room_permits(batch, marks)
        # Only now: a batch that is not taken may have another end when it is read again.
        self._reached.update(ends)
        done = self._statistics
        self._statistics = replace(
            done, batches=done.batches + 1, rows_replayed=done.rows_replayed + replayed
        )
        self._gaps.settle()

    def _require_forward(self, ends: Marks) -> None:
        """Refuses a log that has lost its end: step 1 would drop its new messages as replayed."""
        for partition, end in ends.items():
            reached, name = self._reached.get(partition, end), partition_name(partition)
            if end < reached:
                raise RecoveryRefused(
                    f"{name} ends at offset {end}, but messages up to {reached} were "
                    "taken from it: it has lost its end, and new messages would count as replayed. "
                    f"`duewheel reconfigure --accept-loss {name}` accepts that"
                )

    def _note_gaps(self, batch: TimerBatch, marks_before: Marks, ends: Marks) -> None:
        first_row = _first_offsets(batch)
        for partition, end in ends.items():
            first = min(first_row.get(partition, end), end)
            self._gaps.note(partition, marks_before.get(partition, first), first)

    def _wait_while_paused(self, rows: int) -> None:
        if not self._paused():
            return
        _log.warning("paused: ingest takes no row", rows_paused=rows)
        self._statistics = replace(self._statistics, rows_paused=rows)
        while self._paused():
            self._wait("ingest was paused")
        self._statistics = replace(self._statistics, rows_paused=0)
        _log.warning("ingest resumes")

    def _append_as_room_permits(self, batch: TimerBatch, marks: Marks) -> None:
        """Appends the batch in parts, as the disk has room, and so that each holds engine.lock for
        a short time: dequeue needs it, and its holder is killed after some seconds. A part that is
        taken stays taken.
        """
        sizes, begin = written_bytes(batch), 0
        while True:
            self._wait_while_paused(len(batch) - begin)
            room = self._rows_with_room(sizes[begin:])
            end = begin + min(room, self._rows_of_one_lock(batch, sizes, begin))
            if self._paused():  # since it began to wait for room
                continue
            if end >= len(batch):
                break
            # Each row is copied once: a batch may have hundreds of megabytes, and many parts.
            first = _first_offsets(batch, end)
            part = {p: min(mark, first.get(p, mark)) for p, mark in marks.items()}
            self._append(batch.take(np.arange(begin, end)), part)
            begin = end
        self._append(batch.take(np.arange(begin, len(batch))) if begin else batch, marks)

    def _rows_with_room(self, sizes: Int64) -> int:
        """How many rows, which write so many bytes each, the disk has room for; waits until it has
        room for one.
        """
        rows = self._guard.rows(sizes, waited=False)
        if rows or not len(sizes):
            return rows
        self._statistics = replace(self._statistics, rows_without_room=len(sizes))
        warning = Interval(self._clock, REMIND_MS)
        while not (rows := self._guard.rows(sizes, waited=True)):
            if warning.is_over():
                room = self._guard.room()
                _log.error(
                    "the disk is nearly full: ingest takes no row, see storage.min_free",
                    rows_without_room=len(sizes),
                    row_bytes=int(sizes[0]),
                    free_mib=room.free_bytes >> 20,
                    min_free_mib=room.min_free_bytes >> 20,
                    remedy="free or add disk space: ingest then resumes by itself",
                )
            self._wait("the disk was nearly full")
            self._engine.close_expired_files()
        self._statistics = replace(self._statistics, rows_without_room=0)
        _log.warning("the disk has room: ingest resumes", rows=rows, rows_without_room=len(sizes))
        return rows

    def _rows_of_one_lock(self, batch: TimerBatch, sizes: Int64, begin: int) -> int:
        """How many rows from `begin` on have CANCELS_MAX cancels and LOCKED_BYTES together; one at
        least. Cancels are resolved and written under engine.lock, and the outcomes of timers with
        `keep`; timers are written again whose slot closes meanwhile.
        """
        asks = batch.cancels | batch.keeps
        sizes, cancels = sizes[begin:], np.cumsum(asks[begin:])
        count = int(np.searchsorted(cancels, CANCELS_MAX, "right"))
        if sizes.sum() > LOCKED_BYTES:  # seldom: the slots cost as much as all else here
            locked = asks | self._engine.closes_within(batch, _CLOSES_MS)
            octets = np.cumsum(np.where(locked[begin:], sizes, 0))
            count = min(count, int(np.searchsorted(octets, LOCKED_BYTES, "right")))
        return max(1, count)

    def _append(self, batch: TimerBatch, marks: Marks) -> None:
        """Appends until the engine has taken everything."""
        while self._append_once(batch, marks).ahead:
            left = _rows_from(batch, self._engine.marks)
            if len(left) < len(batch):
                self._count(batch.take(np.setdiff1d(np.arange(len(batch)), left)))
                batch = batch.take(left)
            self._statistics = replace(self._statistics, rows_ahead=len(batch))
            self._wait("the owner was behind this standby")
            self._wait_while_paused(len(batch))
        self._statistics = replace(self._statistics, rows_ahead=0)
        self._count(batch)

    def _append_once(self, batch: TimerBatch, marks: Marks) -> Appended:
        appended = self._engine.append(batch, marks)
        kept = self._statistics.rows_kept_out + appended.kept_out
        self._statistics = replace(self._statistics, rows_kept_out=kept)
        return appended

    def _count(self, taken: TimerBatch) -> None:
        """Counts rows that the engine has. At once: the rest of their batch may never be taken."""
        done, rows = self._statistics, np.flatnonzero(taken.rejected)
        rejected = reasons_of(
            taken.partitions, taken.partition[rows], taken.codes, taken.code[rows]
        )
        forged = rows_of(taken.partitions, taken.partition[taken.forged])
        self._log_unread(rejected)
        self._statistics = replace(
            done,
            rows=done.rows + len(taken),
            rejected=with_reasons(done.rejected, rejected),
            forged=with_rows(done.forged, forged),
            newest_ms=max(done.newest_ms, int(taken.timestamp_ms.max(initial=0))),
        )

    def _log_unread(self, rejected: Reasons) -> None:
        """Logs the batches that cannot be read once a minute: a producer can write one after the
        other, and its lines must not hide those of another timer topic.
        """
        more = {topic: each.get(UNREADABLE_CODE, 0) for topic, each in rejected.items()}
        self._unread = with_rows(self._unread, more)
        if self._unread and self._unread_reminder.is_over():
            _log.warning(
                "record batches that cannot be read: dead letters", batches=dict(self._unread)
            )
            self._unread = {}

    def _wait(self, why: str) -> None:
        if self._stopping.is_set():
            raise StoppedWaitingError(f"stopped while {why}")
        self._clock.sleep(WAIT_S)


def _first_offsets(batch: TimerBatch, begin: int = 0) -> Marks:
    """The lowest offset of each partition that has rows from `begin` on."""
    firsts = np.full(len(batch.partitions), _NEVER)
    np.minimum.at(firsts, batch.partition[begin:], batch.offset[begin:])
    offsets = zip(batch.partitions, firsts.tolist(), strict=True)
    return {partition: first for partition, first in offsets if first != _NEVER}


def _rows_from(batch: TimerBatch, marks: Marks) -> Int64:
    """The rows at or above their partition's mark."""
    lowest = np.array([marks.get(p, 0) for p in batch.partitions], np.int64)
    return np.flatnonzero(batch.offset >= lowest[batch.partition])
