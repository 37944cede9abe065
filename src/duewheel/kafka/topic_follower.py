"""Reads the committed records of one partition from its beginning, and then what is added to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from duewheel.kafka.clients import ClientSettings
from duewheel.kafka.deadline import Deadline
from duewheel.kafka.log.ends import EARLIEST, LATEST
from duewheel.kafka.log.reader import INIT_MAKES_IT, LogReader
from duewheel.kafka.log.records import Record
from duewheel.schemas.batches import TopicPartition


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
        topic, number = place
        self._place = topic, number
        self._reader = LogReader(settings, [topic], deadline=deadline)
        self._positions: dict[TopicPartition, int] = {}

    def read_to_end(self, deadline: Deadline) -> list[KeyedRecord]:
        """All records below the present end. Waits for open transactions below it.

        Raises:
            ConfigError: there is no such topic.
            KafkaUnavailable: no headway in time.
        """
        reader, place = self._reader, self._place
        reader.deadline = deadline
        reader.existing(hint=INIT_MAKES_IT)
        if not self._positions:
            self._positions = reader.offsets([place], EARLIEST)
        (end,) = reader.offsets([place], LATEST, committed=False).values()
        found = list[KeyedRecord]()
        for records, reached in reader.records({place: (self._positions[place], end)}):
            found += _keyed(records)
            self._positions.update(reached)
        return found

    def poll(self, deadline: Deadline) -> list[KeyedRecord]:
        """The records that have been added; returns soon if there are none.

        Raises:
            KafkaUnavailable: as `ClientSettings.call`.
        """
        self._reader.deadline = deadline
        return list(_keyed(self._reader.poll(self._positions)))

    def close(self) -> None:
        """Disconnects."""
        self._reader.close()


def _keyed(records: Iterable[Record]) -> Iterator[KeyedRecord]:
    for record in records:
        if record.key is not None:
            yield KeyedRecord(record.key, record.value, record.timestamp_ms)
