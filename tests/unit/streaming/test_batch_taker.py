"""What is taken of a batch, beside an engine that records: replays, marks, gaps, a full disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from structlog.testing import capture_logs
from tests.harness.sink_bench import A0, A1, B0, MIN_FREE, SCHEMA, WRITTEN, Marks, SinkBench, table
from tests.harness.source_table import HEADERS

from duewheel.errors import RecoveryRefused
from duewheel.schemas.batches import ACCEPTED, TimerBatch, TopicPartition
from duewheel.schemas.request.unread_batches import UNREADABLE_CODE
from duewheel.streaming import batch_taker
from duewheel.streaming.background_append import StoppedWaitingError
from duewheel.streaming.batch_taker import WAIT_S
from duewheel.streaming.disk_guard import written_bytes
from duewheel.streaming.offset_gaps import LOG_START_INTERVAL_MS
from duewheel.wheel.append.engine import Appended
from duewheel.wheel.storage.byte_layouts import PREFIX_BYTES


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


def test_a_pause_that_begins_while_a_batch_waits_for_room_holds() -> None:
    bench = SinkBench({A0: 0})
    bench.free_bytes = 0
    taken: list[Any] = []

    def slept(seconds: float) -> None:
        assert seconds == WAIT_S
        if not taken:
            bench.free_bytes, bench.pauses = 1 << 30, 3
        taken.append(list(bench.engine.taken))

    bench.clock.sleep = slept  # type: ignore[method-assign]
    bench.take(table((A0, 0)), {A0: 1})
    assert len(taken) > 1
    assert not any(taken), "nothing is taken until it may"
    assert bench.engine.taken == [(A0, 0)]


def test_a_pause_that_begins_while_a_standby_waits_for_its_owner_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = SinkBench({A0: 0})
    append, looks_left = bench.engine.append, list[int]()

    def behind_at_first(batch: TimerBatch, marks: Marks) -> Appended:
        looks_left.append(bench.pauses)
        if len(looks_left) > 1:
            return append(batch, marks)
        bench.pauses = 3
        return Appended(0, ahead=True)

    monkeypatch.setattr(bench.engine, "append", behind_at_first)
    bench.take(table((A0, 0), (A0, 1)), {A0: 2})
    assert looks_left[1] <= 0, "nothing is taken until it may"


def test_a_batch_that_the_disk_has_no_room_for_comes_in_parts() -> None:
    bench = SinkBench({A0: 0, A1: 0})
    rows = table((A0, 0), (A1, 0), (A0, 1), (A1, 4), (A0, 2))
    each = int(written_bytes(bench.timers(rows))[0])
    parts: list[tuple[int, Marks]] = []

    def emptied(seconds: float) -> None:
        assert seconds == WAIT_S
        parts.append((len(bench.engine.taken), dict(bench.engine.marks)))
        bench.free_bytes = MIN_FREE * 11 // 10 + 2 * each

    def filled() -> None:
        bench.free_bytes = MIN_FREE

    bench.free_bytes = MIN_FREE + 3 * each - 1
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


def test_timers_that_keep_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_taker, "CANCELS_MAX", 2)
    bench = SinkBench({A0: 0})
    batch = bench.timers(table(*((A0, offset) for offset in range(5))))
    taken: list[int] = []
    bench.engine.appended = lambda: taken.append(len(bench.engine.taken))
    bench.taker.take(replace(batch, keeps=batch.timer), {A0: 5})
    assert taken == [2, 4, 5]


def test_what_is_written_under_the_lock_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancels, and timers whose slot closes meanwhile; others are written before."""
    bench = SinkBench({A0: 0})
    batch = bench.timers(table(*((A0, offset) for offset in range(8))))
    bench.engine.soon = {2, 3, 6, 8, 9}
    batch = replace(
        batch,
        cancels=batch.offset == 4,
        timer=batch.offset != 4,
    )
    monkeypatch.setattr(batch_taker, "LOCKED_BYTES", 2 * int(written_bytes(batch)[0]))
    taken: list[int] = []
    bench.engine.appended = lambda: taken.append(len(bench.engine.taken))
    bench.taker.take(batch, {A0: 8})
    assert taken == [4, 8], "two that are due soon; the cancel, and another one due soon"
    monkeypatch.setattr(batch_taker, "LOCKED_BYTES", 0)
    one = bench.timers(table((A0, 8), (A0, 9)))
    bench.taker.take(one, {A0: 10})
    assert taken[2:] == [9, 10], "at least one row at a time"


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
        bench.free_bytes = free_bytes
        bench.clock.set(bench.clock.now_ms() + 20_000)

    bench.free_bytes = free_bytes
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
    bench.free_bytes = MIN_FREE + needed
    bench.sink.stop()
    with pytest.raises(StoppedWaitingError, match="disk"):
        bench.take(table((A0, 0), (A0, 1)), {A0: 2})
    bench.sink.resume()
    bench.free_bytes = MIN_FREE + 3 * needed
    bench.take(table((A0, 0), (A0, 1)), {A0: 2})
    assert len(bench.engine.taken) == 2
    bench.free_bytes = 0
    bench.take(SCHEMA.empty_table(), {A0: 3})
    assert bench.engine.marks == {A0: 3}, "what writes nothing waits for nothing"


