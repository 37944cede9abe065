"""Persists the limit of rows, so that the planning process keeps it, and the exit reason of each
query, so that the next start can shrink batches.

Spark replays a planned batch unchanged. A batch that is too large for the memory would therefore
fail for ever. Each start of the query, and each new limit, writes the file `batch-limit` (JSON
after its CRC-32): the engine's marks and the rows that a batch may have; the end of the query adds
the reason. The next start plans fewer rows if

- the last query ran out of memory, or
- it left no reason (a kill, perhaps by the kernel), a batch was planned, and the marks have moved
  by one batch at most. Two batches are in memory, one being fetched and one being appended: either
  may be too large, and would fail again.

A harmless kill in the first batches costs a few smaller ones; the limit grows again.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import ClassVar

from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.checkpoints.json_fields import StateFile
from duewheel.streaming.batch_plan import ROWS_MIN

SPARK_DIR = "spark"  # in the data directory: all files of Spark
FILE_NAME = "batch-limit"


class End(Enum):
    """The exit reason of a query; RUNS before its end."""

    RUNS = "runs"
    ORDERLY = "orderly"
    OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True, slots=True)
class Attempt(StateFile):
    """A start of the query, or a new limit of a running one."""

    file_name: ClassVar[str] = FILE_NAME

    marks: Marks  # the engine's then
    rows: int  # the most of one batch
    end: End = End.RUNS

    def __post_init__(self) -> None:
        if self.rows < ROWS_MIN:
            raise ValueError(f"{self.rows} rows are no batch")

    def has_failed(self, marks: Marks, *, unfinished: bool) -> bool:
        """Whether its batches were too large, by the engine's present marks. `unfinished`: Spark
        has planned a batch that the engine has not got.
        """
        taken = sum(mark - self.marks.get(partition, 0) for partition, mark in marks.items())
        # Spark rounds up in each partition.
        stuck = self.end is End.RUNS and unfinished and 0 <= taken <= self.rows + len(marks)
        return stuck or self.end is End.OUT_OF_MEMORY


class RowsOfBatch:
    """The limit as the planning process reads it: `rows` until the file can be read. Not
    thread-safe.
    """

    def __init__(self, directory: Path, rows: int) -> None:
        self._directory = directory
        self._rows = rows
        self._version: tuple[int, int] | None = None  # of the file that was read

    @property
    def rows(self) -> int:
        """Most rows of the next batch. Costs a `stat`, unless the file was replaced."""
        with suppress(OSError):
            found = (self._directory / FILE_NAME).stat()
            version = (found.st_ino, found.st_mtime_ns)
            if version != self._version and (last := Attempt.read(self._directory)):
                self._rows, self._version = last.rows, version
        return self._rows
