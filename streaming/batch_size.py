"""The rows per batch that the memory bears: half after a failure, more again once batches pass.

Two bounds beside the configured one:

    what failed   half of it, and half again, until batches pass (streaming/batch_attempt.py);
                  after some that did, twice as much
    bytes         a batch's rows should not take more than so many, by the bytes that a row has had
                  lately; a share of the driver's heap unless configured

Spark takes the limit when a query starts: another one means another query, on the same checkpoint.
"""

from __future__ import annotations

from pathlib import Path

import structlog

from duewheel.checkpoints.page_codec import Marks
from duewheel.streaming.batch_attempt import ROWS_MIN, Attempt, End
from duewheel.streaming.spark_checkpoint import is_planned, set_aside

PASSED_BATCHES = 10  # before the limit grows

_log = structlog.get_logger(__name__)


class RowLimit:
    """The limit of one ingest process, from one query to the next.

    Attributes:
        rows: of the query that runs, or is to be started.
    """

    def __init__(self, directory: Path, rows_max: int, bytes_max: int) -> None:
        """
        Args:
            directory: for its file.
            rows_max: the configured limit.
            bytes_max: of a batch's rows, as they come from Spark.
        """
        self._directory = directory
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._marks: Marks = {}
        self._passed = 0
        self.rows = rows_max

    def settle(self, checkpoint: Path, marks: Marks) -> None:
        """Decide on the limit of the first query of a process.

        Args:
            checkpoint: Spark's; set aside if its planned batch has failed for its size.
            marks: the engine's.
        """
        last = Attempt.read(self._directory)
        if last is None:
            return
        self.rows = min(last.rows, self._rows_max)
        if last.has_failed(marks, planned=is_planned(checkpoint)):
            self.rows = min(last.halved(), self._rows_max)
            set_aside(checkpoint)
            _log.warning(
                "the last batch did not come to an end: taking fewer rows at a time",
                end=last.end.value,
                rows=last.rows,
                next_rows=self.rows,
            )

    def begun(self, marks: Marks, batches: int) -> None:
        """A query starts, behind so many batches of this process."""
        self._marks, self._passed = marks, batches
        self._note(End.RUNS)

    def ended(self, end: End) -> None:
        """The query has ended."""
        self._note(end)

    def _note(self, end: End) -> None:
        """For the next start; a hint, which a full disk may do without."""
        try:
            Attempt(self._marks, self.rows, end).write(self._directory)
        except OSError as error:
            _log.warning("the rows of a batch are not noted", reason=str(error))

    def is_outgrown(self, batches: int, row_bytes: float, behind: int) -> bool:
        """Whether another query should be started, with another limit.

        Args:
            batches: that this process has finished.
            row_bytes: what a row has taken lately; 0 if that is not known.
            behind: offsets that wait to be read: without any the limit does not matter.
        """
        bound = self._rows_max
        if row_bytes:
            bound = min(bound, max(ROWS_MIN, int(self._bytes_max / row_bytes)))
        rows = self.rows
        if 2 * bound <= rows:
            rows = bound
        elif behind and batches - self._passed >= PASSED_BATCHES and rows < bound:
            # Not for a little more: a query takes a second to start.
            rows = min(2 * rows, bound) if 2 * rows <= bound or bound == self._rows_max else rows
        if rows == self.rows:
            return False
        _log.info("other rows per batch", rows=self.rows, next_rows=rows, row_bytes=int(row_bytes))
        self.rows = rows
        return True
