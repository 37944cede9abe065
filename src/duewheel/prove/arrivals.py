"""Reads what a shard delivers, with a read_committed consumer that shares no code with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from kafka import KafkaConsumer
from kafka.structs import TopicPartition

from duewheel.clock import Clock
from duewheel.errors import KafkaUnavailable
from duewheel.kafka.clients import ClientSettings, close
from duewheel.kafka.deadline import Deadline
from duewheel.prove.load import ProofLoad
from duewheel.prove.records import NUMBER, ArrivedReply, ArrivedTimer
from duewheel.threads import Worker

_CONNECT_S = 60.0
_STALLED_S = 90.0
_POLL_MS = 100
_METADATA_S = 0.05


class ArrivalReader:
    """Reads targets, dead letters and replies from `start` to `stop`, in a thread of its own.

    Attributes:
        timers: the deliveries and dead letters so far.
        replies: the replies so far.
        delivered: the highest number of a record that has arrived, by partition of the timer topic.
        replied: the highest number of one that was replied to, likewise.
    """

    def __init__(
        self,
        client: ClientSettings,
        topics: Sequence[str],
        reply_topic: str,
        timer_partitions: int,
        clock: Clock,
    ) -> None:
        """
        Args:
            client: of the cluster.
            topics: targets and dead letters; they exist.
            reply_topic: likewise.
            timer_partitions: of the timer topic.
            clock: this host's.
        """
        self.timers: list[ArrivedTimer] = []
        self.replies: list[ArrivedReply] = []
        self.delivered = dict.fromkeys(range(timer_partitions), -1)
        self.replied = dict.fromkeys(range(timer_partitions), -1)
        self._client, self._clock = client, clock
        self._topics, self._reply_topic = (*topics, reply_topic), reply_topic
        self._stopping = threading.Event()
        self._worker = Worker("arrivals", self._run)

    def start(self) -> None:
        """Begin to read, from the topics' start."""
        self._worker.start()

    def stop(self) -> None:
        """Wait for the end of the thread."""
        self._stopping.set()
        self._worker.end()

    def require_alive(self) -> None:
        """Raise the error that has ended the reader, if any.

        Raises:
            DuewheelError: naming it.
        """
        self._worker.require_alive()

    def has_all(self, load: ProofLoad) -> bool:
        """Whether every acknowledged timer that is never cancelled, and every reply, is there."""
        known = load.acknowledged.keys()
        awaited = known & load.awaited
        return (
            len(self.replies) >= len(known & load.requests)
            and len(self.timers) >= len(awaited)
            and {timer.number for timer in self.timers} >= awaited
        )

    def _run(self) -> None:
        consumer = _open(self._client)
        try:
            _begin(consumer, partitions_of(consumer, self._topics))
            while not self._stopping.is_set():
                polled = consumer.poll(timeout_ms=_POLL_MS)
                received_ms = self._clock.now_ms()
                for records in polled.values():
                    for record in records:
                        self._take(record, received_ms)
        finally:
            close(consumer)

    def _take(self, record: Any, received_ms: int) -> None:
        if record.topic == self._reply_topic:
            reply = ArrivedReply.of(record)
            self.replies.append(reply)
            number = int(dict(reply.headers)[NUMBER])
            _raise_to(self.replied, reply.source[0], number)
        else:
            timer = ArrivedTimer.of(record, received_ms)
            self.timers.append(timer)
            _raise_to(self.delivered, timer.source[0], timer.number)


def committed_records(client: ClientSettings, topic: str) -> Iterator[Any]:
    """All committed records of a topic, partition by partition in their order.

    Raises:
        KafkaUnavailable: nothing comes for a while.
    """
    consumer = _open(client)
    try:
        partitions = partitions_of(consumer, [topic])
        _begin(consumer, partitions)
        ends = consumer.end_offsets(partitions)
        deadline = Deadline(_STALLED_S)
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            polled = consumer.poll(timeout_ms=_POLL_MS)
            if polled:
                deadline = Deadline(_STALLED_S)
            elif not deadline.remaining_s():
                raise KafkaUnavailable(f"topic {topic} cannot be read to its end")
            for records in polled.values():
                yield from records
    finally:
        close(consumer)


def partitions_of(consumer: KafkaConsumer, topics: Sequence[str]) -> list[TopicPartition]:
    """All partitions of topics that exist.

    Raises:
        KafkaUnavailable: the cluster does not show them.
    """
    deadline = Deadline(_CONNECT_S)
    while True:
        known = {topic: consumer.partitions_for_topic(topic) for topic in topics}
        if all(known.values()):
            return [TopicPartition(t, p) for t, partitions in known.items() for p in partitions]
        if not deadline.remaining_s():
            missing = ", ".join(topic for topic, partitions in known.items() if not partitions)
            raise KafkaUnavailable(f"the cluster does not show the topics {missing}")
        time.sleep(_METADATA_S)


def _open(client: ClientSettings) -> KafkaConsumer:
    return client.open(
        KafkaConsumer,
        Deadline(_CONNECT_S),
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",  # an offset that has vanished is a fault of Kafka's
        isolation_level="read_committed",
    )


def _begin(consumer: KafkaConsumer, partitions: Sequence[TopicPartition]) -> None:
    consumer.assign(list(partitions))
    for partition in partitions:
        consumer.seek(partition, 0)


def _raise_to(highest: dict[int, int], partition: int, number: int) -> None:
    highest[partition] = max(highest[partition], number)
