"""The timer topics as a Python data source of Spark.

Spark plans ranges of offsets, keeps them in its checkpoint (spark_checkpoint.py) and runs tasks.
What a task does is in read_task.py: its rows are timers already, so no record passes through the
JVM. This module plans, in one Python process beside the JVM:

    initialOffset   where the query begins without a checkpoint: the engine's marks
    latestOffset    the last stable offsets, so that a range holds no open transaction; not further
                    behind the start than the limit of rows
    partitions      the ranges of a batch, shared among the tasks; a partition is never divided,
                    because its rows must keep their order

Data loss does not fail the query: it would fail again at every restart. The sink compares offsets
with the engine's marks instead and reports the missing ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows

from duewheel.kafka.raw_reader import EARLIEST, LATEST, RawReader
from duewheel.schemas.batches import TopicPartition
from duewheel.streaming.read_task import COLUMN, TaskSettings, TaskShare, read, reader_of

_FORMAT = "duewheel"
_SETTINGS = "settings_secret"  # Spark redacts the values of such names
_ROWS_OF_ONE_TASK = 2_000  # fewer are read faster by one task than by several

Offsets = dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The topics and offsets to read.

    Attributes:
        kafka: options of kafka-python's clients, with the servers.
        topics: the timer topics.
        starting_offsets: next offset, or EARLIEST, for every partition that is read. Ignored where
            a checkpoint exists.
        only: whether to read only those partitions; otherwise all of the topics, later ones too.
        max_offsets_per_trigger: most rows of one batch.
        epochs: the settings epochs, as `Epochs.text`.
        dead_letter_topic: where rejected rows go.
        folder: that the tasks share with this process: timers are handed over in its files. Empty:
            through Spark.
    """

    kafka: Mapping[str, Any]
    topics: Sequence[str]
    starting_offsets: Mapping[TopicPartition, int]
    max_offsets_per_trigger: int
    epochs: str
    dead_letter_topic: str
    folder: str = ""
    only: bool = False


def timer_stream(spark: SparkSession, options: SourceOptions) -> DataFrame:
    """The stream, for `read_task.timers`. Rows of a partition are in offset order."""
    settings = {
        "kafka": dict(options.kafka),
        "topics": list(options.topics),
        "starts": to_json(options.starting_offsets),
        "rows_max": options.max_offsets_per_trigger,
        "epochs": options.epochs,
        "dead_letter_topic": options.dead_letter_topic,
        "folder": options.folder,
        "only": options.only,
        "tasks": _cores(spark),
    }
    spark.dataSource.register(TimerSource)
    return spark.readStream.format(_FORMAT).option(_SETTINGS, json.dumps(settings)).load()


def _cores(spark: SparkSession) -> int:
    """Those of the executors; a cluster's may not all be there yet."""
    context = spark.sparkContext
    return max(context.defaultParallelism, int(context.getConf().get("spark.cores.max") or 0))


class TimerSource(DataSource):
    """The data source, as Spark makes it."""

    @classmethod
    def name(cls) -> str:
        return _FORMAT

    def schema(self) -> str:
        return f"{COLUMN} binary"

    def streamReader(self, schema: object) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return TimerReader(json.loads(self.options[_SETTINGS]))


class TimerReader(DataSourceStreamReader):
    """Plans in one process, reads in the tasks. Spark copies it to both."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """`settings`: as `timer_stream` writes them."""
        self._task = TaskSettings(
            kafka=json.dumps(settings["kafka"]),
            topics=tuple(settings["topics"]),
            epochs=settings["epochs"],
            dead_letter_topic=settings["dead_letter_topic"],
            folder=settings["folder"],
        )
        self._starts = from_json(settings["starts"])
        self._only = bool(settings["only"])
        self._rows_max = int(settings["rows_max"])
        self._tasks = int(settings["tasks"])
        self._ends: Offsets = {}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return to_json(self._begun(self._starts, self._starts))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(self._rows_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        kafka = self._kafka
        self._ends = kafka.offsets(self._starts if self._only else kafka.partitions(), LATEST)
        before = from_json(start)
        begun = self._begun(before, self._ends)
        # A partition that the metadata lacks for a moment keeps its offset: as a new one it would
        # be read again from its log's start.
        return to_json(before | limited(begun, self._ends, self._rows_max))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        return to_json(self._ends)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        ends = from_json(end)
        begun = self._begun(from_json(start), ends)
        ranges = {p: (begun[p], until) for p, until in ends.items() if begun[p] < until}
        return shared(ranges, self._tasks)

    def read(self, share: InputPartition) -> Any:
        assert isinstance(share, TaskShare)
        return read(self._task, share)

    @property
    def _kafka(self) -> RawReader:
        return reader_of(self._task)

    def _begun(self, given: Mapping[TopicPartition, int], wanted: Mapping[Any, Any]) -> Offsets:
        """Where each wanted partition begins: a new one at its log's start."""
        new = [p for p in wanted if given.get(p, EARLIEST) == EARLIEST]
        found = self._kafka.offsets(new, EARLIEST) if new else {}
        return {p: found[p] if p in found else given[p] for p in wanted}


def limited(begun: Offsets, ends: Offsets, rows_max: int) -> Offsets:
    """The end of the next batch: all partitions get the same share of what waits in each. A log
    that has lost its end gets its end as it is now: the sink refuses it.
    """
    waiting = {p: max(end - begun[p], 0) for p, end in ends.items()}
    # Rounded up: otherwise a partition with few rows would never move.
    total = max(sum(waiting.values()), rows_max, 1)
    return {p: min(ends[p], begun[p] + -(-rows * rows_max // total)) for p, rows in waiting.items()}


def shared(ranges: Mapping[TopicPartition, tuple[int, int]], tasks: int) -> list[TaskShare]:
    """The ranges, shared among at most so many tasks; the largest first, to the task with least."""
    rows = {p: until - first for p, (first, until) in ranges.items()}
    if sum(rows.values()) < _ROWS_OF_ONE_TASK:
        tasks = 1
    shares: list[dict[TopicPartition, tuple[int, int]]] = [{} for _ in range(tasks)]
    sizes = [0] * tasks
    for partition in sorted(rows, key=rows.__getitem__, reverse=True):
        least = sizes.index(min(sizes))
        shares[least][partition] = ranges[partition]
        sizes[least] += rows[partition]
    return [TaskShare(each) for each in shares if each]


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, Any]:
    """Offsets as they stand in Spark's checkpoint."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, number), offset in sorted(offsets.items()):
        topics.setdefault(topic, {})[str(number)] = offset
    return topics


def from_json(topics: Mapping[str, Mapping[str, int]]) -> Offsets:
    """The other direction of `to_json`."""
    return {
        (topic, int(number)): offset
        for topic, offsets in topics.items()
        for number, offset in offsets.items()
    }
