"""Reads the messages that a shard delivers, by a read_committed consumer without code of its."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

from kafka import KafkaConsumer
from kafka.structs import TopicPartition as KafkaPartition

from duewheel.clock import Clock
from duewheel.deadline import Deadline
from duewheel.errors import KafkaUnavailable
from duewheel.kafka.connect.clients import KafkaClients, close
from duewheel.prove.load import ProofLoad
from duewheel.prove.records import NUMBER, ArrivedReply, ArrivedTimer
from duewheel.threads import Worker

_CONNECT_S = 60.0
_STALLED_S = 90.0
_POLL_MS = 100
_METADATA_S = 0.05


class ArrivalReader(Worker):
    """Reads targets, dead letters and replies from their beginning, from `start` to `end`.

    Attributes:
        timers: deliveries and dead letters so far.
        delivered: the highest number of a delivered record, by partition of the timer topic.
        replied: the same of the requests with a reply.
    """

    def __init__(
        self,
        client: KafkaClients,
        topics: Sequence[str],
        reply_topic: str,
        timer_partitions: int,
        clock: Clock,
    ) -> None:
        """All topics exist; `topics` are those of targets and dead letters."""
        super().__init__("arrivals", self._read)
        self.timers: list[ArrivedTimer] = []
        self.replies: list[ArrivedReply] = []
        self.delivered = dict.fromkeys(range(timer_partitions), -1)
        self.replied = dict.fromkeys(range(timer_partitions), -1)
        self._client, self._clock = client, clock
        self._topics, self._reply_topic = (*topics, reply_topic), reply_topic

    def has_all(self, load: ProofLoad) -> bool:
        """Whether every reply is there, and every acknowledged timer that is never cancelled."""
        known = load.acknowledged.keys()
        awaited = known & load.awaited
        return (
            len(self.replies) >= len(known & load.requests)
            and len(self.timers) >= len(awaited)
            and {timer.number for timer in self.timers} >= awaited
        )

    def _read(self) -> None:
        with _consumer(self._client, self._topics) as consumer:
            while not self.ending.is_set():
                polled = consumer.poll(timeout_ms=_POLL_MS)
                received_ms = self._clock.now_ms()
                for record in chain.from_iterable(polled.values()):
                    self._take(record, received_ms)

    def _take(self, record: Any, received_ms: int) -> None:
        if record.topic == self._reply_topic:
            reply = ArrivedReply.of(record)
            self.replies.append(reply)
            highest, source, number = self.replied, reply.source, int(dict(reply.headers)[NUMBER])
        else:
            timer = ArrivedTimer.of(record, received_ms)
            self.timers.append(timer)
            highest, source, number = self.delivered, timer.source, timer.number
        highest[source[0]] = max(highest[source[0]], number)


def committed_records(client: KafkaClients, topic: str) -> Iterator[Any]:
    """All committed records of a topic, partition by partition in their order.

    Raises:
        KafkaUnavailable: nothing comes for a while.
    """
    with _consumer(client, [topic]) as consumer:
        ends = consumer.end_offsets(list(consumer.assignment()))
        deadline = Deadline(_STALLED_S)
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            polled = consumer.poll(timeout_ms=_POLL_MS)
            if polled:
                deadline = Deadline(_STALLED_S)
            elif not deadline.remaining_s():
                raise KafkaUnavailable(f"topic {topic} cannot be read to its end")
            yield from chain.from_iterable(polled.values())


@contextmanager
def _consumer(client: KafkaClients, topics: Sequence[str]) -> Iterator[KafkaConsumer]:
    """A consumer at the beginning of every partition of topics that exist."""
    consumer = client.open(
        KafkaConsumer,
        Deadline(_CONNECT_S),
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",  # an offset that has vanished is a fault of Kafka's
        isolation_level="read_committed",
    )
    try:
        partitions = _partitions(consumer, topics)
        consumer.assign(partitions)
        for partition in partitions:
            consumer.seek(partition, 0)
        yield consumer
    finally:
        close(consumer)


def _partitions(consumer: KafkaConsumer, topics: Sequence[str]) -> list[KafkaPartition]:
    deadline = Deadline(_CONNECT_S)
    while True:
        known = {topic: consumer.partitions_for_topic(topic) for topic in topics}
        if all(known.values()):
            return [KafkaPartition(t, p) for t, partitions in known.items() for p in partitions]
        if not deadline.remaining_s():
            missing = ", ".join(topic for topic, partitions in known.items() if not partitions)
            raise KafkaUnavailable(f"the cluster does not show the topics {missing}")
        time.sleep(_METADATA_S)
