"""The sink beside an engine that records: replays, marks, gaps, a full ring; no Spark needed."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from structlog.testing import capture_logs
from tests.harness.launcher import wait_until
from tests.harness.source_table import HEADERS, read_records

from duewheel.checkpoints.fs import Space
from duewheel.errors import KafkaUnavailable, RecoveryRefused
from duewheel.schemas.batches import TimerBatch, TopicPartition
from duewheel.schemas.request.acceptance_rules import compile_suite, load_suite
from duewheel.schemas.request.parser import Contract, parse
from duewheel.streaming import batch_taker
from duewheel.streaming.background_append import StoppedWaitingError
from duewheel.streaming.batch_taker import WAIT_S, BatchTaker
from duewheel.streaming.disk_guard import DiskGuard, written_bytes
from duewheel.streaming.offset_gaps import LOG_START_INTERVAL_MS, GapWatch
from duewheel.streaming.sink import TimerSink
from duewheel.testing import ManualClock, suite_parameters
from duewheel.wheel.append.engine import Appended
from duewheel.wheel.storage.byte_layouts import PREFIX_BYTES

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

    def __call__(self, topic: str, partition: int) -> int:
        self.asked += 1
        if not self.reachable:
            raise KafkaUnavailable("no answer")
        return self.starts.get((topic, partition), 0)


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
            guard=DiskGuard(lambda: self.space, lambda _: MIN_FREE, lambda: self.must_take),
        )
        self.sink = TimerSink(self.taker, self.timers, checkpoint)
        self.space = Space(1 << 30, 1 << 30)
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


def test_rows_and_marks_of_a_batch_reach_the_engine() -> None:
    bench = SinkBench({A0: 0, A1: 0})
    bench.take(table((A0, 0), (A0, 1), (A1, 0)), {A0: 2, A1: 1})
    assert bench.engine.taken == [(A0, 0), (A0, 1), (A1, 0)]
    assert bench.engine.marks == {A0: 2, A1: 1}
    assert bench.sink.statistics.rows == 3
    assert bench.sink.statistics.batches == 1


def test_marks_are_the_batchs_end_not_its_last_row() -> None:
    bench = SinkBench({A0: 0})
    bench.take(table((A0, 0)), {A0: 7, A1: 3})
    assert bench.engine.marks == {A0: 7, A1: 3}


def test_an_empty_batch_moves_the_marks() -> None:
    bench = SinkBench({A0: 4})
    bench.take(SCHEMA.empty_table(), {A0: 6})
    assert bench.engine.marks == {A0: 6}
    bench.take(
        pa.table({name: pa.chunked_array([], SCHEMA.field(name).type) for name in SCHEMA.names}),
        {A0: 7},
    )
    assert bench.engine.marks == {A0: 7}
    assert bench.engine.taken == []


def test_replayed_rows_are_dropped_and_marks_do_not_fall() -> None:
    bench = SinkBench({A0: 3, A1: 9})
    bench.take(table((A0, 1), (A0, 2), (A0, 3), (A1, 0)), {A0: 4, A1: 1})
    assert bench.engine.taken == [(A0, 3)]
    assert bench.engine.marks == {A0: 4, A1: 9}
    assert bench.sink.statistics.rows_replayed == 3


def test_ends_that_fall_are_refused() -> None:
    """A log that has lost its end: what is written there now is not what was taken."""
    bench = SinkBench({A0: 0})
    bench.take(table((A0, 0), (A0, 1), (A0, 2)), {A0: 3})
    with pytest.raises(RecoveryRefused, match=r"ends at offset 2, but messages up to 3"):
        bench.take(table((A0, 1)), {A0: 2})
    assert bench.engine.taken == [(A0, 0), (A0, 1), (A0, 2)]


def test_several_topics_keep_their_partitions_apart() -> None:
    bench = SinkBench({A0: 1, B0: 0})
    bench.take(table((A0, 0), (B0, 0)), {A0: 1, B0: 1})
    assert bench.engine.taken == [(B0, 0)]


def test_what_the_engine_does_not_take_yet_waits_and_nothing_is_taken_twice() -> None:
    bench = SinkBench({A0: 0, A1: 0}, room=2)
    began_ms = bench.clock.now_ms()
    rows = [(A0, n) for n in range(5)] + [(A1, n) for n in range(3)]
    bench.take(table(*rows), {A0: 6, A1: 4})
    assert sorted(bench.engine.taken) == rows
    assert bench.engine.marks == {A0: 6, A1: 4}
    assert bench.clock.now_ms() > began_ms
    assert bench.sink.statistics.rows == 8
    assert bench.sink.statistics.rows_ahead == 0


def test_a_paused_sink_takes_nothing_until_it_may() -> None:
    bench = SinkBench({A0: 0})
    bench.pauses = 3
    began_ms = bench.clock.now_ms()
    bench.take(table((A0, 0), (A0, 1)), {A0: 2})
    assert bench.clock.now_ms() > began_ms  # it waited, and then took them
    assert bench.engine.taken == [(A0, 0), (A0, 1)]
    assert bench.sink.statistics.rows_paused == 0


def test_a_paused_sink_can_be_stopped() -> None:
    bench = SinkBench({A0: 0})
    bench.pauses = 3
    bench.sink.stop()
    with pytest.raises(StoppedWaitingError, match="paused"):
        bench.take(table((A0, 0)), {A0: 1})
    assert bench.engine.taken == []
    assert bench.sink.statistics.rows_paused == 1
    bench.sink.resume()
    assert bench.sink.statistics.rows_paused == 0


def test_a_batch_that_the_disk_has_no_room_for_comes_in_parts() -> None:
    bench = SinkBench({A0: 0, A1: 0})
    rows = table((A0, 0), (A1, 0), (A0, 1), (A1, 4), (A0, 2))
    each = int(written_bytes(bench.timers(rows))[0])
    parts: list[tuple[int, Marks]] = []

    def emptied(seconds: float) -> None:
        assert seconds == WAIT_S
        parts.append((len(bench.engine.taken), dict(bench.engine.marks)))
        bench.space = Space(MIN_FREE * 11 // 10 + 2 * each, 1 << 30)

    def filled() -> None:
        bench.space = Space(MIN_FREE, 1 << 30)

    bench.space = Space(MIN_FREE + 3 * each - 1, 1 << 30)
    bench.engine.appended = filled
    bench.clock.sleep = emptied  # type: ignore[method-assign]
    bench.take(rows, {A0: 3, A1: 9})
    assert parts == [(2, {A0: 1, A1: 4}), (4, {A0: 2, A1: 9})]
    assert bench.engine.taken == [(A0, 0), (A1, 0), (A0, 1), (A1, 4), (A0, 2)]
    assert bench.engine.marks == {A0: 3, A1: 9}
    assert bench.sink.statistics.rows == 5
    assert bench.sink.statistics.rows_without_room == 0


def test_a_batch_of_many_cancels_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """engine.lock is released in between; marks of partitions without further rows are the ends."""
    monkeypatch.setattr(batch_taker, "CANCELS_MAX", 2)
    bench = SinkBench({A0: 0, A1: 0})
    rows = [(A0, 0), (A1, 0), (A0, 1), (A0, 3), (A1, 5), (A0, 4), (A0, 5)]
    batch = bench.timers(table(*rows))
    batch = replace(batch, cancels=batch.offset != 3)
    calls: list[tuple[int, Marks]] = []
    bench.engine.appended = lambda: calls.append(
        (len(bench.engine.taken), dict(bench.engine.marks))
    )
    bench.taker.take(batch, {A0: 6, A1: 9})
    assert calls == [(2, {A0: 1, A1: 5}), (5, {A0: 4, A1: 9}), (7, {A0: 6, A1: 9})]
    assert bench.engine.taken == rows
    assert bench.sink.statistics.rows == 7


def test_a_batch_waits_until_the_disk_has_room_for_it_and_some_more() -> None:
    bench = SinkBench({A0: 0})
    rows = table((A0, 0), (A0, 1))
    free_bytes = MIN_FREE
    waits: list[int] = []

    def slept(seconds: float) -> None:
        """The disk empties; told of the free bytes at which the batch still waits."""
        nonlocal free_bytes
        assert seconds == WAIT_S
        waits.append(free_bytes)
        assert bench.sink.statistics.rows_without_room == 2
        free_bytes += 1_000
        bench.space = Space(free_bytes, 1 << 30)
        bench.clock.set(bench.clock.now_ms() + 20_000)

    bench.space = Space(free_bytes, 1 << 30)
    bench.clock.sleep = slept  # type: ignore[method-assign]
    with capture_logs() as lines:
        bench.take(rows, {A0: 2})
    assert bench.engine.taken == [(A0, 0), (A0, 1)]
    assert bench.sink.statistics.rows_without_room == 0
    assert MIN_FREE * 11 // 10 <= waits[-1] + 1_000 < MIN_FREE * 11 // 10 + 3_000, "a tenth more"
    told = [line for line in lines if "min_free" in line["event"]]
    assert len(told) == -(-len(waits) // 3), "once a minute"
    assert {line["rows_without_room"] for line in told} == {2}


def test_what_a_batch_writes_counts_before_it_is_taken() -> None:
    bench = SinkBench({A0: 0})
    needed = 2 * (52 + PREFIX_BYTES)  # of two rows, at least; each may be written twice
    bench.space = Space(MIN_FREE + needed, 1 << 30)
    bench.sink.stop()
    with pytest.raises(StoppedWaitingError, match="disk"):
        bench.take(table((A0, 0), (A0, 1)), {A0: 2})
    bench.sink.resume()
    bench.space = Space(MIN_FREE + 3 * needed, 1 << 30)
    bench.take(table((A0, 0), (A0, 1)), {A0: 2})
    assert len(bench.engine.taken) == 2
    bench.space = Space(0, 1 << 30)
    bench.take(SCHEMA.empty_table(), {A0: 3})
    assert bench.engine.marks == {A0: 3}, "what writes nothing waits for nothing"


def test_what_delivery_waits_for_is_taken_on_a_full_disk_too() -> None:
    bench = SinkBench({A0: 0})
    bench.space, bench.must_take = Space(0, 1 << 30), True
    bench.take(table((A0, 0)), {A0: 1})
    assert bench.engine.taken == [(A0, 0)]


def test_rejected_rows_are_counted_by_reason() -> None:
    """Those that were replayed are not: they have been counted."""
    bench = SinkBench({A0: 1})
    rows = table(*((A0, offset) for offset in range(4)))
    headers = pa.array([[]] * 3 + [[{"key": "DELAY", "value": b"x"}]], HEADERS)
    rows = rows.set_column(rows.schema.get_field_index("headers"), "headers", headers)
    bench.take(rows, {A0: 4})
    known = bench.sink.statistics
    assert known.rejected == {"no_due_time": 2, "bad_header": 1}
    assert (known.rows, known.rows_replayed) == (3, 1)
    assert known.newest_ms == int(WRITTEN.timestamp() * 1000)


def test_rows_of_a_batch_that_was_taken_in_part_are_counted() -> None:
    """The process may end before it has the rest, which counts when it is read again."""
    bench = SinkBench({A0: 0}, room=2)
    rows = table(*((A0, offset) for offset in range(5)))
    headers = pa.array([[], *rows["headers"].to_pylist()[1:]], HEADERS)
    rows = rows.set_column(rows.schema.get_field_index("headers"), "headers", headers)
    bench.sink.stop()
    with pytest.raises(StoppedWaitingError, match="owner"):
        bench.take(rows, {A0: 5})
    known = bench.sink.statistics
    assert (known.rows, dict(known.rejected), known.batches) == (2, {"no_due_time": 1}, 0)
    assert known.newest_ms == int(WRITTEN.timestamp() * 1000)
    bench.sink.resume()
    bench.engine.room = 1_000
    bench.take(rows, {A0: 5})
    known = bench.sink.statistics
    assert (known.rows, known.rows_replayed, known.batches) == (5, 2, 1)
    assert bench.engine.taken == [(A0, offset) for offset in range(5)]


def test_a_waiting_sink_can_be_stopped() -> None:
    bench = SinkBench({A0: 0}, room=0)
    bench.sink.stop()
    with pytest.raises(StoppedWaitingError):
        bench.take(table((A0, 0)), {A0: 1})
    assert bench.sink.statistics.rows_ahead == 1
    assert bench.engine.marks == {A0: 0}


def test_it_says_while_a_batch_is_being_taken() -> None:
    bench, seen = SinkBench({A0: 0}), []

    class Frame:
        def toArrow(self) -> pa.Table:  # noqa: N802 - as in Spark
            seen.append(bench.sink.is_busy)
            raise MemoryError("too large")

    with pytest.raises(MemoryError):
        bench.sink(cast("DataFrame", Frame()), 0)
    assert seen == [True]
    assert not bench.sink.is_busy


class Batches:
    """Batches of one row each, as Spark plans and fetches them."""

    def __init__(self, checkpoint: Path) -> None:
        self.offsets = checkpoint / "offsets"
        self.offsets.mkdir(parents=True)
        self.fetched: list[int] = []
        self.newest: Callable[[], pa.Table | None] = lambda: None
        self.meanwhile: Callable[[], None] = lambda: None

    def frame(self, number: int) -> DataFrame:
        ends = json.dumps({"a": {"0": number + 1}})
        (self.offsets / str(number)).write_text(f"v1\n{{}}\n{ends}")

        class Frame:
            def toArrow(_) -> pa.Table:  # noqa: N802, N805 - as in Spark
                self.fetched.append(number)
                self.meanwhile()
                rows = table((A0, number))
                self.newest = weakref.ref(rows)
                return rows

        return cast("DataFrame", Frame())


def test_a_batch_is_fetched_while_the_one_before_is_appended(tmp_path: Path) -> None:
    bench, batches, may_append = SinkBench({A0: 0}, checkpoint=tmp_path), Batches(tmp_path), Event()
    bench.engine.appended = partial(wait_until, may_append.is_set, "nobody lets it append")
    bench.sink(batches.frame(0), 0)
    second = Thread(target=bench.sink, args=(batches.frame(1), 1))
    second.start()
    wait_until(lambda: batches.fetched == [0, 1], "the second batch is not fetched")
    wait_until(lambda: bench.engine.taken, "the first one is not appended")
    is_busy = bench.sink.is_busy
    assert is_busy
    assert bench.sink.statistics.batches == 0
    assert bench.engine.taken == [(A0, 0)], "the second one waits for the first"
    may_append.set()
    second.join()
    bench.sink.drain()
    assert bench.engine.taken == [(A0, 0), (A0, 1)]
    assert not bench.sink.is_busy
    assert bench.sink.statistics.batches == 2


def test_nothing_is_appended_behind_a_batch_that_has_failed(tmp_path: Path) -> None:
    bench, batches = SinkBench({A0: 0}, checkpoint=tmp_path), Batches(tmp_path)

    def failing() -> None:
        raise MemoryError("too large")

    bench.engine.appended = failing
    bench.sink(batches.frame(0), 0)
    for number in (1, 2):
        with pytest.raises(MemoryError, match="too large"):
            bench.sink(batches.frame(number), number)
    bench.sink.drain()
    error = bench.sink.error
    assert isinstance(error, MemoryError)
    assert bench.engine.taken == [(A0, 0)]
    assert bench.sink.statistics.batches == 0
    bench.engine.appended = lambda: None
    bench.sink.resume()
    assert bench.sink.error is None
    bench.sink(batches.frame(1), 1)
    bench.sink.drain()
    assert bench.engine.taken == [(A0, 0), (A0, 1)]


def test_no_append_begins_behind_the_end_of_a_query(tmp_path: Path) -> None:
    """Spark's JVM has died: nothing but the sink holds its last call up, and the files close."""
    bench, batches = SinkBench({A0: 0}, checkpoint=tmp_path), Batches(tmp_path)
    bench.sink(batches.frame(0), 0)

    def ended() -> None:
        bench.sink.stop()
        bench.sink.drain()

    batches.meanwhile = ended
    with pytest.raises(StoppedWaitingError, match="appended"):
        bench.sink(batches.frame(1), 1)
    bench.sink.drain()
    assert bench.engine.taken == [(A0, 0)]


