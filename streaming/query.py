"""Runs the streaming query until `stop` is set, or raises the error that ended it.

A query that ends by itself ends the process, and the supervisor restarts the process after a
pause. Every start therefore takes the same path, and compares the checkpoint with the engine's
marks. Where only the planning process is away, the caller starts another query in the same session.
The query survives a broker outage of seconds, not of minutes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from duewheel.errors import DuewheelError, SettingsChange
from duewheel.streaming.background_append import StoppedWaitingError
from duewheel.streaming.failure import cause
from duewheel.streaming.query_progress import QueryProgress, read_progress
from duewheel.streaming.sink import TimerSink

# How often the caller's `tick` is called, and the longest that the end of the query goes unseen;
# until the query has planned, when others wait for that.
TICK_S, _FIRST_TICK_S = 1.0, 0.25

_LAST_BATCH_S = 30  # longest wait for the running batch before the next query starts
_POLL_S = 0.05
_AT_ONCE_S = 0.001  # Spark takes no 0

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class QueryOptions:
    """The name of the query, Spark's checkpoint directory, and the rhythm."""

    name: str
    checkpoint: Path
    trigger_ms: int  # a batch begins at a multiple of it, or once the last one has ended


def run_query(
    stream: Callable[[], DataFrame],
    sink: TimerSink,
    options: QueryOptions,
    stop: threading.Event,
    tick: Callable[[QueryProgress], bool],
) -> bool:
    """Starts the query and waits for its end; returns whether the caller must start another one.

    Args:
        stop: another thread sets it to end the query. The running batch finishes first, unless it
            has to wait.
        tick: called about once a second while the query runs, with its progress; returns whether
            another query must replace this one after the running batch.

    Raises:
        DiskFull: Spark's files found no room.
        BatchTooLarge: out of memory, here or in the JVM.
        KafkaUnavailable: the brokers did not answer for minutes.
        PlannerUnavailable: the planning process did not start, or has ended.
        DuewheelError: Spark ended the query.
        BaseException: the sink's error, unchanged.
    """
    sink.resume()
    query = _start(stream, sink, options)
    renew, tick_s = False, _FIRST_TICK_S
    try:
        while not stop.wait(tick_s) and not _has_ended(query, _AT_ONCE_S):
            if sink.append_error is not None:
                break  # Spark would see it with the next batch only
            progress = _progress(query, sink)
            tick_s = TICK_S if progress.batch_id >= 0 else _FIRST_TICK_S
            if tick(progress):
                renew = True
                sink.stop()
                _await_batch(query, sink)
                break
    except StreamingQueryException as error:
        if not renew or not isinstance(sink.error, StoppedWaitingError):
            raise cause(sink.error, str(error)) from error
    finally:
        _stop(query, sink)
    if not stop.is_set():
        if sink.failure is not None:
            raise cause(sink.failure)
        if not renew:
            raise DuewheelError("the streaming query ended by itself, without an error")
    return renew


def _start(
    stream: Callable[[], DataFrame], sink: TimerSink, options: QueryOptions
) -> StreamingQuery:
    try:
        return (
            stream()
            .writeStream.queryName(options.name)
            .foreachBatch(sink)
            .option("checkpointLocation", str(options.checkpoint.absolute()))
            .trigger(processingTime=f"{options.trigger_ms} milliseconds")
            .start()
        )
    except PySparkException as error:  # Spark makes the source in a process of its own
        raise cause(None, str(error)) from error


@contextmanager
def _calling_the_jvm() -> Iterator[None]:
    """Around calls of Spark alone: an OSError of the sink or of `tick` is no end of the JVM."""
    try:
        yield
    except (Py4JError, OSError) as error:
        raise DuewheelError(f"Spark's JVM has ended: {error}") from error


def _has_ended(query: StreamingQuery, within_s: float) -> bool:
    with _calling_the_jvm():
        return bool(query.awaitTermination(within_s))  # type: ignore[arg-type]


def _progress(query: StreamingQuery, sink: TimerSink) -> QueryProgress:
    with _calling_the_jvm():
        return read_progress(query.lastProgress, sink.early_ends)


def _await_batch(query: StreamingQuery, sink: TimerSink) -> None:
    """Waits until the running batch is finished: otherwise the next query repeats it."""
    end_s = time.monotonic() + _LAST_BATCH_S
    while sink.is_busy and time.monotonic() < end_s:
        if _has_ended(query, _POLL_S):
            return


def _stop(query: StreamingQuery, sink: TimerSink) -> None:
    """Ends the query. Spark waits for a running sink; rows that it cannot append are read again."""
    sink.stop()
    with suppress(Py4JError, OSError):  # the JVM has ended already
        query.stop()
    sink.drain()
    if sink.failure is not None and not isinstance(sink.failure, SettingsChange):
        _log.error("the last batch failed", exc_info=sink.failure)
