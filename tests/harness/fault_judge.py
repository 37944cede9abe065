"""Timers for a shard under faults, and an independent consumer that checks their deliveries."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from kafka import KafkaAdminClient, TopicPartition
from tests.harness.reader import consumer, partitions_of, read_committed
from tests.harness.timer_rows import TimerRow, timer_batch

from duewheel.checkpoints.progress import Progress, record_key
from duewheel.clock import Clock
from duewheel.deadline import Deadline
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.progress.newest import newest_record
from duewheel.kafka.progress.state_topic import state_partition
from duewheel.wheel.append.engine import Engine
from duewheel.wheel.slots import closable_slot
from duewheel.wheel.storage.data_directory import DataDirectory

GIVE_UP_S = 90.0
PARTITIONS = 2  # of the timer topic
_REJECTED_EVERY = 10
SHARDS = 32  # that share the topics, one after the other


@dataclass(frozen=True)
class FaultTopics:
    """Where timers come from and go to: half of them each to `orders` and `bills`."""

    timers: str
    orders: str
    bills: str
    dead_letters: str
    state: str

    @classmethod
    def named(cls, app: str) -> FaultTopics:
        """As the configuration of an app has them."""
        kinds = ("timers", "orders", "bills", "dead-letter", "state")
        return cls(*(f"{app}.{kind}" for kind in kinds))

    @property
    def targets(self) -> list[str]:
        return [self.orders, self.bills, self.dead_letters]

    def create(self, servers: str) -> None:
        compacted = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
        appended = {"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"}
        admin = KafkaAdminClient(bootstrap_servers=servers)
        admin.create_topics(
            {
                **{topic: {"num_partitions": 4} for topic in self.targets},
                self.timers: {"num_partitions": PARTITIONS, "configs": appended},
                self.state: {"num_partitions": SHARDS, "configs": compacted},
            },
            wait_for_metadata=True,
        )
        admin.close()


@dataclass(frozen=True)
class Arrival:
    """A record at its target: where, and the partition and offset of its timer."""

    place: TopicPartition
    source: tuple[int, int]

    @property
    def rejected(self) -> bool:
        """Such a timer is in the earliest slot, whatever lies before it in its partition."""
        return self.source[1] % _REJECTED_EVERY == _REJECTED_EVERY - 1


class Judge:
    """Hands timers to a shard's engine; knows each of them, and what has come since it was made."""

    def __init__(self, servers: str, topics: FaultTopics, shard: int, clock: Clock) -> None:
        """
        Args:
            servers: the broker itself.
            topics: others may use them too, but not at the same time.
            shard: whose progress to look at.
            clock: the shard's.
        """
        self._servers, self._topics, self._shard, self._clock = servers, topics, shard, clock
        self._offset = 0  # of the next timer, in every partition
        self._starts = self._ends()

    def append(self, engine: Engine, precision_ms: int, count: int = 80) -> int:
        """So many timers of each partition, due now.

        Returns:
            The slot by which they are delivered.
        """
        first, self._offset = self._offset, self._offset + count
        due_ms = self._clock.now_ms()
        timers = [
            TimerRow(partition, offset, due_ms, Arrival(_NOWHERE, (partition, offset)).rejected)
            for partition in range(PARTITIONS)
            for offset in range(first, self._offset)
        ]
        sources = [(self._topics.timers, partition) for partition in range(PARTITIONS)]
        batch = replace(timer_batch(timers), targets=self._topics.targets, partitions=sources)
        engine.append(batch, dict.fromkeys(sources, self._offset))
        return closable_slot(self._clock.now_ms(), precision_ms) + 2

    @property
    def all_arrived(self) -> bool:
        """Whether every timer is there, once or more often."""
        return self._wanted <= {arrival.source for arrival in self._read()}

    def judge(self, directory: DataDirectory) -> None:
        """All timers once and in order; dead letters are the rejected ones.

        The progress in Kafka is the local one.
        """
        arrivals = self._read()
        assert Counter(arrival.source for arrival in arrivals) == Counter(self._wanted)
        dead = sum(arrival.place.topic == self._topics.dead_letters for arrival in arrivals)
        assert dead == sum(arrival.rejected for arrival in arrivals)
        assert out_of_order(arrivals) == []
        mirror = directory.state.mirror()
        assert mirror is not None
        assert self._progress_slot() == mirror.progress.delivered_slot

    @property
    def _wanted(self) -> set[tuple[int, int]]:
        return {(p, offset) for p in range(PARTITIONS) for offset in range(self._offset)}

    def _progress_slot(self) -> int:
        """How far the progress in Kafka is."""
        settings, deadline = KafkaClients({"bootstrap_servers": self._servers}), Deadline(30)
        place, key = state_partition(self._topics.state, self._shard), record_key(self._shard)
        found = newest_record(settings, place, key, deadline)
        assert found is not None
        return Progress.decode(found.value).delivered_slot

    def _ends(self) -> dict[TopicPartition, int]:
        with consumer(self._servers) as stranger:
            return dict(stranger.end_offsets(partitions_of(stranger, *self._topics.targets)))

    def _read(self) -> list[Arrival]:
        records = read_committed(self._servers, self._starts)
        return [Arrival(TopicPartition(r.topic, r.partition), _source(r)) for r in records]


_NOWHERE = TopicPartition("", 0)


def out_of_order(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """Those before which a later one of the same timer partition has come to the same place."""
    newest: dict[tuple[TopicPartition, int, bool], int] = {}
    found = []
    for arrival in arrivals:
        partition, offset = arrival.source
        lane = (arrival.place, partition, arrival.rejected)
        if offset < newest.get(lane, -1):
            found.append(arrival)
        newest[lane] = offset
    return found


def _source(record: Any) -> tuple[int, int]:
    partition, offset = dict(record.headers)["TIMER_SOURCE"].decode().rsplit("-", 1)[1].split("@")
    return int(partition), int(offset)


@contextmanager
def in_a_while(seconds: float, act: Callable[[], None]) -> Iterator[None]:
    """Meanwhile, `act` in another thread."""
    timer = threading.Timer(seconds, act)
    timer.start()
    try:
        yield
    finally:
        timer.join()
