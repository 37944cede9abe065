"""The error of a query that has ended; the query is a stand-in for Spark's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any, cast
from unittest.mock import MagicMock

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException, PythonException, StreamingQueryException
from pyspark.sql import DataFrame

from duewheel.clock import SystemClock
from duewheel.errors import (
    BatchTooLarge,
    DiskFull,
    DuewheelError,
    KafkaUnavailable,
    PlannerUnavailable,
)
from duewheel.streaming.batch_taker import BatchTaker
from duewheel.streaming.failure import cause
from duewheel.streaming.query import QueryOptions, run_query
from duewheel.streaming.query_progress import QueryProgress
from duewheel.streaming.sink import TimerSink

TASK = PySparkException("Job aborted due to stage failure")
OF_A_TASK = """Failed when Python streaming data source perform latestOffset: Traceback (most recent
  File "raw_reader.py", line 1, in read
duewheel.errors.KafkaUnavailable: nothing comes from delayed-0
 SQLSTATE: 38000"""


@pytest.mark.parametrize(
    ("text", "raised", "meant"),
    [
        ("an exception in foreachBatch", MemoryError("no room for an array"), BatchTooLarge),
        ("an exception in foreachBatch", pa.ArrowMemoryError("malloc of 1 GB"), BatchTooLarge),
        ("caused by: java.lang.OutOfMemoryError: Java heap space", TASK, BatchTooLarge),
        ("java.lang.OutOfMemoryError: GC overhead limit exceeded", None, BatchTooLarge),
        ("[STREAM_FAILED] Query", PythonException(OF_A_TASK), KafkaUnavailable),
        (OF_A_TASK, None, KafkaUnavailable),  # of the process that plans
        ("Traceback\nduewheel.errors.CorruptFile: a/b at byte 0: no", None, DuewheelError),
        ("[STREAM_FAILED] Query", PythonException("Traceback\nMemoryError: no"), BatchTooLarge),
        ("", Py4JError("Python worker exited unexpectedly (crashed)"), BatchTooLarge),
        ("an exception in foreachBatch", OSError(28, "no space"), OSError),
        ("java.io.IOException: No space left on device", TASK, DiskFull),
        ("something else", TASK, DuewheelError),
    ],
)
def test_what_has_ended_a_query(
    text: str, raised: BaseException | None, meant: type[BaseException]
) -> None:
    assert type(cause(raised, text)) is meant


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (" SQLSTATE: XXKST", "has ended"),
        ("Python worker failed to connect back. SQLSTATE: XXKST", "did not start within 10 s"),
    ],
)
def test_the_end_of_the_planning_process_is_named(end: str, reason: str) -> None:
    text = f"[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: {end}"
    error = cause(None, text)
    assert isinstance(error, PlannerUnavailable)
    assert f"plans batches {reason}" in str(error)


class FailingFrame:
    """Its tasks fail."""

    def toArrow(self) -> pa.Table:  # noqa: N802 - as in Spark
        raise PySparkException("Job aborted: java.lang.OutOfMemoryError: Java heap space")


class Query:
    """Ends some time after its only batch has failed, as Spark's queries do."""

    lastProgress = None  # noqa: N815 - as in Spark

    def __init__(self, sink: TimerSink) -> None:
        self.sink = sink
        self.failure = ""

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802 - as in Spark
        if self.failure:
            raise StreamingQueryException(self.failure)
        with pytest.raises(PySparkException) as raised:
            self.sink(cast("DataFrame", FailingFrame()), 0)
        self.failure = f"an exception in foreachBatch: {raised.value}"
        return False

    def stop(self) -> None:
        pass


def a_sink() -> TimerSink:
    taker = BatchTaker(
        MagicMock(), MagicMock(), SystemClock(), paused=lambda: False, guard=MagicMock()
    )
    return TimerSink(taker, MagicMock(), Path("unused"), MagicMock())


def run(query: Any, sink: TimerSink, tick: Callable[[QueryProgress], bool]) -> None:
    writer = MagicMock()
    for call in (writer.queryName, writer.foreachBatch, writer.option, writer.trigger):
        call.return_value = writer
    writer.start.return_value = query
    stream = cast("DataFrame", MagicMock(writeStream=writer))
    run_query(lambda: stream, sink, QueryOptions("timers", Path("unused"), 0), Event(), tick)


@pytest.mark.parametrize("renew", [False, True])
def test_a_batch_that_cannot_be_fetched_is_known_before_the_query_has_ended(renew: bool) -> None:
    sink = a_sink()
    with pytest.raises(BatchTooLarge):
        run(Query(sink), sink, lambda _: renew)


class RunningQuery:
    """Never ends by itself; its JVM may die."""

    lastProgress = None  # noqa: N815 - as in Spark

    def __init__(self, death: Exception | None = None) -> None:
        self.death = death

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802 - as in Spark
        if self.death is not None:
            raise self.death
        return False

    def stop(self) -> None:
        pass


def test_an_error_beside_the_query_is_not_taken_for_the_death_of_the_jvm() -> None:
    def fails(_: QueryProgress) -> bool:
        raise OSError(5, "the disk of `state` is broken")

    with pytest.raises(OSError, match="is broken"):
        run(RunningQuery(), a_sink(), fails)


@pytest.mark.parametrize("death", [Py4JNetworkError("no answer"), ConnectionResetError("gone")])
def test_the_death_of_the_jvm_is_named(death: Exception) -> None:
    with pytest.raises(DuewheelError, match="JVM has ended"):
        run(RunningQuery(death), a_sink(), lambda _: False)