def test_what_delivery_waits_for_is_taken_on_a_full_disk_too() -> None:
    bench = SinkBench({A0: 0})
    bench.free_bytes, bench.must_take = 0, True
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
    assert known.rejected == {"a": {"no_due_time": 2, "bad_header": 1}}
    assert (known.rows, known.rows_replayed) == (3, 1)
    assert known.newest_ms == int(WRITTEN.timestamp() * 1000)


def test_what_a_timer_topic_lets_in_counts_as_its_own() -> None:
    """Else one writer that never stops hides the faults of all others."""
    bench = SinkBench({A0: 0, A1: 0, B0: 0})
    rows = table((A0, 0), (A1, 0), (A1, 1), (B0, 0), (B0, 1))
    known = bench.timers(rows)
    rejected = np.array([0, ACCEPTED, ACCEPTED, 1, 0], np.int32)
    forged = np.array([True, False, True, True, False])
    batch = replace(known, codes=["bad_header", "past_due"], code=rejected, forged=forged)
    bench.taker.take(batch, {A0: 1, A1: 2, B0: 2})
    seen = bench.sink.statistics
    assert seen.rejected == {"a": {"bad_header": 1}, "b": {"past_due": 1, "bad_header": 1}}
    assert seen.forged == {"a": 2, "b": 1}


def test_batches_that_cannot_be_read_are_logged_once_a_minute_by_timer_topic() -> None:
    """A producer can write one into each batch; its line must not hide another's."""
    bench, offsets = SinkBench({}), dict.fromkeys((A0, A1, B0), 0)
    with capture_logs() as lines:
        for of_batch in [(A0, A1, B0), (A0,), (B0,), (), (A1, A0)]:
            batch = bench.timers(table(*((p, offsets[p]) for p in of_batch)))
            offsets |= {p: offsets[p] + 1 for p in of_batch}
            unread = np.zeros(len(batch), np.int32)
            batch = replace(batch, codes=[UNREADABLE_CODE], code=unread)
            bench.taker.take(batch, dict(offsets))
            bench.clock.sleep(batch_taker.REMIND_MS / 3_000)
    said = [line["batches"] for line in lines if "cannot be read" in line["event"]]
    assert said == [{"a": 2, "b": 1}, {"a": 1, "b": 1}], "the last ones wait for their minute"


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
    assert (known.rows, known.rejected, known.batches) == (2, {"a": {"no_due_time": 1}}, 0)
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


def test_a_gap_of_markers_is_no_loss() -> None:
    bench = SinkBench({A0: 10})
    bench.take(table((A0, 12)), {A0: 13})
    assert bench.starts.asked == 1
    assert bench.sink.statistics.rows_lost == {}


def test_a_gap_below_the_log_start_is_a_loss() -> None:
    bench = SinkBench({A0: 10, A1: 5, B0: 1})
    bench.starts.starts = {A0: 25, A1: 8, B0: 4}
    bench.take(table((A0, 30)), {A0: 31, A1: 8, B0: 9})
    assert bench.sink.statistics.rows_lost == {"a": (25 - 10) + (8 - 5), "b": 4 - 1}


def test_a_loss_counts_once_though_its_batch_is_read_again() -> None:
    bench = SinkBench({A0: 10})
    bench.starts.starts = {A0: 25}
    bench.pauses = 2
    bench.sink.stop()
    with pytest.raises(StoppedWaitingError):
        bench.take(table((A0, 30)), {A0: 31})
    bench.sink.resume()
    bench.take(table((A0, 30)), {A0: 31})
    assert bench.sink.statistics.rows_lost == {"a": 25 - 10}


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
    assert bench.gaps.rows_lost == {}
    bench.clock.sleep(LOG_START_INTERVAL_MS / 1000)
    bench.gaps.settle()
    assert bench.starts.asked == 2
    assert bench.gaps.rows_lost == {"a": 7}
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
    assert bench.gaps.rows_lost == {"a": 5}


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
