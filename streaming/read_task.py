"""What a task of the query does: it reads its ranges and hands timers to the driver.

    1. raw record batches are fetched, part by part (kafka/raw_reader.py)
    2. the committed records of the range are read from them as columns (kafka/raw_records.py)
    3. they are parsed to timers, each under the settings of its offset (epoch_parser.py)
    4. the timers of each part are one row: an Arrow stream (schemas/batch_ipc.py), or where the
       tasks share a folder with the driver, the path of a file with it

A task's process lives on between tasks, and so do its connections and its parser. A file that
nobody takes, because its batch has failed, stays until the next start: the folder is Spark's
scratch space.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from duewheel.checkpoints.config_epochs import Epochs
from duewheel.kafka.clients import ClientSettings
from duewheel.kafka.raw_reader import RawReader
from duewheel.kafka.raw_records import committed_records
from duewheel.schemas.batch_ipc import from_bytes, to_bytes
from duewheel.schemas.batches import TimerBatch, TopicPartition
from duewheel.streaming.epoch_parser import parser

COLUMN = "timers"  # of the rows

# Fetched, read and handed over at a time. With more, a task needs more memory; with less, the fixed
# cost of a part counts.
_PART_BYTES = 8 << 20

_pa: Any = pa
_SCHEMA = _pa.schema([_pa.field(COLUMN, _pa.binary())])


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """What all tasks of a query have in common; hashable.

    Attributes:
        kafka: JSON of options of kafka-python's clients.
        topics: the timer topics.
        epochs: `Epochs.text`.
        dead_letter_topic: where rejected rows go.
        folder: shared with the driver, or empty.
    """

    kafka: str
    topics: tuple[str, ...]
    epochs: str
    dead_letter_topic: str
    folder: str


@dataclass
class TaskShare(InputPartition):
    """What one task reads.

    Attributes:
        ranges: first offset, and the one behind the last, of each partition.
    """

    ranges: Mapping[TopicPartition, tuple[int, int]]


def read(settings: TaskSettings, share: TaskShare) -> Iterator[Any]:
    """The rows of a task, as Arrow batches.

    Raises:
        KafkaUnavailable: the brokers do not answer.
        DuewheelError: a record batch cannot be read.
    """
    parse = _parser(settings.epochs, settings.dead_letter_topic)
    for part in reader_of(settings).read(share.ranges, _PART_BYTES):
        for records in committed_records(part, share.ranges):
            timers = to_bytes(parse(records))
            yield _row(_written(timers, settings.folder) if settings.folder else timers)


_readers: dict[tuple[str, tuple[str, ...]], RawReader] = {}  # one at most


def reader_of(settings: TaskSettings) -> RawReader:
    """This process's reader."""
    key = (settings.kafka, settings.topics)
    if key not in _readers:
        # The one of other topics would keep its connections: it may be frozen, see below.
        for other in [_readers.pop(each) for each in list(_readers)]:
            other.close()
        _readers[key] = RawReader(ClientSettings(json.loads(settings.kafka)), settings.topics)
    return _readers[key]


@functools.lru_cache(maxsize=1)
def _parser(epochs: str, dead_letter_topic: str) -> Any:
    parse = parser(Epochs.from_json(json.loads(epochs)), dead_letter_topic)
    # Spark's worker collects garbage after each task. What lives as long as the process need not be
    # looked at: that took a quarter of a task.
    gc.freeze()
    return parse


def _written(timers: pa.Buffer, folder: str) -> pa.Buffer:
    """The path of a new file with the timers."""
    path = Path(folder) / uuid.uuid4().hex
    path.write_bytes(memoryview(timers))
    buffer: pa.Buffer = _pa.py_buffer(os.fsencode(path))
    return buffer


def _row(cell: pa.Buffer) -> Any:
    """One row; the bytes are not copied."""
    bounds = _pa.py_buffer(np.array([0, cell.size], np.int32))
    column = _pa.BinaryArray.from_buffers(_pa.binary(), 1, [None, bounds, cell])
    return _pa.record_batch([column], schema=_SCHEMA)


def timers(table: pa.Table, folder: str) -> TimerBatch:
    """The timers of a batch of the query.

    Args:
        table: its rows.
        folder: as in TaskSettings. Files are removed; their bytes stay while the batch lives.
    """
    cells = table.column(COLUMN)
    batches = [from_bytes(_taken(cell) if folder else cell.as_buffer()) for cell in cells]
    if not batches:
        return TimerBatch.none()
    return batches[0].extended_by(*batches[1:])


def _taken(cell: Any) -> Any:
    path = Path(os.fsdecode(cell.as_py()))
    with _pa.memory_map(str(path)) as file:
        timers = file.read_buffer()
    path.unlink()
    return timers