def test_a_batch_that_is_appended_is_not_kept(tmp_path: Path) -> None:
    """Spark may have no next one for hours, or needs the memory to fetch it."""
    bench, batches = SinkBench({A0: 0}, checkpoint=tmp_path), Batches(tmp_path)
    bench.sink(batches.frame(0), 0)
    bench.sink.drain()
    assert batches.newest() is None


def test_what_was_fetched_is_freed_while_the_batch_is_appended(tmp_path: Path) -> None:
    """Spark fetches the next one meanwhile: there would be three in memory."""
    bench, batches = SinkBench({A0: 0}, checkpoint=tmp_path), Batches(tmp_path)
    kept: list[pa.Table | None] = []
    bench.engine.appended = lambda: kept.append(batches.newest())
    bench.sink(batches.frame(0), 0)
    bench.sink.drain()
    assert kept == [None]
    assert bench.engine.taken == [(A0, 0)]


def test_a_batch_that_waits_in_the_background_can_be_stopped(tmp_path: Path) -> None:
    bench, batches = SinkBench({A0: 0}, room=0, checkpoint=tmp_path), Batches(tmp_path)
    bench.sink(batches.frame(0), 0)
    bench.sink.stop()
    bench.sink.drain()
    assert isinstance(bench.sink.error, StoppedWaitingError)
    assert bench.engine.marks == {A0: 0}


