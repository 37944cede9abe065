"""A task of the query: reads its ranges of offsets, and hands the timers in them to the driver.

In the process of a task, for each part of its ranges:

    1. fetches raw record batches (kafka/raw_reader.py)
    2. reads the committed records in them as columns (kafka/raw_records.py)
    3. parses the records to timers, each under the settings of its offset (epoch_parser.py)
    4. yields one row, whose only column COLUMN has the timers as an Arrow stream
       (schemas/batch_ipc.py), or the path of a file with it where both processes share a folder

In the driver `take_timers` makes one TimerBatch of the rows of all tasks.

The process of a task lives on after it, with its connections and its parser. If a batch fails, the
driver takes none of its files. They stay until the next start of ingest, which empties Spark's
scratch folder.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from duewheel.checkpoints.config_epochs import Epochs
from duewheel.kafka.clients import ClientSettings
from duewheel.kafka.raw_reader import RawReader
from duewheel.kafka.raw_records import committed_records
from duewheel.schemas.batch_ipc import from_bytes, to_bytes
from duewheel.schemas.batches import TimerBatch
from duewheel.streaming.epoch_parser import parser
from duewheel.streaming.task_share import COLUMN, TaskSettings, TaskShare

# Fetched from each broker at a time. Larger parts take more memory of a task; the fixed costs of
# smaller ones add up.
_PART_BYTES = 8 << 20

_pa: Any = pa  # the published types of buffers do not fit
_SCHEMA = _pa.schema([_pa.field(COLUMN, _pa.binary())])


def read_share(settings: TaskSettings, share: TaskShare) -> Iterator[Any]:
    """The rows of a task, each as an Arrow record batch. Those of a partition are in offset order.

    Raises:
        KafkaUnavailable: the brokers do not answer.
        ConfigError: the rights or the settings of Kafka's clients do not fit.
        RecoveryRefused: this version cannot apply the settings of an epoch.
        DuewheelError: a record batch cannot be read.
    """
    parse = _parser(settings.epochs, settings.dead_letter_topic)
    for part in reader_of(settings).read(share.ranges, _PART_BYTES):
        for records in committed_records(part, share.ranges):
            timers = to_bytes(parse(records))
            yield _row(_write_file(timers, settings.folder) if settings.folder else timers)


class ProcessReader:
    """The one reader of a process, kept from task to task with its connections."""

    def __init__(self) -> None:
        self._key: object = None  # settings and topics of the reader
        self._reader: RawReader | None = None

    def of(self, settings: TaskSettings) -> RawReader:
        """The reader for these settings; one for other settings or topics is closed.

        Raises:
            KafkaUnavailable, ConfigError: as `RawReader`.
        """
        key = (settings.kafka, settings.topics)
        if self._reader is None or self._key != key:
            if self._reader is not None:
                # Garbage collection may never see it (`gc.freeze`): its sockets would stay open.
                self._reader.close()
                self._reader = None
            self._reader = RawReader(ClientSettings(settings.kafka), settings.topics)
            self._key = key
        return self._reader


_process_reader = ProcessReader()


def reader_of(settings: TaskSettings) -> RawReader:
    """This process's reader, as `ProcessReader.of`. The planning process uses it, too."""
    return _process_reader.of(settings)


@functools.lru_cache(maxsize=1)
def _parser(epochs: str, dead_letter_topic: str) -> Any:
    """The parser of a query, made once in a process."""
    parse = parser(Epochs.from_json(json.loads(epochs)), dead_letter_topic)
    # Spark's worker collects garbage after each task, and to visit all objects that live as long as
    # the process took a quarter of a task.
    gc.freeze()
    return parse


def _write_file(timers: pa.Buffer, folder: str) -> pa.Buffer:
    """Write the timers to a new file; returns its path."""
    path = Path(folder) / uuid.uuid4().hex
    path.write_bytes(memoryview(timers))
    buffer: pa.Buffer = _pa.py_buffer(os.fsencode(path))
    return buffer


def _row(cell: pa.Buffer) -> Any:
    """An Arrow record batch of one row. `pa.array` would copy the bytes."""
    bounds = _pa.py_buffer(np.array([0, cell.size], np.int32))
    column = _pa.BinaryArray.from_buffers(_pa.binary(), 1, [None, bounds, cell])
    return _pa.record_batch([column], schema=_SCHEMA)


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
