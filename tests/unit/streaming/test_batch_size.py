"""How many rows a batch may have: after failures, and when it grows again."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from duewheel.errors import (
    BatchTooLarge,
    DiskFull,
    DuewheelError,
    PlannerUnavailable,
    RecoveryPending,
)
from duewheel.streaming.batch_attempt import FILE_NAME, Attempt, End, RowsOfBatch
from duewheel.streaming.batch_plan import ROWS_MIN
from duewheel.streaming.batch_size import GROWTH_BATCHES, RowLimit

MARKS = {("timers", 0): 7, ("timers", 1): 0}
ROWS_MAX = 1_000
MOVED = {("timers", 0): 7 + ROWS_MAX, ("timers", 1): 3}  # by more than one batch


class SparkDirectory:
    """The directory of an ingest process, and a checkpoint of Spark's in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint = path / "checkpoint"
        for folder in ("offsets", "commits"):
            (self.checkpoint / folder).mkdir(parents=True)

    def plan(self, batch: int, end: int = 1) -> None:
        """Up to an offset that the engine has not got."""
        line = json.dumps({"timers": {"0": 7, "1": end}})
        (self.checkpoint / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{line}")

    def commit(self, batch: int) -> None:
        (self.checkpoint / "commits" / str(batch)).write_text("v1\n")

    def start(self, marks: dict[tuple[str, int], int] | None = None) -> RowLimit:
        """A process, up to the start of its query."""
        limit = RowLimit(self.path, ROWS_MAX)
        limit.settle(self.checkpoint, marks or MARKS)
        limit.begun(marks or MARKS, 0)
        return limit


@pytest.fixture
def shard(tmp_path: Path) -> SparkDirectory:
    return SparkDirectory(tmp_path)


@pytest.mark.parametrize("committed", [False, True])
def test_a_batch_that_never_comes_to_an_end_is_halved_down_to_a_floor(
    shard: SparkDirectory, committed: bool
) -> None:
    """Killed without a word, again and again, while Spark fetches its rows or, behind its commit,
    while they are appended; Spark's checkpoint must not name that batch again.
    """
    rows = [shard.start().rows]
    for batch in range(12):
        shard.plan(batch)
        if committed:
            shard.commit(batch)
        rows.append(shard.start().rows)
        assert not shard.checkpoint.exists(), "set aside"
        (shard.checkpoint / "offsets").mkdir(parents=True)
        (shard.checkpoint / "commits").mkdir()
    assert rows[:5] == [1_000, 500, 250, 125, 62]
    assert rows[-1] == ROWS_MIN


def test_two_batches_that_only_together_exceed_the_memory_are_halved(shard: SparkDirectory) -> None:
    """The first one is appended while Spark fetches the second: every start takes one batch."""
    mark, rows = 0, []
    for _ in range(5):
        limit = shard.start({("timers", 0): 7, ("timers", 1): mark})
        rows.append(limit.rows)
        mark += limit.rows + 1  # Spark rounds up
        (shard.checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
        shard.plan(1, mark + limit.rows)
    assert rows == [1_000, 500, 250, 125, 62]


def test_a_kill_is_no_failure_if_the_marks_have_moved_or_no_batch_was_begun(
    shard: SparkDirectory,
) -> None:
    shard.start()
    shard.plan(0)
    assert shard.start(MOVED).rows == ROWS_MAX
    assert shard.start(MOVED).rows == ROWS_MAX, "it has all of the planned batch"
    shard.commit(0)
    assert shard.start(MOVED).rows == ROWS_MAX
    assert shard.checkpoint.exists()


@pytest.mark.parametrize(("end", "rows"), [(End.ORDERLY, 1_000), (End.OUT_OF_MEMORY, 500)])
def test_how_it_has_ended_counts_more_than_the_marks(
    shard: SparkDirectory, end: End, rows: int
) -> None:
    shard.start().ended(end)
    shard.plan(0)
    assert shard.start(MOVED if end is End.OUT_OF_MEMORY else MARKS).rows == rows


@dataclass
class StoppedSink:
    """Its last batch has failed, or not."""

    failure: BaseException | None = None


HEAP = PySparkException("Job aborted: java.lang.OutOfMemoryError: Java heap space")


@pytest.mark.parametrize(
    ("error", "failure", "stopping", "rows"),
    [
        (None, None, True, 1_000),
        (None, OSError(5, "a bad disk"), True, 1_000),
        (None, MemoryError("no room for an array"), True, 500),
        (None, HEAP, True, 500),
        (BatchTooLarge("too large"), None, False, 500),
        (RecoveryPending("again"), None, False, 1_000),
        (DiskFull("no room"), None, False, 1_000),
        (PlannerUnavailable("too few free processors"), None, False, 1_000),
        (DuewheelError("Spark's JVM has ended"), None, False, 500),
        (DuewheelError("Spark's JVM has ended"), None, True, 1_000),
    ],
)
def test_the_end_of_the_queries_decides_on_the_next_start(
    shard: SparkDirectory,
    error: DuewheelError | None,
    failure: BaseException | None,
    stopping: bool,
    rows: int,
) -> None:
    """A stop that also ends the JVM, as that of a service manager does, is no sign of its size."""
    limit = shard.start()
    shard.plan(0)
    with suppress(DuewheelError), limit.noting_the_end(lambda: stopping, StoppedSink(failure)):
        if error is not None:
            raise error
    assert shard.start().rows == rows


def test_what_was_halved_stays_so_over_restarts_and_grows_once_batches_pass(
    shard: SparkDirectory,
) -> None:
    shard.start().ended(End.OUT_OF_MEMORY)
    shard.start().ended(End.OUT_OF_MEMORY)
    shard.start().ended(End.ORDERLY)
    limit = shard.start()
    assert limit.rows == 250
    planned = RowsOfBatch(shard.path, ROWS_MAX)
    for batches, behind, rows in (
        (GROWTH_BATCHES - 1, 5, 250),
        (GROWTH_BATCHES, 0, 250),  # it does not matter now
        (GROWTH_BATCHES, 5, 500),
        (2 * GROWTH_BATCHES - 1, 5, 500),
        (2 * GROWTH_BATCHES, 5, ROWS_MAX),
        (9 * GROWTH_BATCHES, 5, ROWS_MAX),
    ):
        limit.grow(MARKS, batches, behind)
        assert limit.rows == planned.rows == rows


def test_a_kill_after_a_new_limit_counts_from_that_limit(shard: SparkDirectory) -> None:
    """The marks have moved by many batches since the query began, by none since the limit."""
    shard.start().ended(End.OUT_OF_MEMORY)
    shard.start().grow(MOVED, GROWTH_BATCHES, behind=1)
    (shard.checkpoint / "offsets").mkdir(parents=True)
    shard.plan(1, MOVED["timers", 0] + 1_000)
    assert shard.start(MOVED).rows == 500


@pytest.mark.parametrize("damage", [b"", b"garbage", b'00000000 {"rows": -1}\n'])
def test_a_damaged_file_counts_as_none(shard: SparkDirectory, damage: bytes) -> None:
    shard.start().ended(End.OUT_OF_MEMORY)
    (shard.path / FILE_NAME).write_bytes(damage)
    assert Attempt.read(shard.path) is None
    assert shard.start().rows == ROWS_MAX