def test_a_query_with_smaller_batches_may_end_before_a_batch_that_was_not_taken(
    tmp_path: Path,
) -> None:
    """The next query begins at the marks: the log has not lost its end."""
    bench, batches = SinkBench({A0: 0}, checkpoint=tmp_path), Batches(tmp_path)
    bench.pauses = 1_000_000
    bench.sink(batches.frame(5), 5)
    bench.sink.stop()
    bench.sink.drain()
    assert bench.engine.marks == {A0: 0}
    bench.sink.resume()
    assert bench.sink.statistics.rows_paused == 0, "none waits until it is read again"
    bench.pauses = 0
    bench.sink(batches.frame(0), 0)
    bench.sink.drain()
    assert bench.sink.error is None
    assert bench.engine.taken == [(A0, 0)]


def test_a_gap_of_markers_is_no_loss() -> None:
    bench = SinkBench({A0: 10})
    bench.take(table((A0, 12)), {A0: 13})
    assert bench.starts.asked == 1
    assert bench.sink.statistics.rows_lost == 0


def test_a_gap_below_the_log_start_is_a_loss() -> None:
    bench = SinkBench({A0: 10, A1: 5})
    bench.starts.starts = {A0: 25, A1: 8}
    bench.take(table((A0, 30)), {A0: 31, A1: 8})
    assert bench.sink.statistics.rows_lost == (25 - 10) + (8 - 5)


