"""The cancelled records of each hour's log: cancelled/<hour>, an append-only file per slot hour.

Ingest writes here, in the commit of a batch with cancels, the records that each one cancels. After
the commit page it stores MAGIC_CANCELLED in the log records themselves, where dequeue reads it. The
file has two more readers:

- redo after a kill between the commit page and that store, and a start after a loss of power, in
  which the store may be lost and the commit page not: both store it again
- accept_loss.py, which needs the offset of the cancel: a partition that Kafka has cut short cannot
  continue while a cancel from beyond the cut suppresses a pending timer

The file is unlinked with its hour. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from duewheel.checkpoints.fs import HOST_FS, FileSystem
from duewheel.errors import CorruptFile
from duewheel.schemas.arrays import Int64
from duewheel.wheel.storage.byte_layouts import CANCELLATION, row_checks
from duewheel.wheel.storage.hour_files import HourFiles

FOLDER = "cancelled"

Cancellations = npt.NDArray[np.void]  # of dtype CANCELLATION

_CHECKED_FROM = 8  # the field `offset`, after `check`
_ROWS_AT_ONCE = 100_000  # a producer may cancel millions of timers of one hour


class CancelledRecords:
    """The files of every hour. Ingest writes, all processes read."""

    def __init__(self, directory: Path, fs: FileSystem = HOST_FS) -> None:
        self.files = HourFiles(directory / FOLDER, fs)

    def write(self, hour: int, length: int, offset: Int64, position: Int64) -> int:
        """Appends at `length`; returns the new length. `offset` is that of each cancel, `position`
        that of the log record which it cancels.
        """
        rows = np.empty(len(offset), CANCELLATION)
        rows["offset"], rows["position"] = offset, position
        rows["check"] = row_checks(rows, _CHECKED_FROM)
        self.files.write(hour, rows.tobytes(), length)
        return length + rows.nbytes

    def read(self, hour: int, start: int, end: int) -> Cancellations:
        """Reads the records between two positions of the file.

        Raises:
            CorruptFile: they are missing or damaged.
        """
        if start == end:
            return np.empty(0, CANCELLATION)
        octets, path = self.files.read(hour, start, end - start), self.files.path(hour)
        if len(octets) % CANCELLATION.itemsize:
            raise CorruptFile(path, end, "not a whole number of records")
        rows = np.frombuffer(octets, CANCELLATION)
        bad = np.flatnonzero(rows["check"] != row_checks(rows, _CHECKED_FROM))
        if len(bad):
            at = start + int(bad[0]) * CANCELLATION.itemsize
            raise CorruptFile(path, at, "a record does not match its check")
        return rows

    def blocks(
        self, hour: int, start: int, end: int, rows_max: int = _ROWS_AT_ONCE
    ) -> Iterator[Cancellations]:
        """Reads the records between two positions, a bounded number at a time.

        Raises:
            CorruptFile: as `read`.
        """
        step = rows_max * CANCELLATION.itemsize
        for at in range(start, end, step):
            yield self.read(hour, at, min(at + step, end))

    def close(self) -> None:
        self.files.close()
