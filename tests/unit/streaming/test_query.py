"""The error of a query that has ended; the query is a stand-in for Spark's."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import cast
from unittest.mock import MagicMock

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame

from duewheel.clock import SystemClock
from duewheel.errors import BatchTooLarge, DiskFull, DuewheelError, KafkaUnavailable
from duewheel.streaming.query import QueryOptions, cause, run_query
from duewheel.streaming.sink import TimerSink

TASK = PySparkException("Job aborted due to stage failure")


@pytest.mark.parametrize(
    ("text", "raised", "meant"),
    [
        ("an exception in foreachBatch", MemoryError("no room for an array"), BatchTooLarge),
        ("an exception in foreachBatch", pa.ArrowMemoryError("malloc of 1 GB"), BatchTooLarge),
        ("caused by: java.lang.OutOfMemoryError: Java heap space", TASK, BatchTooLarge),
        ("java.lang.OutOfMemoryError: GC overhead limit exceeded", None, BatchTooLarge),
        ("org.apache.kafka.common.errors.TimeoutException: 60000 ms", TASK, KafkaUnavailable),
        ("an exception in foreachBatch", OSError(28, "no space"), OSError),
        ("java.io.IOException: No space left on device", TASK, DiskFull),
        ("something else", TASK, DuewheelError),
    ],
)
def test_what_has_ended_a_query(
    text: str, raised: BaseException | None, meant: type[BaseException]
) -> None:
    assert type(cause(text, raised)) is meant


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


@pytest.mark.parametrize("renew", [False, True])
def test_a_batch_that_cannot_be_fetched_is_known_before_the_query_has_ended(renew: bool) -> None:
    sink = TimerSink(
        MagicMock(),
        MagicMock(),
        Path("unused"),
        MagicMock(),
        SystemClock(),
        paused=lambda: False,
        guard=MagicMock(),
    )
    writer = MagicMock()
    for call in (writer.queryName, writer.foreachBatch, writer.option, writer.trigger):
        call.return_value = writer
    writer.start.return_value = Query(sink)
    stream = cast("DataFrame", MagicMock(writeStream=writer))
    options = QueryOptions("timers", Path("unused"), 0)
    with pytest.raises(BatchTooLarge):
        run_query(stream, sink, options, Event(), lambda _: renew)
