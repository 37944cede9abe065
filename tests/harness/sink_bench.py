"""The sink beside an engine that records, with everything that surrounds it; no Spark needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tests.harness.source_table import HEADERS, read_records
from tests.harness.timer_rows import suite_parameters

from duewheel.checkpoints.disk_room import Room
from duewheel.errors import KafkaUnavailable
from duewheel.schemas.arrays import Bool
from duewheel.schemas.batches import TimerBatch, TopicPartition
from duewheel.schemas.request.acceptance_rules import compile_suite, load_suite
from duewheel.schemas.request.parser import Contract, parse
from duewheel.streaming.batch_taker import BatchTaker
from duewheel.streaming.disk_guard import DiskGuard
from duewheel.streaming.early_ends import EarlyEnds
from duewheel.streaming.offset_gaps import GapWatch
from duewheel.streaming.sink import TimerSink
from duewheel.testing import ManualClock
from duewheel.wheel.append.engine import Appended

COLUMNS: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": HEADERS,
}
SCHEMA = pa.schema(COLUMNS)
MIN_FREE = 100_000
WRITTEN = datetime(2026, 11, 20, tzinfo=UTC)

Marks = dict[TopicPartition, int]
A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)


def table(*rows: tuple[TopicPartition, int]) -> pa.Table:
    headers = [{"key": "TIMER_DELAY_SEC", "value": b"5"}, {"key": "REAL_TOPIC", "value": b"t"}]
    columns: dict[str, list[Any]] = {
        "topic": [topic for (topic, _), _ in rows],
        "partition": [number for (_, number), _ in rows],
        "offset": [offset for _, offset in rows],
        "timestamp": [WRITTEN] * len(rows),
        "key": [None] * len(rows),
        "value": [b"v"] * len(rows),
        "headers": [headers] * len(rows),
    }
    return pa.Table.from_pydict(columns, SCHEMA)


class RecordingEngine:
    """Keeps the source of every row; takes at most `room` rows of each call."""

    def __init__(self, marks: Marks, room: int = 1_000) -> None:
        self.marks = marks
        self.room = room
        self.taken: list[tuple[TopicPartition, int]] = []
        self.appended: Callable[[], None] = lambda: None
        self.far: Marks = {}  # where partitions must end
        self.soon: set[int] = set()  # offsets of timers whose slot closes soon

    def ends_before_far_hours(self, batch: TimerBatch) -> Marks:
        return self.far

    def closes_within(self, batch: TimerBatch, ms: int) -> Bool:
        return batch.timer & np.isin(batch.offset, list(self.soon))

    def append(self, batch: TimerBatch, marks: Mapping[TopicPartition, int]) -> Appended:
        rows = [
            (batch.partitions[index], offset)
            for index, offset in zip(batch.partition.tolist(), batch.offset.tolist(), strict=True)
        ]
        assert all(offset >= self.marks.get(partition, 0) for partition, offset in rows)
        stops = dict(reversed(rows[self.room :]))
        fitting = [row for row in rows if row[1] < stops.get(row[0], row[1] + 1)]
        self.taken += fitting
        self.marks = self.marks | {p: min(m, stops.get(p, m)) for p, m in marks.items()}
        self.appended()
        return Appended(len(fitting), ahead=bool(stops))

    def close_expired_files(self) -> None:
        pass


class LogStarts:
    """What the broker would say, and how often it was asked."""

    def __init__(self) -> None:
        self.starts: Marks = {}
        self.asked = 0
        self.reachable = True

    def __call__(self, topics: Sequence[str]) -> Marks:
        self.asked += 1
        if not self.reachable:
            raise KafkaUnavailable("no answer")
        return {p: start for p, start in self.starts.items() if p[0] in topics}


class SinkBench:
    """A sink with everything that surrounds it."""

    def __init__(self, marks: Marks, room: int = 1_000, checkpoint: Path = Path("unused")) -> None:
        """
        Args:
            marks, room: the engine's.
            checkpoint: Spark's; only a call by Spark reads it.
        """
        rules = compile_suite(load_suite(), suite_parameters(forbidden_targets=["a", "b"]))
        contract = Contract((1_000,), {}, "dead", rules)
        self.engine = RecordingEngine(marks, room)
        self.contract = contract
        self.clock = ManualClock()
        self.starts = LogStarts()
        self.gaps = GapWatch(self.starts, self.clock)
        self.taker = BatchTaker(
            self.engine,
            self.gaps,
            self.clock,
            paused=self.paused,
            guard=DiskGuard(lambda: Room(self.free_bytes, MIN_FREE), lambda: self.must_take),
        )
        self.early_ends: Marks = {}  # of the next batch
        self.added_messages: dict[str, int] = {}  # likewise
        self.sink = TimerSink(
            self.taker,
            lambda rows: (self.timers(rows), self.early_ends, self.added_messages),
            checkpoint,
            EarlyEnds(checkpoint),
        )
        self.free_bytes = 1 << 30
        self.must_take = False
        self.pauses = 0

    def timers(self, rows: pa.Table) -> TimerBatch:
        return parse(read_records(rows), self.contract)

    def take(self, rows: pa.Table, ends: Marks) -> None:
        self.taker.take(self.timers(rows), ends)

    def paused(self) -> bool:
        """For as many looks as `pauses` says."""
        self.pauses -= 1
        return self.pauses >= 0
