"""A TimerBatch as bytes, for another process: an Arrow IPC stream of one record batch.

Its columns are the stream's columns, its lists are JSON in the schema's metadata. Reading copies
nothing: the columns are views of the bytes, and keep them in memory. Both processes run the same
duewheel, so the stream has no version.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa

from duewheel.schemas.batches import TimerBatch

_pa: Any = pa


def to_bytes(batch: TimerBatch) -> pa.Buffer:
    """The batch as one buffer."""
    columns, lists = {}, {}
    for field in fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, list):
            lists[field.name] = json.dumps(value)
        elif isinstance(value, np.ndarray):
            # Arrow would store booleans as bits, which the reader would have to copy into bytes.
            columns[field.name] = _pa.array(value.view(np.uint8) if value.dtype == bool else value)
        else:
            columns[field.name] = value
    rows = _pa.record_batch(columns).replace_schema_metadata(lists)
    sink = _pa.BufferOutputStream()
    with _pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    octets: pa.Buffer = sink.getvalue()
    return octets


def from_bytes(octets: Any) -> TimerBatch:
    """The batch of `to_bytes`, as views of `octets`: a pa.Buffer."""
    with _pa.ipc.open_stream(octets) as reader:
        rows = reader.read_next_batch()
    lists = {name.decode(): json.loads(text) for name, text in rows.schema.metadata.items()}
    lists["partitions"] = [(topic, number) for topic, number in lists["partitions"]]
    columns = {name: _column(rows.column(name)) for name in rows.schema.names}
    return TimerBatch(**lists, **columns)


def _column(column: Any) -> Any:
    if _pa.types.is_large_binary(column.type):
        return column
    values = column.to_numpy(zero_copy_only=True)
    return values.view(np.bool_) if values.dtype == np.uint8 else values
