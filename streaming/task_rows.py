"""The rows by which tasks hand their timers to the driver.

    timers       a TimerBatch as an Arrow stream (schemas/batch_ipc.py); or the path of a file with
                 it, where task and driver share a folder; null in a row of early ends
    early_ends   where the task has ended before the ends of its ranges, and the messages that its
                 topics' bytes count as beyond those that were read (byte_budget.py), as JSON; or
                 null

If a batch fails, the driver takes none of its files. They stay until the next start of ingest,
which empties Spark's scratch folder.
"""

from __future__ import annotations

import json
import os
import uuid
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from duewheel.checkpoints.commit_and_close_pages import Marks, marks_from, marks_to
from duewheel.schemas.batch_ipc import from_bytes, to_bytes
from duewheel.schemas.batches import TimerBatch
from duewheel.streaming.task_share import EARLY_ENDS, TIMERS

_pa: Any = pa  # the published types of buffers do not fit
SCHEMA = _pa.schema([(TIMERS, _pa.binary()), (EARLY_ENDS, _pa.string())])


def row_of(timers: TimerBatch, folder: str) -> Any:
    """An Arrow record batch of one row with timers of a task. `folder` as in TaskSettings."""
    cell = to_bytes(timers)
    if folder:
        cell = _write_file(cell, folder)
    # `pa.array` would copy the bytes.
    bounds = _pa.py_buffer(np.array([0, cell.size], np.int32))
    column = _pa.BinaryArray.from_buffers(_pa.binary(), 1, [None, bounds, cell])
    return _pa.record_batch([column, _pa.nulls(1, _pa.string())], schema=SCHEMA)


def row_of_ends(early: Marks, added_messages: Mapping[str, int]) -> Any:
    """An Arrow record batch of one row with the task's early ends, and added messages by topic."""
    text = json.dumps([marks_to(early), added_messages])
    columns = [_pa.nulls(1, _pa.binary()), _pa.array([text])]
    return _pa.record_batch(columns, schema=SCHEMA)


def _write_file(timers: pa.Buffer, folder: str) -> pa.Buffer:
    """Writes the timers to a new file; returns its path."""
    path = Path(folder) / uuid.uuid4().hex
    path.write_bytes(memoryview(timers))
    buffer: pa.Buffer = _pa.py_buffer(os.fsencode(path))
    return buffer


def take_timers(table: pa.Table, folder: str) -> tuple[TimerBatch, Marks, Counter[str]]:
    """The timers of a batch of the query, from the rows of all tasks, its early ends, and its added
    messages by topic; removes the files that the timers come in. `folder` as in TaskSettings.
    """
    early: Marks = {}
    added_messages = Counter[str]()
    for text in table.column(EARLY_ENDS).drop_null():
        ends, of_task = json.loads(str(text))
        early = {**early, **marks_from(ends)}
        added_messages.update(of_task)
    cells = table.column(TIMERS).drop_null()
    batches = [from_bytes(_take_file(cell) if folder else cell.as_buffer()) for cell in cells]
    if not batches:
        return TimerBatch.none(), early, added_messages
    return batches[0].extended_by(*batches[1:]), early, added_messages


def _take_file(cell: Any) -> Any:
    """The bytes of a file, which is removed: the mapping keeps them as long as the timers live."""
    path = Path(os.fsdecode(cell.as_py()))
    with _pa.memory_map(str(path)) as file:
        timers = file.read_buffer()
    path.unlink()
    return timers
