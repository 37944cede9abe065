"""A read_committed consumer of its own, for deliveries and replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.harness.reader import TopicReader
from tests.soak.judge import source_of
from tests.soak.load import number_of

PARTITIONS = 4  # of each topic that it hears


class Listener(TopicReader):
    """Hears all that arrives.

    Attributes:
        arrived: every record but answers.
        answers: those.
        heard: the highest number that has arrived of each partition of the timer topic.
        told: the highest number that was answered of each.
    """

    def __init__(
        self, servers: str, topics: Sequence[str], replies: str, timer_partitions: int
    ) -> None:
        super().__init__(
            servers,
            (*topics, replies),
            self._hear,
            auto_offset_reset="none",  # an offset that is gone is a fault of Kafka's
            reconnect_backoff_max_ms=500,
        )
        self.heard = dict.fromkeys(range(timer_partitions), -1)
        self.told = dict.fromkeys(range(timer_partitions), -1)
        self._replies = replies
        self.arrived: list[Any] = []
        self.answers: list[Any] = []

    def _hear(self, records: Sequence[Any]) -> None:
        for record in records:
            partition, _ = source_of(record)
            if record.topic == self._replies:
                self.answers.append(record)
                number = int(dict(record.headers)["n"])
                self.told[partition] = max(self.told[partition], number)
            else:
                self.arrived.append(record)
                self.heard[partition] = max(self.heard[partition], number_of(record))
