"""Reads a shard's newest progress record from its partition of the state topic.

Each shard has a partition of its own, the one of its index: an open transaction holds back the
stable offset of every partition that it has written to, and would hide another shard's records. A
partition also receives the transactions of `reshard`; the first one those of `dlq replay` and
`import`, too.

Order matters. The end offset is read, open transactions included, after the caller's
`init_transactions` has returned: so every record of this shard that may be committed lies below it.
Then committed records are read until the position reaches that end: while another transaction is
open there, the position stays below it, and the newest record may be hidden.

Reading starts a bounded number of offsets before the end, where the newest record almost always
lies, then further back, at last at the beginning. Compaction decides how much lies there, so a
deadline bounds the time without headway. Records beyond the end are not read, so reading ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kafka import KafkaProducer
from kafka.structs import TopicPartition

from duewheel.checkpoints.held_copies import HELD_PREFIX
from duewheel.kafka.connect.clients import ClientSettings, close
from duewheel.kafka.connect.deadline import Deadline
from duewheel.kafka.log.connection import INIT_MAKES_IT
from duewheel.kafka.log.ends import LATEST
from duewheel.kafka.log.reader import LogReader
from duewheel.schemas.batches import TopicPartition as Place

# A shard writes at least two offsets a transaction, record and marker: the first step covers 500
# transactions at most, the second 50,000.
SEARCH_STEPS = (1_000, 100_000)
_CLOCK_KEY = b"clock"


@dataclass(frozen=True, slots=True)
class StateRecord:
    """A record of the state topic.

    Attributes:
        value: its bytes.
        timestamp_ms: when the broker took it, by its clock.
        beside: the newest records of other keys, among those read while searching this one.
    """

    value: bytes
    timestamp_ms: int
    beside: Mapping[bytes, StateRecord] = field(default_factory=dict)


def place_of(state_topic: str, shard: int) -> TopicPartition:
    """The partition of a shard's records; records of no shard are in that of shard 0."""
    return TopicPartition(state_topic, shard)


def newest_record(
    settings: ClientSettings,
    place: TopicPartition,
    key: bytes,
    deadline: Deadline,
    *,
    past_open: bool = True,
    search_steps: Sequence[int] = SEARCH_STEPS,
) -> StateRecord | None:
    """Reads the newest committed record with this key; None before the first.

    Args:
        settings: of the cluster.
        place: the partition to read.
        key: of the record.
        deadline: for the call; as long as reading makes headway it is renewed.
        past_open: wait for open transactions, which may hold a newer one.
        search_steps: how many offsets before the end to begin, smallest first; if all of them find
            nothing, reading begins at the log's start.

    Raises:
        KafkaUnavailable: no headway in time.
    """
    with LogReader(settings, [place.topic], deadline=deadline) as reader:
        return newest_of(reader, place, key, past_open=past_open, search_steps=search_steps)


def newest_of(
    reader: LogReader,
    place: Place,
    key: bytes,
    *,
    past_open: bool = True,
    search_steps: Sequence[int] = SEARCH_STEPS,
) -> StateRecord | None:
    """As `newest_record`, by a reader of the caller's, whose connections stay open."""
    bounds = reader.bounds(partitions=[place], committed=not past_open)
    return search_record(reader, place, key, bounds[place], search_steps)


def newest_records(
    settings: ClientSettings, topic: str, deadline: Deadline, *, past_open: bool = True
) -> dict[bytes, StateRecord]:
    """The newest committed record of every key; each key lies in one partition. Reads the whole
    topic: slow.

    The arguments and the errors are those of `newest_record`; ConfigError: there is no such topic.
    """
    with LogReader(settings, [topic], deadline=deadline) as reader:
        reader.existing(hint=INIT_MAKES_IT)
        return read_records(reader, reader.bounds(committed=not past_open))


def last_write_ms(
    settings: ClientSettings, place: TopicPartition, key: bytes, deadline: Deadline
) -> int:
    """When the broker took the newest record with this key that an open transaction hides; 0
    if there is none. Otherwise an owner would seem silent while another writer's open transaction
    hides its records from every reader of committed records.

    Raises:
        KafkaUnavailable: no answer in time.
    """
    with LogReader(settings, [place.topic], committed=False, deadline=deadline) as reader:
        (stable,) = reader.offsets([place], LATEST, committed=True).values()
        (end,) = reader.offsets([place], LATEST).values()
        if stable == end:
            return 0
        found = read_records(reader, {place: (max(stable, end - SEARCH_STEPS[0]), end)})
        return found[key].timestamp_ms if key in found else 0


def broker_now_ms(settings: ClientSettings, partition: TopicPartition, deadline: Deadline) -> int:
    """The brokers' clock: the timestamp of a record that is written for that alone.

    Args:
        settings: of the cluster.
        partition: of a topic whose timestamps are the brokers'.
        deadline: for the call.

    Raises:
        KafkaUnavailable: no answer in time.
    """
    producer = settings.open(KafkaProducer, deadline)
    try:
        return settings.call(
            deadline,
            "ask for the brokers' clock",
            lambda: int(
                producer.send(partition.topic, key=_CLOCK_KEY, partition=partition.partition)
                .get(timeout=deadline.remaining_s())
                .timestamp
            ),
        )
    finally:
        close(producer)


def _starts(start: int, end: int, search_steps: Sequence[int]) -> Iterator[int]:
    """Where to start reading: near the end, further back, at last at the beginning."""
    for step in search_steps:
        if end - step > start:
            yield end - step
    yield start


def search_record(
    reader: LogReader,
    place: Place,
    key: bytes,
    bounds: tuple[int, int],
    search_steps: Sequence[int] = SEARCH_STEPS,
) -> StateRecord | None:
    """Searches the newest record of a key.

    Args:
        reader: of the state topic.
        place: its partition.
        key: of the record.
        bounds: first offset, and the end.
        search_steps: how far before the end each try starts.

    Raises:
        KafkaUnavailable: no headway in time.
    """
    first, end = bounds
    for start in _starts(first, end, search_steps):
        newest = read_records(reader, {place: (start, end)})
        found = newest.pop(key, None)
        if found is not None:
            return replace(found, beside=newest)
    return None


def read_records(
    reader: LogReader, bounds: Mapping[Place, tuple[int, int]]
) -> dict[bytes, StateRecord]:
    """Reads ranges: the newest record of every key, without held copies (held_copies.py)."""
    return {
        record.key: StateRecord(record.value or b"", record.timestamp_ms)
        for records, _ in reader.records(bounds)
        for record in records
        if record.key is not None and not record.key.startswith(HELD_PREFIX)
    }