def test_a_loss_counts_once_though_its_batch_is_read_again() -> None:
    bench = SinkBench({A0: 10})
    bench.starts.starts = {A0: 25}
    bench.pauses = 2
    bench.sink.stop()
    with pytest.raises(StoppedWaitingError):
        bench.take(table((A0, 30)), {A0: 31})
    bench.sink.resume()
    bench.take(table((A0, 30)), {A0: 31})
    assert bench.sink.statistics.rows_lost == 25 - 10


def test_a_partition_without_a_mark_has_no_gap() -> None:
    bench = SinkBench({})
    bench.starts.starts = {A0: 30}
    bench.take(table((A0, 30)), {A0: 31})
    assert bench.starts.asked == 0


def test_the_log_start_is_asked_for_after_the_gap_and_not_too_often() -> None:
    bench = SinkBench({A0: 0})
    bench.take(table((A0, 1)), {A0: 2})
    assert bench.starts.asked == 1
    bench.starts.starts = {A0: 9}
    bench.take(table((A0, 9)), {A0: 10})
    assert bench.starts.asked == 1
    assert bench.gaps.rows_lost == 0
    bench.clock.sleep(LOG_START_INTERVAL_MS / 1000)
    bench.gaps.settle()
    assert bench.starts.asked == 2
    assert bench.gaps.rows_lost == 7
    bench.clock.sleep(LOG_START_INTERVAL_MS / 1000)
    bench.gaps.settle()
    assert bench.starts.asked == 2


