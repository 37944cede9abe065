"""What Spark calls for every batch: records to timers, timers into the engine.

One batch:

    1. all columns come over in one Arrow transfer
    2. the batch's end offsets are read from Spark's offset log: they are the new marks, since
       transaction markers leave gaps and an empty batch has no rows
    3. records become timers (schemas/contract.py)
    4. rows below the engine's marks are dropped: Spark has delivered them before
    5. offsets that were skipped are noted as gaps
    6. the engine takes the rest; what the ring cannot hold yet waits here

The engine's marks decide what is new, nothing else: a batch that is replayed, or planned anew after
its checkpoint was lost, changes nothing. The batch id only finds the file of step 2.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import structlog
from pyspark.sql import DataFrame

from duewheel.checkpoints.spark_offsets import end_offsets
from duewheel.clock import Clock
from duewheel.schemas.timers import Int64, TimerBatch, TopicPartition
from duewheel.streaming.gaps import GapWatch
from duewheel.wheel.engine import Appended

# While the ring is full: how long to wait before trying again, and between two lines in the log.
RING_FULL_SLEEP_S = 0.05
RING_FULL_LOG_INTERVAL_MS = 10_000

_log = structlog.get_logger(__name__)

Marks = Mapping[TopicPartition, int]
Parse = Callable[[pa.Table], TimerBatch]


class TimerEngine(Protocol):
    """What the sink asks of the engine; see wheel/engine.py."""

    @property
    def marks(self) -> Marks:
        """Next offset to take, per partition."""
        ...

    def append(self, batch: TimerBatch, marks: Marks) -> Appended:
        """Take the batch, or what of it the ring can hold, and move the marks."""
        ...


class StoppedWaitingError(Exception):
    """The sink was told to stop while it waited; Spark will deliver the batch again."""


@dataclass(frozen=True, slots=True)
class SinkStatistics:
    """What the sink has done since it was made.

    Attributes:
        batches: finished ones, empty ones included.
        rows: timers that the engine took.
        rows_replayed: rows that were dropped because the engine had them.
        rows_waiting: rows that the ring cannot hold at this moment.
        rows_lost: see GapWatch.
    """

    batches: int = 0
    rows: int = 0
    rows_replayed: int = 0
    rows_waiting: int = 0
    rows_lost: int = 0


class TimerSink:
    """The function object given to foreachBatch. Called by one thread at a time.

    `stop` and `statistics` may be used from other threads.

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
    ) -> None:
        """
        Args:
            engine: takes the timers.
            parse: Arrow table of the source's columns → timers.
            checkpoint: of the query that calls.
            gaps: told of offsets that were skipped.
            clock: for waiting.
        """
        self._engine = engine
        self._parse = parse
        self._checkpoint = checkpoint
        self._gaps = gaps
        self._clock = clock
        self._stopping = threading.Event()
        self._statistics = SinkStatistics()
        self.error: BaseException | None = None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Take one batch; returns when the engine has all of it.

        Raises:
            StoppedWaitingError: `stop` was called while the ring was full.
        """
        try:
            self.take(frame.toArrow(), end_offsets(self._checkpoint, batch_id))
        except BaseException as error:
            self.error = error
            raise

    def stop(self) -> None:
        """Let a waiting call end soon."""
        self._stopping.set()

    @property
    def statistics(self) -> SinkStatistics:
        """A snapshot."""
        return replace(self._statistics, rows_lost=self._gaps.rows_lost)

    def take(self, table: pa.Table, ends: Marks) -> None:
        """Steps 3 to 6.

        Args:
            table: the batch's rows, with the source's columns.
            ends: the batch's end offsets, of every partition that it covers.
        """
        known = self._engine.marks
        batch = self._parse(table)
        fresh = _rows_from(batch, known)
        replayed = len(batch) - len(fresh)
        if replayed:
            batch = batch.take(fresh)
        self._note_gaps(batch, known, ends)
        marks = {partition: max(end, known.get(partition, 0)) for partition, end in ends.items()}
        rows = self._append(batch, marks)
        done = self._statistics
        self._statistics = replace(
            done,
            batches=done.batches + 1,
            rows=done.rows + rows,
            rows_replayed=done.rows_replayed + replayed,
        )
        self._gaps.settle()

    def _note_gaps(self, batch: TimerBatch, known: Marks, ends: Marks) -> None:
        firsts = np.full(len(batch.partitions), np.iinfo(np.int64).max)
        np.minimum.at(firsts, batch.partition, batch.offset)
        first_row = dict(zip(batch.partitions, firsts.tolist(), strict=True))
        for partition, end in ends.items():
            first = min(first_row.get(partition, end), end)
            mark = known.get(partition, first)
            if first > mark:
                self._gaps.note(partition, mark, first)

    def _append(self, batch: TimerBatch, marks: Marks) -> int:
        """Append until the ring has taken everything; returns how many rows that were."""
        appended = self._engine.append(batch, marks)
        rows, logged_at_ms = appended.rows, None
        while appended.waiting:
            batch = batch.take(_rows_from(batch, self._engine.marks))
            self._statistics = replace(self._statistics, rows_waiting=len(batch))
            now_ms = self._clock.now_ms()
            if logged_at_ms is None or now_ms - logged_at_ms >= RING_FULL_LOG_INTERVAL_MS:
                _log.warning("ring full: waiting for deliveries", rows_waiting=len(batch))
                logged_at_ms = now_ms
            if self._stopping.is_set():
                raise StoppedWaitingError("stopped while the ring was full")
            self._clock.sleep(RING_FULL_SLEEP_S)
            appended = self._engine.append(batch, marks)
            rows += appended.rows
        self._statistics = replace(self._statistics, rows_waiting=0)
        return rows


def _rows_from(batch: TimerBatch, marks: Marks) -> Int64:
    """The rows at or above their partition's mark."""
    lowest = np.array([marks.get(p, 0) for p in batch.partitions], np.int64)
    return np.flatnonzero(batch.offset >= lowest[batch.partition])
