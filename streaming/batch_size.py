"""Keeps the limit of rows per batch: of a start, after a batch that was too large for the memory
(batch_attempt.py), after batches that succeeded. The limit of bytes follows it (batch_plan.py).

The planning process reads the limit from its file before each batch
(batch_attempt.RowsOfBatch): a new limit needs no new query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import structlog

from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.errors import (
    BatchTooLarge,
    ConfigError,
    CorruptFile,
    DiskFull,
    DuewheelError,
    KafkaUnavailable,
    RecoveryPending,
    RecoveryRefused,
    SparkUnavailable,
)
from duewheel.streaming.batch_attempt import Attempt, End
from duewheel.streaming.batch_plan import ROWS_MIN
from duewheel.streaming.failure import cause
from duewheel.streaming.spark_checkpoint import is_ahead, set_aside

GROWTH_BATCHES = 10  # before the limit of rows grows
# A smaller batch would end in the same way.
_NOT_BY_SIZE = (
    ConfigError,
    CorruptFile,
    DiskFull,
    KafkaUnavailable,
    RecoveryPending,
    RecoveryRefused,
    SparkUnavailable,
)

_log = structlog.get_logger(__name__)


def rows_after_failure(rows: int, rows_max: int) -> int:
    """The limit of rows after a batch that was too large with `rows`; `rows_max` is configured."""
    return min(max(rows // 2, ROWS_MIN), rows_max)


def rows_after_success(rows: int, rows_max: int, batches: int) -> int:
    """The limit of rows after so many batches have succeeded with `rows`."""
    return min(2 * rows, rows_max) if batches >= GROWTH_BATCHES else rows


class FailedBatch(Protocol):
    """The part of the sink (sink.py) that the limit needs."""

    @property
    def failure(self) -> BaseException | None:
        """The error of its last batch, unless a stop request ended that."""
        ...


class RowLimit:
    """The limit of one ingest process, from one query to the next; `rows_max` is the configured
    one.
    """

    def __init__(self, directory: Path, rows_max: int) -> None:
        self._directory = directory
        self._rows_max = rows_max
        self._marks: Marks = {}
        self._first_batch = 0
        self.rows = rows_max  # of the next batch

    def settle(self, checkpoint: Path, marks: Marks) -> None:
        """Sets the limit of the first query of a process, by the engine's marks; sets Spark's
        checkpoint aside if its last batch was too large.
        """
        last = Attempt.read(self._directory)
        if last is None:
            return
        self.rows = min(last.rows, self._rows_max)
        if last.has_failed(marks, unfinished=is_ahead(checkpoint, marks)):
            self.rows = rows_after_failure(last.rows, self._rows_max)
            set_aside(checkpoint)
            _log.warning(
                "the last batch did not finish: taking fewer rows at a time",
                end=last.end.value,
                rows=last.rows,
                next_rows=self.rows,
            )

    def begun(self, marks: Marks, batches: int) -> None:
        """Writes the limit: batches of so many rows begin at the marks, after this process has
        finished `batches`.
        """
        self._marks, self._first_batch = marks, batches
        self._note(End.RUNS)

    @contextmanager
    def noting_the_end(self, is_stopping: Callable[[], bool], sink: FailedBatch) -> Iterator[None]:
        """Around the queries: notes why they have ended, so that the next start can shrink batches.

        An error of no known kind, such as a dead JVM, leaves no reason: as after a kill, the batch
        may have been too large. During a stop such an error counts as orderly, because the stop may
        have ended the JVM; only BatchTooLarge still shrinks the next batch.
        """
        try:
            yield
        except BatchTooLarge:
            self.ended(End.OUT_OF_MEMORY)
            raise
        except _NOT_BY_SIZE:
            self.ended(End.ORDERLY)
            raise
        except DuewheelError:
            if is_stopping():
                self.ended(End.ORDERLY)
            raise
        else:
            too_large = isinstance(cause(sink.failure), BatchTooLarge)
            self.ended(End.OUT_OF_MEMORY if too_large else End.ORDERLY)

    def ended(self, end: End) -> None:
        self._note(end)

    def _note(self, end: End) -> None:
        """Writes the file for the next start. It is a hint: a full disk must not end the query."""
        try:
            Attempt(self._marks, self.rows, end).write(self._directory)
        except OSError as error:
            _log.warning("cannot write the limit of rows per batch", reason=str(error))

    def grow(self, marks: Marks, batches: int, behind: int) -> None:
        """Writes a larger limit if enough batches have succeeded with this one (`batches`: finished
        by this process), and offsets wait to be read.
        """
        rows = rows_after_success(self.rows, self._rows_max, batches - self._first_batch)
        if behind and rows > self.rows:
            before, self.rows = self.rows, rows
            _log.info("new limit of rows per batch", rows=before, next_rows=self.rows)
            self.begun(marks, batches)
