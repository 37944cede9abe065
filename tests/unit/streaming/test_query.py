"""What is made of the error that has ended a query."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from duewheel.errors import BatchTooLarge, DiskFull, DuewheelError, KafkaUnavailable
from duewheel.streaming.query import cause

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
