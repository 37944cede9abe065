"""Reads the committed records of one partition from its beginning, and then what is added to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from duewheel.kafka.connect.clients import ClientSettings
from duewheel.kafka.connect.deadline import Deadline
from duewheel.kafka.log.connection import INIT_MAKES_IT
from duewheel.kafka.log.reader import LogReader
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

    def __init__(self, settings: ClientSettings, place: TopicPartition) -> None:
        """Connects nothing."""
        self._place = place
        self._reader = LogReader(settings, [place[0]])
        self._positions: dict[TopicPartition, int] = {}

    def read_to_end(self, deadline: Deadline) -> list[KeyedRecord]:
        """All records below the present end. Waits for open transactions below it.

        Raises:
            ConfigError: there is no such topic.
            KafkaUnavailable: no headway in time.
        """
        self._reader.deadline = deadline
        self._reader.existing(hint=INIT_MAKES_IT)
        bounds = self._reader.bounds(partitions=[self._place], committed=False)
        records = list(_keyed(each for part, _ in self._reader.records(bounds) for each in part))
        self._positions = {place: end for place, (_, end) in bounds.items()}
        return records

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
