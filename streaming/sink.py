"""What Spark calls for every batch: records to timers, timers into the engine.

One batch:

    1. all columns come over in one Arrow transfer
    2. the batch's end offsets are read from Spark's offset log: they are the new marks, since
       transaction markers leave gaps and an empty batch has no rows
    3. records become timers (schemas/request/contract.py)
    4. rows below the engine's marks are dropped: Spark has delivered them before
    5. offsets that were skipped are noted as gaps
    6. the engine takes the rest. All of it waits here while ingest is paused; what the disk has no
       room for waits, and what a standby must not take yet

The engine's marks decide what is new, nothing else: a batch that is replayed, or planned anew after
its checkpoint was lost, changes nothing. The batch id only finds the file of step 2.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import structlog
from pyspark.sql import DataFrame

from duewheel.checkpoints.page_codec import Marks
from duewheel.clock import Clock, Interval
from duewheel.errors import RecoveryRefused
from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import TimerBatch, TopicPartition
from duewheel.streaming.disk_guard import DiskGuard, written_bytes
from duewheel.streaming.gaps import GapWatch
from duewheel.streaming.spark_checkpoint import end_offsets
from duewheel.wheel.append.engine import Appended

WAIT_S = 0.05  # between attempts while ingest is paused, or the engine cannot take all of a batch
NO_ROOM_LOG_INTERVAL_MS = 60_000
_NEVER = np.iinfo(np.int64).max
_FADES = 0.9  # what large rows count for, from batch to batch

_log = structlog.get_logger(__name__)

Parse = Callable[[pa.Table], TimerBatch]


class TimerEngine(Protocol):
    """What the sink asks of the engine; see wheel/append/engine.py."""

    @property
    def marks(self) -> Marks:
        """Next offset to take, per partition."""
        ...

    def append(self, batch: TimerBatch, marks: Marks) -> Appended:
        """Take the batch, or what of it may be taken now, and move the marks."""
        ...

    def close_expired_files(self) -> None:
        """Close the files of hours that are given up: until then unlinking them frees nothing."""
        ...


class StoppedWaitingError(Exception):
    """The sink was told to stop while it waited; Spark will deliver the batch again."""


@dataclass(frozen=True, slots=True)
class SinkStatistics:
    """What the sink has done since it was made.

    Attributes:
        batches: finished ones, empty ones included.
        rows: timers that the engine took, rejected ones included.
        rejected: how many of them, by reason.
        rows_replayed: rows that were dropped because the engine had them.
        rows_held: rows that wait because ingest is paused.
        rows_without_room: rows that wait because the disk would be too full with them.
        rows_ahead: rows that wait because the owner that a standby follows has not come so far.
        rows_lost: see GapWatch.
        newest_ms: greatest timestamp of a row taken, 0 before the first.
        row_bytes: of a row as it comes from Spark, lately; rather too much. 0 before the first.
    """

    batches: int = 0
    rows: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    rows_replayed: int = 0
    rows_held: int = 0
    rows_without_room: int = 0
    rows_ahead: int = 0
    rows_lost: int = 0
    newest_ms: int = 0
    row_bytes: float = 0.0


class TimerSink:
    """The function object given to foreachBatch. Called by one thread at a time.

    `stop`, `is_busy` and `statistics` may be used from other threads.

    Attributes:
        error: what ended the last call, the object itself: Spark only passes its text on.
    """

    def __init__(
        self,
        engine: TimerEngine,
        parse: Parse,
        checkpoint: Path,
        gaps: GapWatch,
        clock: Clock,
        *,
        paused: Callable[[], bool],
        guard: DiskGuard,
    ) -> None:
        """
        Args:
            engine: takes the timers.
            parse: Arrow table of the source's columns → timers.
            checkpoint: of the query that calls.
            gaps: told of offsets that were skipped.
            clock: for waiting.
            paused: whether to take nothing for now.
            guard: of the disk.
        """
        self._engine = engine
        self._parse = parse
        self._checkpoint = checkpoint
        self._gaps = gaps
        self._clock = clock
        self._paused = paused
        self._guard = guard
        self._stopping = threading.Event()
        self._busy = False
        self._reached: dict[TopicPartition, int] = {}
        self._statistics = SinkStatistics()
        self.error: BaseException | None = None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Take one batch; returns when the engine has all of it.

        Raises:
            StoppedWaitingError: `stop` was called before, or while something had to wait.
        """
        self._busy = True
        try:
            if self._stopping.is_set():
                raise StoppedWaitingError("stopped before the batch was read")
            table = frame.toArrow()
            self._note_bytes(table)
            self.take(table, end_offsets(self._checkpoint, batch_id))
        except BaseException as error:
            self.error = error
            raise
        finally:
            self._busy = False

    @property
    def is_busy(self) -> bool:
        """Whether a batch is being taken."""
        return self._busy

    def stop(self) -> None:
        """Let a waiting call end soon."""
        self._stopping.set()

    def resume(self) -> None:
        """Take batches again, of another query."""
        self._stopping.clear()
        self.error = None

    @property
    def statistics(self) -> SinkStatistics:
        """A snapshot."""
        return replace(self._statistics, rows_lost=self._gaps.rows_lost)

    def _note_bytes(self, table: pa.Table) -> None:
        if table.num_rows:
            lately = max(table.nbytes / table.num_rows, _FADES * self._statistics.row_bytes)
            self._statistics = replace(self._statistics, row_bytes=lately)

    def take(self, table: pa.Table, ends: Marks) -> None:
        """Steps 3 to 6.

        Args:
            table: the batch's rows, with the source's columns.
            ends: the batch's end offsets, of every partition that it covers.

        Raises:
            RecoveryRefused: the ends have fallen.
        """
        self._require_forward(ends)
        known = self._engine.marks
        batch = self._parse(table)
        fresh = _rows_from(batch, known)
        replayed = len(batch) - len(fresh)
        if replayed:
            batch = batch.take(fresh)
        self._note_gaps(batch, known, ends)
        marks = {partition: max(end, known.get(partition, 0)) for partition, end in ends.items()}
        self._wait_while_paused(len(batch))
        self._append_as_room_permits(batch, marks)
        done = self._statistics
        self._statistics = replace(
            done,
            batches=done.batches + 1,
            rows=done.rows + len(batch),
            rejected=Counter(done.rejected) + Counter(batch.rejections()),
            rows_replayed=done.rows_replayed + replayed,
            newest_ms=max(done.newest_ms, int(batch.timestamp_ms.max(initial=0))),
        )
        self._gaps.settle()

    def _require_forward(self, ends: Marks) -> None:
        """Within the life of a query offsets only rise; a fall is a log that has lost its end, and
        what is written there now would be taken for replayed.

        Raises:
            RecoveryRefused: naming the partition and both offsets.
        """
        for (topic, number), end in ends.items():
            reached = self._reached.get((topic, number), end)
            if end < reached:
                raise RecoveryRefused(
                    f"{topic}-{number} ends at offset {end}, but messages up to {reached} were "
                    "taken from it: it has lost its end, and new messages would be taken for old. "
                    f"`duewheel reconfigure --accept-loss {topic}-{number}` lets the shard go on"
                )
        self._reached.update(ends)

    def _note_gaps(self, batch: TimerBatch, known: Marks, ends: Marks) -> None:
        first_row = _first_offsets(batch)
        for partition, end in ends.items():
            first = min(first_row.get(partition, end), end)
            mark = known.get(partition, first)
            if first > mark:
                self._gaps.note(partition, mark, first)

    def _wait_while_paused(self, rows: int) -> None:
        if not self._paused():
            return
        _log.warning("paused: nothing is taken", rows_held=rows)
        self._statistics = replace(self._statistics, rows_held=rows)
        while self._paused():
            self._wait("ingest was paused")
        self._statistics = replace(self._statistics, rows_held=0)
        _log.warning("goes on taking timers")

    def _append_as_room_permits(self, batch: TimerBatch, marks: Marks) -> None:
        """All of it, in parts if the disk has no room for all: each part that is taken stays."""
        while (count := self._rows_with_room(batch)) < len(batch):
            rest = batch.take(np.arange(count, len(batch)))
            first = _first_offsets(rest)
            part = {p: min(end, first.get(p, end)) for p, end in marks.items()}
            self._append(batch.take(np.arange(count)), part)
            batch = rest
        self._append(batch, marks)

    def _rows_with_room(self, batch: TimerBatch) -> int:
        """How many rows the disk has room for; waits until it is one at least."""
        sizes = written_bytes(batch)
        rows = self._guard.rows(sizes, waited=False)
        if rows or not len(batch):
            return rows
        self._statistics = replace(self._statistics, rows_without_room=len(batch))
        warning = Interval(self._clock, NO_ROOM_LOG_INTERVAL_MS)
        while not (rows := self._guard.rows(sizes, waited=True)):
            if warning.is_over():
                found = self._guard.look()
                _log.error(
                    "the disk is nearly full: nothing is taken, see storage.min_free",
                    rows_held=len(batch),
                    row_bytes=int(sizes[0]),
                    free_mib=found.free_bytes >> 20,
                    min_free_mib=found.min_free_bytes >> 20,
                    remedy="make room, or enlarge the disk: it goes on by itself",
                )
            self._wait("the disk was nearly full")
            self._engine.close_expired_files()
        self._statistics = replace(self._statistics, rows_without_room=0)
        _log.warning("the disk has room: goes on taking timers", rows=rows, rows_held=len(batch))
        return rows

    def _append(self, batch: TimerBatch, marks: Marks) -> None:
        """Append until the engine has taken everything."""
        while self._engine.append(batch, marks).ahead:
            rows = _rows_from(batch, self._engine.marks)
            if len(rows) < len(batch):
                batch = batch.take(rows)
            self._statistics = replace(self._statistics, rows_ahead=len(batch))
            self._wait("the owner that this standby follows has not come so far")
        self._statistics = replace(self._statistics, rows_ahead=0)

    def _wait(self, why: str) -> None:
        if self._stopping.is_set():
            raise StoppedWaitingError(f"stopped while {why}")
        self._clock.sleep(WAIT_S)


def _first_offsets(batch: TimerBatch) -> Marks:
    """The lowest offset of each partition that has rows."""
    firsts = np.full(len(batch.partitions), _NEVER)
    np.minimum.at(firsts, batch.partition, batch.offset)
    found = zip(batch.partitions, firsts.tolist(), strict=True)
    return {partition: first for partition, first in found if first != _NEVER}


def _rows_from(batch: TimerBatch, marks: Marks) -> Int64:
    """The rows at or above their partition's mark."""
    lowest = np.array([marks.get(p, 0) for p in batch.partitions], np.int64)
    return np.flatnonzero(batch.offset >= lowest[batch.partition])