def test_a_gap_waits_until_the_brokers_answer() -> None:
    bench = SinkBench({A0: 0})
    bench.starts.reachable = False
    bench.take(table((A0, 5)), {A0: 6})
    assert bench.engine.taken == [(A0, 5)]
    bench.starts.reachable, bench.starts.starts = True, {A0: 5}
    bench.clock.sleep(LOG_START_INTERVAL_MS / 1000)
    bench.gaps.settle()
    assert bench.gaps.rows_lost == 5


def test_what_lies_ahead_of_a_followed_owner_waits_without_a_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is nothing to warn of."""
    bench = SinkBench({A0: 0})
    append = bench.engine.append
    counts: list[int] = []
    batches: list[TimerBatch] = []

    def limited(batch: TimerBatch, marks: Mapping[TopicPartition, int]) -> Appended:
        batches.append(batch)
        if len(counts) < 2:
            known = bench.sink.statistics
            counts.append(known.rows_ahead)
            return Appended(0, ahead=True)
        return append(batch, marks)

    monkeypatch.setattr(bench.engine, "append", limited)
    with capture_logs() as logged:
        bench.take(table((A0, 0), (A0, 1)), {A0: 2})
    assert counts == [0, 2]
    assert all(batch is batches[0] for batch in batches)  # nothing of it is copied
    assert bench.sink.statistics.rows_ahead == 0
    assert bench.engine.taken == [(A0, 0), (A0, 1)]
    assert logged == []
