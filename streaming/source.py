"""The timer topics as a Python data source of Spark.

Spark calls the methods of `TimerReader` in one Python process beside the JVM, to plan each batch.
It keeps the batch's end in its checkpoint (spark_checkpoint.py) and runs the tasks (read_task.py):

    initialOffset   where a query without a checkpoint begins: the engine's marks
    latestOffset    where the next batch ends: at most at the last stable offsets, so that it has no
                    record of an open transaction, and after at most so many rows; in a topic with a
                    quota where that permits (topic_quotas.py)
    partitions      the ranges of a batch, one for each partition, divided among the tasks. One task
                    reads all of a partition's range, because its rows must keep their order
    read            in the process of a task

Offsets that retention has deleted do not fail the query: it would fail again at every restart. The
sink compares offsets with the engine's marks, and reports the missing ones.

At each start of a query two more processes, one after the other, import this module only to make
the source and the reader. numpy, pyarrow and Kafka's client would cost each of them half a second;
they are imported where offsets or records are read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows

from duewheel.checkpoints.commit_and_close_pages import Marks, marks_from, marks_to
from duewheel.clock import SystemClock
from duewheel.kafka.log.list_offsets_times import EARLIEST
from duewheel.streaming.batch_attempt import RowsOfBatch
from duewheel.streaming.batch_plan import Offsets, batch_ends, bytes_of, divide
from duewheel.streaming.early_ends import EarlyEnds, offsets_after, offsets_from
from duewheel.streaming.task_share import EARLY_ENDS, TIMERS, TaskSettings, TaskShare

if TYPE_CHECKING:  # see the module's head
    from duewheel.kafka.log.reader import LogReader
    from duewheel.schemas.batches import TopicPartition
    from duewheel.streaming.topic_quotas import TopicQuotas

_FORMAT = "duewheel"
# Names of Spark's options of a stream. It redacts the values of those with `secret`.
_OPTIONS, _TASKS = "options_secret", "tasks"
_QUIET_S = 0.5  # how long one call of `latestOffset` waits for rows; a stop waits for it
_LEFT_OUT_S = 60.0
_NEXT_READ_S = 1.0  # between two reads of quiet logs' ends, which also show added partitions
# Of `poll_ms`: so long after a first record its batch is planned. Those that are written with it
# would else wait for the next one.
_TOGETHER = 0.25


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The topics and limits of a query."""

    task: TaskSettings  # the settings of its tasks
    # Next offset of each partition; EARLIEST: the log's start. Spark ignores them where a
    # checkpoint exists.
    starting_offsets: Marks
    folder: str  # has the limit of rows of a batch (batch_attempt.RowsOfBatch), and early ends
    rows_max: int  # most rows of a batch
    bytes_max: int  # of their records, with as many rows (batch_plan.bytes_of)
    # Whether to read the partitions of `starting_offsets` only, as a shard with a share of the
    # partitions does. Otherwise all partitions are read, also those added later.
    only: bool = False
    # Between two reads of the logs' ends, while there is nothing to read and the brokers do not say
    # when there is; 0: one read for each call of Spark's.
    poll_ms: int = 0
    # Messages per second of the topics that have a quota
    quotas: Mapping[str, int] = field(default_factory=dict)
    data_dir: str = ""  # of the shard; only quotas need it

    @property
    def text(self) -> str:
        """JSON, as `from_text` reads it."""
        return json.dumps(asdict(self) | {"starting_offsets": marks_to(self.starting_offsets)})

    @classmethod
    def from_text(cls, text: str) -> SourceOptions:
        fields = json.loads(text)
        task, starts = TaskSettings(**fields["task"]), marks_from(fields["starting_offsets"])
        return cls(**(fields | {"task": task, "starting_offsets": starts}))


def timer_stream(spark: SparkSession, options: SourceOptions) -> DataFrame:
    """The stream whose rows `task_rows.take_timers` reads."""
    spark.dataSource.register(TimerSource)
    stream = spark.readStream.format(_FORMAT)
    return stream.option(_OPTIONS, options.text).option(_TASKS, _cores(spark)).load()


def _cores(spark: SparkSession) -> int:
    """The cores of all executors; of a cluster also of those that have not come yet."""
    context = spark.sparkContext
    return max(context.defaultParallelism, int(context.getConf().get("spark.cores.max") or 0))


class TimerSource(DataSource):
    """The data source; Spark makes one from the options of `timer_stream`."""

    @classmethod
    def name(cls) -> str:
        return _FORMAT

    def schema(self) -> str:
        return f"{TIMERS} binary, {EARLY_ENDS} string"

    def streamReader(self, schema: object) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        options = SourceOptions.from_text(self.options[_OPTIONS])
        return TimerReader(options, int(self.options[_TASKS]))


