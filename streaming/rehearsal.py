"""A start of Spark for its own sake: a query like ingest's, without Kafka, and a JVM that ends.

Ingest's JVM is killed with its process. A JVM that must write a file at its end needs an orderly
end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import psutil
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.query import StreamingQuery

from duewheel.errors import DuewheelError
from duewheel.streaming.failure import cause
from duewheel.streaming.fork_server import forking_python
from duewheel.streaming.session import SessionOptions, start_session

_FORMAT = "rehearsal"
_BATCHES = 3
_TIMEOUT_S = 300.0
_POLL_S = 0.5
_pa: Any = pa  # pyarrow-stubs lack the record batch of a list


class RehearsalSource(DataSource):
    """A Python data source with a new row whenever Spark asks."""

    @classmethod
    def name(cls) -> str:
        return _FORMAT

    def schema(self) -> str:
        return "timers binary"

    def streamReader(self, schema: object) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return RehearsalReader()


class RehearsalReader(DataSourceStreamReader):
    """Its offsets are nanoseconds: there is always something to read."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"ns": 0}

    def latestOffset(self, *_: object) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"ns": time.monotonic_ns()}

    def partitions(self, start: object, end: object) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield _pa.record_batch([_pa.array([b"row"], _pa.binary())], names=["timers"])


def rehearse(options: SessionOptions) -> None:
    """Starts the session, runs some batches and ends the JVM in order.

    Raises:
        DuewheelError: Spark does not start, or ends the query, or the batches do not come.
    """
    with forking_python(options.work_dir) as python:
        _run(replace(options, python=python))


def _run(options: SessionOptions) -> None:
    before = set(psutil.Process().children(recursive=True))
    session = start_session(options)
    started = set(psutil.Process().children(recursive=True)) - before
    taken = threading.Semaphore(0)

    def take(frame: DataFrame, _: int) -> None:
        frame.toArrow()
        taken.release()

    session.dataSource.register(RehearsalSource)
    query = (
        session.readStream.format(_FORMAT)
        .load()
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(options.work_dir / "checkpoint"))
        .start()
    )
    for _ in range(_BATCHES):
        await_batch(query, taken)
    query.stop()
    session.stop()
    jvms = [process for process in started if process.name() == "java"]
    for jvm in jvms:
        jvm.terminate()
    _, left = psutil.wait_procs(jvms, _TIMEOUT_S)
    if left:
        raise DuewheelError(f"Spark's JVM does not end within {_TIMEOUT_S:.0f} s")


def await_batch(query: StreamingQuery, taken: threading.Semaphore) -> None:
    """Waits for the next batch.

    Raises:
        DuewheelError: the query has ended, or none comes.
    """
    end_s = time.monotonic() + _TIMEOUT_S
    while not taken.acquire(timeout=_POLL_S):
        if (error := query.exception()) is not None:
            raise cause(None, str(error))
        if time.monotonic() > end_s:
            raise DuewheelError(f"Spark takes no batch within {_TIMEOUT_S:.0f} s")
