"""How many rows a batch of Spark's may have: kept over restarts, for the memory decides.

A batch that is too large for the memory would be replayed unchanged for ever. So each start of the
query writes down (file `batch-limit`, JSON behind its CRC-32) where it begins, the engine's marks,
and how many rows its batches may have; and at its end, how it has ended. The next start takes half
as many rows if

- the last one has ended for want of memory, or
- it has ended without a word (killed, by the kernel perhaps), a batch was planned, and the marks
  have not moved: whatever it was, that batch will not come to an end as it is.

A mere kill in the first batch costs a few smaller batches: they grow again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from duewheel.checkpoints.json_fields import MISSHAPEN, integer, read_json, write_json
from duewheel.checkpoints.page_codec import Marks, marks_from, marks_to

SPARK_DIR = "spark"  # in the data directory: everything of Spark's
FILE_NAME = "batch-limit"
ROWS_MIN = 1  # of all partitions together; Spark still reads one of each


class End(Enum):
    """How a query has ended; RUNS until it has."""

    RUNS = "runs"
    ORDERLY = "orderly"
    OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True, slots=True)
class Attempt:
    """A start of the query.

    Attributes:
        marks: the engine's then.
        rows: of one batch, at most.
        end: how it has ended.
    """

    marks: Marks
    rows: int
    end: End = End.RUNS

    def write(self, directory: Path) -> None:
        """Replace the file, durably."""
        told = {"marks": marks_to(self.marks), "rows": self.rows, "end": self.end.value}
        write_json(directory / FILE_NAME, told)

    @classmethod
    def read(cls, directory: Path) -> Attempt | None:
        """The last one; None if there was none, or if the file is damaged: it is only a hint."""
        try:
            raw = read_json(directory / FILE_NAME)
            rows = max(ROWS_MIN, integer(raw["rows"]))
            return cls(marks_from(raw["marks"]), rows, End(raw["end"]))
        except (FileNotFoundError, *MISSHAPEN):
            return None

    def has_failed(self, marks: Marks, *, planned: bool) -> bool:
        """Whether its batches were too large.

        Args:
            marks: the engine's now.
            planned: whether Spark's checkpoint names a batch that was not finished.
        """
        stuck = self.end is End.RUNS and planned and dict(self.marks) == dict(marks)
        return stuck or self.end is End.OUT_OF_MEMORY

    def halved(self) -> int:
        """Rows of the next attempt if this one has failed."""
        return max(self.rows // 2, ROWS_MIN)