class TimerReader(DataSourceStreamReader):
    """Plans batches in one process and reads them in at most `tasks` tasks: each has a copy of its
    own. Offsets are as in Spark's checkpoint (early_ends.offsets_to).
    """

    def __init__(self, options: SourceOptions, tasks: int) -> None:
        self._options = options
        self._tasks = tasks
        self._rows = RowsOfBatch(Path(options.folder), options.rows_max)
        self._early_ends = EarlyEnds(Path(options.folder))
        # In the planning process: from its last `latestOffset`, and since its first one.
        self._log_ends: Offsets = {}
        self._quiet: tuple[Marks, float] = {}, 0.0  # where nothing followed, when last looked at
        self._left_out_until_s: dict[TopicPartition, float] = {}
        self._quotas: TopicQuotas | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        starts = self._options.starting_offsets
        return marks_to(self._next_offsets(starts, starts))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(self._options.rows_max)  # only `latestOffset` knows the limit of rows

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        planned, _ = offsets_from(start)
        early = self._early_ends.read()
        before = {**planned, **early}
        if self._quotas is not None:
            self._quotas.settle(
                {p: planned[p] - end for p, end in early.items()}, self._early_ends.added_messages
            )
        self._leave_out(self._early_ends.waiting)
        ends = self._awaited_ends(before)
        return start if ends == planned and not early else offsets_after(start, ends, early)

    def _awaited_ends(self, before: Marks) -> Marks:
        """Where the next batch ends; `before` if for a moment there is nothing to read."""
        ends, poll_s, now_s = before, self._options.poll_ms / 1000, time.monotonic()
        give_up_s, (quiet_at, looked_s) = now_s + _QUIET_S, self._quiet
        can_wait = 0 < poll_s < _QUIET_S
        must_look = not can_wait or before != quiet_at or now_s - looked_s >= _NEXT_READ_S
        # Each call costs the JVM and this process several times as much as a read of the logs'
        # ends, and that as much as a wait for the brokers' word.
        while True:
            if must_look:
                ends, looked_s = self._ends_after(before), time.monotonic()
            left_s = give_up_s - time.monotonic()
            if not can_wait or ends != before or left_s <= poll_s:
                break
            must_look = self._is_news(before, left_s)
        self._quiet = ends if ends == before else {}, looked_s
        return ends

    def _is_news(self, before: Marks, wait_s: float) -> bool:
        """Waits so long at most; returns whether there may be something to read."""
        begun_s, poll_s = time.monotonic(), self._options.poll_ms / 1000
        # Time alone fills up a quota that holds messages back.
        held_back = self._options.quotas and any(
            before.get(p, 0) < end for p, end in self._log_ends.items()
        )
        if held_back or not self._log_ends:
            time.sleep(poll_s)
            return True
        is_news = self._news.await_news(self._log_ends, wait_s)
        together_s = poll_s * _TOGETHER if is_news else 0.0
        # A broker that answers at once, as with an error, is asked again after `poll_ms`.
        time.sleep(max(together_s, begun_s + poll_s - time.monotonic()))
        return is_news

    def _leave_out(self, waiting: Collection[TopicPartition]) -> None:
        """Leaves these partitions out, but for one batch a minute: each batch would read their
        records again.
        """
        now_s, until_s = time.monotonic(), self._left_out_until_s
        tried = {p for p, at_s in until_s.items() if at_s <= now_s}
        self._left_out_until_s = {
            p: until_s.get(p, now_s + _LEFT_OUT_S) for p in waiting if p not in tried
        }

    def _ends_after(self, before: Marks) -> Marks:
        """Where the next batch ends; `before` while there is nothing to read."""
        kafka, options = self._kafka, self._options
        partitions = options.starting_offsets if options.only else kafka.partitions()
        # One topic that is deleted delays no other.
        log_ends = kafka.ends(partitions, committed=True, missing_ok=True)
        firsts = self._next_offsets(log_ends, before, missing_ok=True)
        self._log_ends = {p: log_ends[p] for p in firsts}
        # A partition that Kafka lacks for a moment keeps its offset: as a new one it would be read
        # again from its log's start.
        return {**before, **self._batch_ends(firsts)}

    def _batch_ends(self, firsts: Offsets) -> Offsets:
        options, left_out = self._options, self._left_out_until_s
        log_ends = {**self._log_ends, **{p: firsts[p] for p in left_out if p in firsts}}
        if not options.quotas:
            return batch_ends(firsts, log_ends, self._rows.rows)
        if self._quotas is None:
            from duewheel.streaming.topic_quotas import TopicQuotas

            self._quotas = TopicQuotas(options.quotas, Path(options.data_dir), SystemClock())
        permitted = self._quotas.permitted(
            firsts,
            log_ends,
            lambda partitions: self._kafka.starts(partitions, missing_ok=True),
        )
        ends = batch_ends(firsts, permitted, self._rows.rows)
        self._quotas.planned(ends)
        return ends

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        return marks_to(self._log_ends)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        (ends, begins), (before, _) = offsets_from(end), offsets_from(start)
        firsts = self._next_offsets(ends, {**before, **begins})
        # A batch that is repeated was planned by another query, from lower marks.
        starts = self._options.starting_offsets
        firsts = {p: max(first, starts.get(p, first)) for p, first in firsts.items()}
        ranges = {p: (firsts[p], end) for p, end in ends.items() if firsts[p] < end}
        options = self._options
        bytes_max = bytes_of(self._rows.rows, options.rows_max, options.bytes_max)
        return [TaskShare(*share) for share in divide(ranges, self._tasks, bytes_max)]

    def read(self, share: InputPartition) -> Any:
        from duewheel.streaming.read_task import read_share

        assert isinstance(share, TaskShare)
        return read_share(self._options.task, share)

    @property
    def _kafka(self) -> LogReader:
        from duewheel.streaming.read_task import reader_of

        return reader_of(self._options.task)

    @property
    def _news(self) -> LogReader:
        from duewheel.streaming.read_task import news_of

        return news_of(self._options.task)

    def _next_offsets(
        self, partitions: Collection[TopicPartition], before: Marks, *, missing_ok: bool = False
    ) -> Offsets:
        """The next offset of each partition: as in `before`, or the log's start of a new one.
        `missing_ok` drops a new one that Kafka lacks.
        """
        new = [p for p in partitions if before.get(p, EARLIEST) == EARLIEST]
        starts = self._kafka.starts(new, missing_ok=missing_ok) if new else {}
        return {p: at for p in partitions if (at := starts.get(p, before.get(p, EARLIEST))) >= 0}
