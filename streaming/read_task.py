"""A task of the query: reads its ranges of offsets, and hands the timers in them to the driver.

In the process of a task, for each part of its ranges:

    1. fetches raw record batches (kafka/log/reader.py)
    2. reads the committed records in them as columns (kafka/log/columns.py)
    3. parses the records to timers, each under the settings of its offset (epoch_parser.py)
    4. yields the timers as a row (task_rows.py)

until it has read its ranges, or as many bytes as it may (byte_budget.py).

The process of a task lives on after it, with its connections, its parser, and the record batches
that its ranges have cut.
"""

from __future__ import annotations

import functools
import gc
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from duewheel.checkpoints.config_epochs import Epochs
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.log.columns import CutBatches, committed_records
from duewheel.kafka.log.reader import LogReader
from duewheel.schemas.batches import TimerBatch, TopicPartition
from duewheel.schemas.wire.kafka_records import KafkaRecords
from duewheel.streaming.byte_budget import ByteBudget
from duewheel.streaming.epoch_parser import parser
from duewheel.streaming.task_rows import row_of, row_of_ends
from duewheel.streaming.task_share import TaskSettings, TaskShare

# Fetched from each broker at a time. Larger parts take more memory of a task; the fixed costs of
# smaller ones add up.
_PART_BYTES = 8 << 20


def read_share(settings: TaskSettings, share: TaskShare) -> Iterator[Any]:
    """The rows of a task, each as an Arrow record batch. Those of a partition are in offset order.

    Raises:
        KafkaUnavailable: the brokers do not answer.
        ConfigError: the rights or the settings of Kafka's clients do not fit.
        RecoveryRefused: this version cannot apply the settings of an epoch.
        DuewheelError: a record batch is damaged.
    """
    parse, skipped = _parser(settings.epochs, settings.dead_letter_topic)
    return rows_of(share, reader_of(settings), parse, skipped, settings.folder)


def rows_of(
    share: TaskShare,
    reader: LogReader,
    parse: Callable[[KafkaRecords], TimerBatch],
    skipped: Mapping[TopicPartition, Sequence[int]],
    folder: str,
) -> Iterator[Any]:
    """See `read_share`. `skipped` are the offsets that the operator has skipped."""
    budget = ByteBudget(share.ranges, share.bytes_max)
    for ranges in budget.rounds():
        for part in reader.read(ranges, _PART_BYTES):
            for records in committed_records(
                part, ranges, skipped=skipped, cut=_cut_batches, took=budget.took
            ):
                timers = parse(records)
                budget.parsed(timers)
                yield row_of(timers, folder)
    if budget.early_ends or budget.added_messages:
        yield row_of_ends(budget.early_ends, budget.added_messages)


class ProcessReader:
    """The one reader of a process, kept from task to task with its connections."""

    def __init__(self) -> None:
        self._key: object = None  # settings and topics of the reader
        self._reader: LogReader | None = None

    def of(self, settings: TaskSettings) -> LogReader:
        """The reader for these settings; one for other settings or topics is closed."""
        key = (settings.kafka, settings.topics)
        if self._reader is None or self._key != key:
            if self._reader is not None:
                # Garbage collection may never see it (`gc.freeze`): its sockets would stay open.
                self._reader.close()
                self._reader = None
            self._reader = LogReader(KafkaClients(settings.kafka), settings.topics)
            self._key = key
        return self._reader


_process_reader, _process_news = ProcessReader(), ProcessReader()
_cut_batches = CutBatches()


def reader_of(settings: TaskSettings) -> LogReader:
    """This process's reader, as `ProcessReader.of`. The planning process uses it, too."""
    return _process_reader.of(settings)


def news_of(settings: TaskSettings) -> LogReader:
    """The planning process's reader for `await_news` alone, with connections of its own."""
    return _process_news.of(settings)


@functools.lru_cache(maxsize=1)
def _parser(epochs: str, dead_letter_topic: str) -> tuple[Any, Any]:
    """The parser of a query, made once in a process, and the skipped offsets."""
    of_epochs = Epochs.from_json(json.loads(epochs))
    parse = parser(of_epochs, dead_letter_topic)
    # Spark's worker collects garbage after each task, and to visit all objects that live as long as
    # the process took a quarter of a task.
    gc.freeze()
    return parse, of_epochs.skipped
