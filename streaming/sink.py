"""The sink of Spark's query: fetches the timers of each batch, which a thread then appends.

    1. one Arrow transfer runs the tasks and fetches their timers (read_task.py)
    2. a partition that leads to too many hours far ahead ends early (wheel/append/far_hours.py)
    3. Spark's offset log gives the batch's end offsets, the new marks: rows do not show them, since
       transaction markers leave gaps and a batch may be empty. Where tasks have ended early, that
       is the end, and the next batch begins there (early_ends.py)
    4. a thread gives both to the engine (batch_taker.py), while Spark's tasks read the next batch
       (background_append.py)

A failure at any step costs nothing: the query that fails, or the next one, reads again from the
engine's marks, and rows that the engine has are dropped. The batch id only names the file of
step 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame

from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.schemas.batches import TimerBatch
from duewheel.streaming.background_append import BackgroundAppend, StoppedWaitingError
from duewheel.streaming.batch_taker import BatchTaker, TakerStatistics
from duewheel.streaming.early_ends import EarlyEnds
from duewheel.streaming.spark_checkpoint import end_offsets

Timers = Callable[[pa.Table], tuple[TimerBatch, Marks, Mapping[str, int]]]


class TimerSink:
    """The function object given to foreachBatch. Called by one thread at a time.

    `timers` converts the query's rows to timers, the early ends of its tasks, and the messages that
    its bytes add. `stop`, `is_busy`, the errors and `statistics` may be used from other threads.
    """

    def __init__(
        self, taker: BatchTaker, timers: Timers, checkpoint: Path, early_ends: EarlyEnds
    ) -> None:
        self._taker = taker
        self._timers = timers
        self._checkpoint = checkpoint
        self._early_ends = early_ends
        self._fetching = False
        self._fetch_error: BaseException | None = None
        self._appending = BackgroundAppend()

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Fetches one batch, waits until the engine has the one before, and starts to append this
        one. Spark takes the batch as finished when this returns (background_append.py).

        Raises:
            StoppedWaitingError: `stop` was called before, or during a wait.
            BaseException: the error of the batch before.
        """
        self._fetching = True
        try:
            if self._taker.is_stopping:
                raise StoppedWaitingError("stopped before the batch was read")
            batch, early, added = self._timers(frame.toArrow())
            batch, waiting = self._taker.cut(batch)
            planned = end_offsets(self._checkpoint, batch_id)
            early = {**early, **waiting}
            # Before Spark plans again: the next batch would begin at the planned end, and skip
            # rows.
            ends = self._early_ends.note(planned, early, self._taker.marks, waiting, added)
            self._appending.put(partial(self._taker.take, batch, ends))
        except BaseException as error:
            self._fetch_error = error
            raise
        finally:
            self._fetching = False

    @property
    def error(self) -> BaseException | None:
        """The exception of the last batch, or of its append; a stop request ends a batch with a
        StoppedWaitingError. Spark passes only the text on, if at all.
        """
        return self.append_error or self._fetch_error

    @property
    def failure(self) -> BaseException | None:
        """`error`, or None if that was a stop request: the reason why ingest must end."""
        return None if isinstance(self.error, StoppedWaitingError) else self.error

    @property
    def append_error(self) -> BaseException | None:
        """The exception of the append alone. Spark counts that batch as finished: unless the query
        is stopped, it runs until its next batch.
        """
        return self._appending.error

    @property
    def is_busy(self) -> bool:
        """Whether a batch is being taken."""
        return self._fetching or self._appending.is_busy

    @property
    def early_ends(self) -> Marks:
        """Those of the newest batch."""
        return self._early_ends.ends

    def stop(self) -> None:
        """Ends a waiting call soon."""
        self._taker.stop()

    def drain(self) -> None:
        """Waits until the engine has the last batch, or that has failed: see `error`. No other one
        begins: a sink whose JVM has died must not append while the files are closed.
        """
        self._appending.end()

    def resume(self) -> None:
        """Prepares for the next query's batches; the last one of the query before is drained."""
        self._early_ends.clear()
        self._taker.resume()
        self._appending.reset()
        self._fetch_error = None

    @property
    def statistics(self) -> TakerStatistics:
        return self._taker.statistics
