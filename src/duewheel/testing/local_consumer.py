"""A consumer of a test: a function, and its place in a topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from kafka import KafkaConsumer
from kafka.structs import ConsumerGroupMetadata

from duewheel.errors import ConfigError
from duewheel.testing.memory_cluster import MemoryCluster

Handler = TypeVar("Handler", bound=Callable[[Any], object])


class LocalConsumer:
    """Decorates a function that `advance` calls with the records of a topic as they came. It takes
    the place of the group's KafkaConsumer that a program needs for its transactions.

    An exception of the function ends `advance`. With a group the next one begins again at the
    group's offsets, as a process would after its restart; without, at the same record.

    Attributes:
        config: as KafkaConsumer has it.
    """

    def __init__(self, cluster: MemoryCluster, topic: str, group: str | None) -> None:
        own = {"group_id": group, "enable_auto_commit": False, "isolation_level": "read_committed"}
        self.config = {**KafkaConsumer.DEFAULT_CONFIG, **own}
        self._cluster, self._topic, self._group = cluster, topic, group
        self._handler: Callable[[Any], object] | None = None
        self._position = 0

    def __call__(self, handler: Handler) -> Handler:
        """Decorates it."""
        self._handler = handler
        return handler

    def group_metadata(self) -> ConsumerGroupMetadata:
        """As KafkaConsumer.

        Raises:
            ConfigError: it has no group.
        """
        if self._group is None:
            raise ConfigError(f'the consumer has no group: consumer("{self._topic}", group=…)')
        return ConsumerGroupMetadata(self._group)

    def subscription(self) -> None:
        """As KafkaConsumer with assigned partitions: no other member takes them over."""

    def close(self) -> None:
        """Consumes nothing from here on."""
        self._handler = None

    def run(self) -> int:
        """Hands over the records that are there; returns how many."""
        records = self._cluster.records(self._topic)[self._position :]
        for number, record in enumerate(records):
            if self._handler is None:
                return number
            if not self._is_committed(record):
                self._hand_over(self._handler, record)
            self._position += 1
        return len(records)

    def _hand_over(self, handler: Callable[[Any], object], record: Any) -> None:
        try:
            handler(record)
        except BaseException:
            if self._group is not None:
                self._position = 0  # the first record that its group has not committed is the next
            raise

    def _is_committed(self, record: Any) -> bool:
        if self._group is None:
            return False
        place = (record.topic, record.partition)
        return bool(record.offset < self._cluster.group_offsets.get((self._group, place), 0))
