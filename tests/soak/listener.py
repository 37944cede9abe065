"""Who hears what is delivered and answered: a read_committed consumer on its own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from tests.soak.judge import source_of
from tests.soak.load import number_of

PARTITIONS = 4  # of each topic that it hears


class Listener(threading.Thread):
    """Hears all that arrives.

    Attributes:
        arrived: every record but answers.
        answers: those.
        heard: the highest number that has arrived of each partition of the timer topic.
        told: the highest number that was answered of each.
        failure: why it cannot hear any more.
    """

    def __init__(
        self, servers: str, topics: Sequence[str], replies: str, timer_partitions: int
    ) -> None:
        super().__init__(name="listener")
        self.heard = dict.fromkeys(range(timer_partitions), -1)
        self.told = dict.fromkeys(range(timer_partitions), -1)
        self.failure: BaseException | None = None
        self._servers, self._topics, self._replies = servers, (*topics, replies), replies
        self.arrived: list[Any] = []
        self.answers: list[Any] = []
        self._stopping = threading.Event()

    def run(self) -> None:
        try:
            self._listen()
        except BaseException as failure:
            self.failure = failure
            raise

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def _listen(self) -> None:
        consumer = KafkaConsumer(
            bootstrap_servers=self._servers,
            isolation_level="read_committed",
            auto_offset_reset="none",  # an offset that is gone is a fault of Kafka's
            enable_auto_commit=False,
            reconnect_backoff_max_ms=500,
        )
        places = [
            TopicPartition(topic, number) for topic in self._topics for number in range(PARTITIONS)
        ]
        consumer.assign(places)
        for place in places:
            consumer.seek(place, 0)
        while not self._stopping.is_set():
            for records in consumer.poll(timeout_ms=50).values():
                for record in records:
                    partition, _ = source_of(record)
                    if record.topic == self._replies:
                        self.answers.append(record)
                        number = int(dict(record.headers)["n"])
                        self.told[partition] = max(self.told[partition], number)
                    else:
                        self.arrived.append(record)
                        self.heard[partition] = max(self.heard[partition], number_of(record))
        consumer.close()
