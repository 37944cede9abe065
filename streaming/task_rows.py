"""The rows by which tasks hand their timers to the driver.

A row has one column, COLUMN: a TimerBatch as an Arrow stream (schemas/batch_ipc.py); or the path of
a file with it, where task and driver share a folder. If a batch fails, the driver takes none of its
files. They stay until the next start of ingest, which empties Spark's scratch folder.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from duewheel.schemas.batch_ipc import from_bytes, to_bytes
from duewheel.schemas.batches import TimerBatch
from duewheel.streaming.task_share import COLUMN

_pa: Any = pa  # the published types of buffers do not fit
_SCHEMA = _pa.schema([_pa.field(COLUMN, _pa.binary())])


def row_of(timers: TimerBatch, folder: str) -> Any:
    """An Arrow record batch of one row.

    Args:
        timers: of a task, or a part of them.
        folder: as in TaskSettings.
    """
    cell = to_bytes(timers)
    if folder:
        cell = _write_file(cell, folder)
    # `pa.array` would copy the bytes.
    bounds = _pa.py_buffer(np.array([0, cell.size], np.int32))
    column = _pa.BinaryArray.from_buffers(_pa.binary(), 1, [None, bounds, cell])
    return _pa.record_batch([column], schema=_SCHEMA)


def _write_file(timers: pa.Buffer, folder: str) -> pa.Buffer:
    """Write the timers to a new file; returns its path."""
    path = Path(folder) / uuid.uuid4().hex
    path.write_bytes(memoryview(timers))
    buffer: pa.Buffer = _pa.py_buffer(os.fsencode(path))
    return buffer


def take_timers(table: pa.Table, folder: str) -> TimerBatch:
    """The timers of a batch of the query; removes the files that they come in.

    Args:
        table: the rows of all tasks.
        folder: as in TaskSettings.
    """
    cells = table.column(COLUMN)
    batches = [from_bytes(_take_file(cell) if folder else cell.as_buffer()) for cell in cells]
    if not batches:
        return TimerBatch.none()
    return batches[0].extended_by(*batches[1:])


def _take_file(cell: Any) -> Any:
    """The bytes of a file, which is removed: the mapping keeps them as long as the timers live."""
    path = Path(os.fsdecode(cell.as_py()))
    with _pa.memory_map(str(path)) as file:
        timers = file.read_buffer()
    path.unlink()
    return timers
