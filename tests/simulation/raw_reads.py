"""The data source and its reader on the simulated Kafka: only requests and answers are made up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kafka.errors import OffsetOutOfRangeError
from tests.simulation.shard_model import Shard
from tests.simulation.timers import TOPIC

from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.deadline import Deadline
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.log.leader_requests import Fetched
from duewheel.kafka.log.list_offsets_times import EARLIEST
from duewheel.kafka.log.reader import LogReader
from duewheel.schemas.batches import TopicPartition
from duewheel.streaming.source import SourceOptions, TimerReader
from duewheel.streaming.task_share import TaskSettings

_NO_LIMIT = 1 << 30


class SimulatedLogReader(LogReader):
    """Answers as brokers would.

    Attributes:
        ends_now: of the partitions, as the brokers tell them now.
    """

    def __init__(self, shard: Shard) -> None:  # without a network
        super().__init__(KafkaClients({}), [TOPIC])
        self._connected: Any = SimpleNamespace(fetch=self._answers, list_offsets=self._list_offsets)
        self._shard = shard
        self.ends_now: Marks = {}

    def partitions(self) -> list[TopicPartition]:
        return [(TOPIC, partition.number) for partition in self._shard.partitions]

    def _run_or_close(self, _: object, what: str, call: Callable[..., Any], *args: Any) -> Any:
        return call(*args)

    def _retry_before(self, _: Deadline, failures: Sequence[Exception]) -> None:
        """Raises the first failure: nothing changes while a task reads, so each try would fail."""
        super()._retry_before(Deadline(0), failures)

    def _list_offsets(self, wanted: Iterable[TopicPartition], time: int, _: bool) -> Marks:
        return {name: self._offset(name, time) for name in wanted}

    def _answers(
        self, positions: Marks, _: int, __: bool, untils: Marks
    ) -> dict[TopicPartition, Fetched | Exception]:
        return {name: self._answer(name, at, untils[name]) for name, at in positions.items()}

    def _offset(self, name: TopicPartition, time: int) -> int:
        start = self._shard.kafka.partitions[name[1]].start
        return start if time == EARLIEST else self.ends_now[name]

    def _answer(self, name: TopicPartition, at: int, until: int) -> Fetched | Exception:
        partition = self._shard.kafka.partitions[name[1]]
        if not partition.start <= at < partition.stable_end:
            refusal: Exception = OffsetOutOfRangeError()
            return refusal
        octets, aborted = partition.fetch(at)
        named = [SimpleNamespace(producer_id=p, first_offset=first) for p, first in aborted]
        answer = SimpleNamespace(records=octets, aborted_transactions=named)
        return Fetched.of(name, answer, at, until)


class SimulatedSource(TimerReader):
    """The data source of one query."""

    def __init__(self, kafka: LogReader, starts: Marks, folder: Path) -> None:
        task = TaskSettings({}, [TOPIC], epochs="", dead_letter_topic="", folder="")
        options = SourceOptions(task, starts, str(folder), _NO_LIMIT, _NO_LIMIT)
        super().__init__(options, tasks=2)
        self._simulated = kafka

    @property
    def _kafka(self) -> LogReader:
        return self._simulated
