"""Reads the committed records of one partition from its beginning, and then what is added to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kafka.structs import TopicPartition

from duewheel.kafka.clients import ClientSettings, close, open_admin, open_reader
from duewheel.kafka.deadline import Deadline
from duewheel.kafka.polling import records_until
from duewheel.kafka.state_topic import ends_of, partitions_of

_POLL_MS = 20


@dataclass(frozen=True, slots=True)
class KeyedRecord:
    """A record with a key.

    Attributes:
        key: its bytes.
        value: its bytes; None deletes the key.
        timestamp_ms: when the broker took it.
    """

    key: bytes
    value: bytes | None
    timestamp_ms: int


class TopicFollower:
    """See the module's head. Not thread-safe."""

    def __init__(self, settings: ClientSettings, place: TopicPartition, deadline: Deadline) -> None:
        """Connects.

        Raises:
            KafkaUnavailable, ConfigError: as `ClientSettings.call`.
        """
        self._settings, self._place = settings, place
        self._consumer = open_reader(settings, deadline)
        self._consumer.assign([place])
        self._consumer.seek_to_beginning(place)

    def read_to_end(self, deadline: Deadline) -> list[KeyedRecord]:
        """All records below the present end, and perhaps some later ones. Waits for open
        transactions below it.

        Raises:
            ConfigError: there is no such topic.
            KafkaUnavailable: no headway in time.
        """
        admin = open_admin(self._settings, deadline)
        try:
            partitions_of(self._settings, admin, self._place.topic, deadline)
            _, end = ends_of(self._settings, admin, self._place, deadline)
        finally:
            close(admin)
        return self._settings.call(
            deadline,
            f"read {self._place.topic}",
            lambda: list(_keyed(records_until(self._consumer, self._place, end, deadline))),
        )

    def poll(self, deadline: Deadline) -> list[KeyedRecord]:
        """The records that have been added; returns soon if there are none.

        Raises:
            KafkaUnavailable: as `ClientSettings.call`.
        """
        polled = self._settings.call(
            deadline,
            f"read {self._place.topic}",
            lambda: self._consumer.poll(timeout_ms=_POLL_MS),
        )
        return list(_keyed(record for records in polled.values() for record in records))

    def close(self) -> None:
        """Disconnects."""
        close(self._consumer)


def _keyed(records: Iterable[Any]) -> Iterator[KeyedRecord]:
    for record in records:
        if record.key is not None:
            yield KeyedRecord(record.key, record.value, record.timestamp)
