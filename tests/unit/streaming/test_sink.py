"""The sink: what Spark fetches beside what is appended, and where batches end; no Spark needed."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import cast

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from tests.harness.launcher import wait_until
from tests.harness.sink_bench import A0, SinkBench, table

from duewheel.streaming.background_append import StoppedWaitingError
from duewheel.streaming.early_ends import EarlyEnds, waiting_far_ahead


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


def test_a_batch_ends_where_its_tasks_have_ended(tmp_path: Path) -> None:
    """The planning process learns it before Spark plans the next batch."""
    bench, batches = SinkBench({A0: 0}, checkpoint=tmp_path), Batches(tmp_path)
    frame = batches.frame(5)  # planned to offset 6
    bench.early_ends = {A0: 3}
    told = EarlyEnds(tmp_path)
    bench.sink(frame, 5)
    assert told.read() == bench.sink.early_ends == {A0: 3}
    wait_until(lambda: not bench.sink.is_busy, "it is not appended")
    assert bench.engine.marks == {A0: 3}
    bench.early_ends = {}
    bench.sink(batches.frame(6), 6)
    assert told.read() == bench.sink.early_ends == {}
    wait_until(lambda: not bench.sink.is_busy, "it is not appended")
    assert bench.engine.marks == {A0: 7}
    bench.early_ends = {A0: 5}
    bench.sink(batches.frame(7), 7)
    bench.sink.drain()
    bench.sink.resume()
    assert told.read() == {}, "a query begins at the marks"


def test_a_partition_waits_at_a_record_that_leads_too_far_ahead(tmp_path: Path) -> None:
    """The planning process learns that it need not plan it again at once."""
    bench, batches = SinkBench({A0: 0}, checkpoint=tmp_path), Batches(tmp_path)
    bench.engine.far = {A0: 5}
    told = EarlyEnds(tmp_path)
    bench.sink(batches.frame(5), 5)
    bench.sink.drain()
    assert told.read() == {A0: 5}
    assert told.waiting == waiting_far_ahead(tmp_path) == {A0: 5}
    assert not bench.engine.taken
    bench.engine.far = {}
    bench.sink.resume()
    assert not bench.sink.early_ends
    assert (told.read(), waiting_far_ahead(tmp_path)) == ({}, {})
    bench.sink(batches.frame(5), 5)
    bench.sink.drain()
    assert told.read() == {}
    assert bench.engine.taken == [(A0, 5)]


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
