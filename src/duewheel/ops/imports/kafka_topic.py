"""Imports from topics of etf1's scheduler and of Karafka's scheduled messages.

Both keep a schedule as a record in a compacted topic: the newest record of a key counts, and one
without a value says that the schedule was delivered or cancelled. So each partition is read twice
up to its end at the start: first the keys, to know the newest record of each; then the records, of
which the newest ones are written unchanged. The timer topic must have the header mode of the
service: there the key is the id.

A later run continues behind the earlier one. A newer record of a key replaces the timer, as it
would have done at the source; one without a value becomes a cancel, because the timer may have been
imported. For that a key must stay in its partition: if the timer topic has as many partitions as
the source, a record keeps its number, whatever partitioner its producer has.

Memory: the keys of one partition, with an offset each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from duewheel.checkpoints.import_position import Place
from duewheel.checkpoints.json_fields import integer, partition_number
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError
from duewheel.kafka.admin import KafkaAdmin
from duewheel.kafka.clients import ClientSettings
from duewheel.kafka.raw_reader import RawReader
from duewheel.kafka.raw_records import Row, committed_records, rows_of
from duewheel.ops.imports.source import Entry, SourceChunk
from duewheel.schemas.batches import OffsetRanges
from duewheel.schemas.wire.kafka_records import KafkaRecords
from duewheel.schemas.wire.single_record import Header

Service = Literal["etf1", "karafka"]

_FETCH_BYTES = 1 << 20
_CHUNK_RECORDS = 1_000
_TYPE = "schedule_source_type"  # Karafka's
_CANCEL = b"cancel"  # its value, with or without a body


@dataclass
class KafkaTopicSource:
    """See ImportSource. Made by `kafka_topic_source`.

    Attributes:
        name, identity: see there.
    """

    name: str
    identity: Mapping[str, str]
    _topic: str
    _bounds: dict[int, tuple[int, int]]
    _records: RawReader
    _keeps_partitions: bool
    _chunk_records: int
    _newest: dict[bytes | None, int] = field(default_factory=dict)

    def size(self, place: Place) -> int:
        """See ImportSource."""
        return sum(end - self._start(place, p) for p, (_, end) in self._bounds.items())

    def missed(self, place: Place, read: int) -> int:
        """See ImportSource. A record is always added behind all others of its partition."""
        return 0

    def chunks(self, place: Place) -> Iterator[SourceChunk]:
        """See ImportSource."""
        reached: dict[str, Any] = dict(place)
        for partition, (_, end) in self._bounds.items():
            start = self._start(place, partition)
            if start >= end:
                continue
            self._newest = self._newest_of(partition, start, end)
            is_continued = str(partition) in place
            for rows, until in self._rows(partition, start, end):
                entries = [
                    entry for row in rows for entry in self._entries(partition, row, is_continued)
                ]
                reached = {**reached, str(partition): until}
                yield SourceChunk(entries, reached, len(rows))

    def _start(self, place: Place, partition: int) -> int:
        """The offset to go on at."""
        start, end = self._bounds[partition]
        places = {partition_number(number): integer(at) for number, at in place.items()}
        return min(max(start, places.get(partition, 0)), end)

    def _newest_of(self, partition: int, start: int, end: int) -> dict[bytes | None, int]:
        """The newest offset of each key."""
        newest: dict[bytes | None, int] = {}
        for records, _ in self._batches(partition, start, end):
            keys = records.key.column().to_pylist()
            newest.update(zip(keys, records.offset.tolist(), strict=True))
        return newest

    def _rows(self, partition: int, start: int, end: int) -> Iterator[tuple[Sequence[Row], int]]:
        """The records of a partition, in chunks, and the offset below which no other lies."""
        most = self._chunk_records
        for records, until in self._batches(partition, start, end):
            rows = list(rows_of(records))
            while len(rows) > most:
                yield rows[:most], rows[most - 1][0] + 1
                rows = rows[most:]
            yield rows, until

    def _batches(self, partition: int, start: int, end: int) -> Iterator[tuple[KafkaRecords, int]]:
        """The records of a partition in groups, and the offset below which no other lies."""
        ranges: OffsetRanges = {(self._topic, partition): (start, end)}
        for part in self._records.read(ranges, _FETCH_BYTES):
            for records in committed_records(part, ranges):
                yield records, int(records.offset[-1]) + 1

    def _entries(self, partition: int, row: Row, is_continued: bool) -> Iterator[Entry]:
        """The entry of a record, if it is the newest of its key and waits."""
        offset, _, key, value, headers = row
        if key is not None and self._newest[key] != offset:
            return
        name = f"{self._topic}-{partition}@{offset}"
        kept = partition if self._keeps_partitions else None
        if not _is_over(value, headers):
            yield Entry(name, key, value, headers, kept, key)
        elif is_continued and key is not None:
            yield Entry(name, key, None, (), kept, key)


def _is_over(value: bytes | None, headers: Sequence[Header]) -> bool:
    return value is None or dict(headers).get(_TYPE) == _CANCEL


@contextmanager
def kafka_topic_source(
    settings: Settings,
    service: Service,
    topic: str,
    timer_topic: str,
    chunk_records: int = _CHUNK_RECORDS,
) -> Iterator[KafkaTopicSource]:
    """Opens a source and its clients; closes them at the end of the with block.

    Args:
        settings: of the cluster, which has both topics.
        service: whose topic it is.
        topic: with the schedules.
        timer_topic: to which they will be written.
        chunk_records: the most records of a transaction.

    Raises:
        ConfigError: there is no such topic, or the timer topic is of another header mode.
        KafkaUnavailable: no answer in time.
    """
    mode = settings.timer.contracts.get(timer_topic, settings.timer.default_contract).headers
    if mode != service:
        raise ConfigError(
            f'the timer topic "{timer_topic}" has headers = "{mode}": to take the schedules of '
            f'this service it needs headers = "{service}" in [timer.topic."{timer_topic}"]'
        )
    if topic in settings.timer_topics or topic in settings.service_topics.values():
        raise ConfigError(f'"{topic}" is a topic of duewheel, not one of another service')
    client = ClientSettings(settings.kafka.client_options("consumer"))
    with KafkaAdmin(settings.kafka.client_options("admin")) as admin:
        counts = admin.describe_partitions([topic, timer_topic])
        if topic not in counts:
            raise ConfigError(f"Kafka at {settings.kafka.servers} has no topic {topic!r}")
        topic_id = str(admin.topic_ids([topic])[topic])
        starts, ends = admin.log_start_offsets([topic]), admin.stable_offsets([topic])
    bounds = {place[1]: (starts[place], end) for place, end in sorted(ends.items())}
    with closing(RawReader(client, [topic])) as records:
        yield KafkaTopicSource(
            name=topic,
            identity={"service": service, "topic": topic, "topic_id": topic_id},
            _topic=topic,
            _bounds=bounds,
            _records=records,
            _keeps_partitions=counts[topic] == counts.get(timer_topic),
            _chunk_records=chunk_records,
        )
