"""Finds the newest committed record of a key.

The order matters. The end offset is read, open transactions included, after the caller's
`init_transactions` has returned: so every record of this caller that may be committed is below it.
Then committed records are read until the position reaches that end: while another transaction is
open there, the position stays below it, and the newest record may be hidden.

Reading starts a bounded number of offsets before the end, where the newest record almost always
is, then further back, at last at the beginning. Compaction decides how many records are there, so a
deadline bounds the time without headway. Records beyond the end are not read, so reading ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from duewheel.checkpoints.held_copies import HELD_PREFIX
from duewheel.deadline import Deadline
from duewheel.errors import INIT_MAKES_IT
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.log.reader import LogReader
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.wire.single_record import Header

# How far before the end to begin. A shard writes at least two offsets a transaction, record and
# marker: the first step covers 500 transactions at most, the second 50,000.
SEARCH_STEPS = (1_000, 100_000)


class NewestRecord(NamedTuple):
    """A record without its key; `value` is empty if the record deletes the key."""

    value: bytes
    timestamp_ms: int
    headers: tuple[Header, ...] = ()


def newest_record(
    clients: KafkaClients, partition: TopicPartition, key: bytes, deadline: Deadline
) -> NewestRecord | None:
    """Reads the newest committed record with this key, and waits for open transactions, which may
    hold a newer one; None before the first. While reading makes headway the deadline is renewed.
    """
    with LogReader(clients, [partition[0]]) as reader, reader.bounded_by(deadline):
        bounds = reader.bounds(partitions=[partition], committed=False)[partition]
        return find_newest(reader, partition, key, bounds).get(key)


def newest_records(
    clients: KafkaClients, topic: str, deadline: Deadline, *, past_open: bool = True
) -> dict[bytes, NewestRecord]:
    """The newest committed record of every key; each key is in one partition. With `past_open` it
    waits as `newest_record`. Reads the whole topic: slow.

    Raises:
        ConfigError: there is no such topic.
    """
    with LogReader(clients, [topic]) as reader, reader.bounded_by(deadline):
        reader.existing(hint=INIT_MAKES_IT)
        return newest_by_key(reader, reader.bounds(committed=not past_open))


def find_newest(
    reader: LogReader, partition: TopicPartition, key: bytes, bounds: tuple[int, int]
) -> dict[bytes, NewestRecord]:
    """The newest committed record of a key between the log's start and an end, with those of other
    keys that were read meanwhile; empty without one of this key.
    """
    start, end = bounds
    newest: dict[bytes, NewestRecord] = {}
    until = end
    for first in (*(end - step for step in SEARCH_STEPS if end - step > start), start):
        # Once the part before the end is read, no transaction is open in the earlier ones either.
        newest = newest_by_key(reader, {partition: (first, until)}) | newest
        if key in newest:
            return newest
        until = first
    return {}


def newest_by_key(
    reader: LogReader, ranges: Mapping[TopicPartition, tuple[int, int]]
) -> dict[bytes, NewestRecord]:
    """The newest record of every key in ranges of offsets."""
    return {
        record.key: NewestRecord(record.value or b"", record.timestamp_ms, tuple(record.headers))
        for records, _ in reader.records(ranges)
        for record in records
        # Held copies are as large as messages, and there may be thousands: no search wants one.
        if record.key is not None and not record.key.startswith(HELD_PREFIX)
    }
