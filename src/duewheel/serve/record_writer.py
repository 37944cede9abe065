"""Writes records of changes to their topic, `serve.changes_topic`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from duewheel.api.change_records import BegunChange
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError
from duewheel.ops.changes.producer_pool import ACKNOWLEDGED_S, ProducerPool, connect_plain
from duewheel.ops.topics.targets import is_open_to_producers


class RecordWriter(ProducerPool[Any]):
    """Writes only to a topic that no timer may have as its target. Thread-safe."""

    def __init__(
        self, settings: Settings, open_producer: Callable[[Settings, str], Any] = connect_plain
    ) -> None:
        """Connects nothing."""
        super().__init__(settings, open_producer)
        self._closed = set[str]()  # topics that no timer can have as its target any more

    def write(self, topic: str, record: BegunChange) -> None:
        """Writes a record, and waits for Kafka's acknowledgement.

        Raises:
            ConfigError: timers may have the target `topic`, and forge records.
            Unreadable, CorruptFile, OSError: the files do not show whether they may.
            KafkaUnavailable, InvalidTimer, Unacknowledged: as `ProducerPool.producer`.
        """
        if topic not in self._closed:
            is_open = is_open_to_producers(self.settings, topic)
            if is_open:
                why = f"timers may have the target {topic}, and forge records"
                raise ConfigError(f"{why}: run `duewheel reconfigure`")
            if is_open is not None:  # a shard that begins later may follow other settings
                self._closed.add(topic)
        key, value = record.change.encode(), json.dumps(record.as_json()).encode()
        with self.producer(topic) as producer:
            producer.send(topic, value, key).get(timeout=ACKNOWLEDGED_S)
