"""The newest committed record of a key.

Order matters. The end offset is read, open transactions included, after the caller's
`init_transactions` has returned: so every record of this caller that may be committed is below it.
Then committed records are read until the position reaches that end: while another transaction is
open there, the position stays below it, and the newest record may be hidden.

Reading starts a bounded number of offsets before the end, where the newest record almost always
is, then further back, at last at the beginning. Compaction decides how many records are there, so a
deadline bounds the time without headway. Records beyond the end are not read, so reading ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from duewheel.checkpoints.held_copies import HELD_PREFIX
from duewheel.kafka.connect.clients import ClientSettings
from duewheel.kafka.connect.deadline import Deadline
from duewheel.kafka.log.connection import INIT_MAKES_IT
from duewheel.kafka.log.reader import LogReader
from duewheel.schemas.batches import TopicPartition

# How far before the end to begin. A shard writes at least two offsets a transaction, record and
# marker: the first step covers 500 transactions at most, the second 50,000.
SEARCH_STEPS = (1_000, 100_000)


class NewestRecord(NamedTuple):
    """A record without its key; `value` is empty if the record deletes the key."""

    value: bytes
    timestamp_ms: int


def newest_record(
    settings: ClientSettings,
    place: TopicPartition,
    key: bytes,
    deadline: Deadline,
    *,
    past_open: bool = True,
    search_steps: Sequence[int] = SEARCH_STEPS,
) -> NewestRecord | None:
    """Reads the newest committed record with this key; None before the first.

    Args:
        deadline: as long as reading makes headway it is renewed.
        past_open: wait for open transactions, which may hold a newer one.
    """
    with LogReader(settings, [place[0]], deadline=deadline) as reader:
        return newest_of(reader, place, key, past_open=past_open, steps=search_steps).get(key)


def newest_records(
    settings: ClientSettings, topic: str, deadline: Deadline, *, past_open: bool = True
) -> dict[bytes, NewestRecord]:
    """The newest committed record of every key, as `newest_record`; each key is in one partition.
    Reads the whole topic: slow.

    Raises:
        ConfigError: there is no such topic.
    """
    with LogReader(settings, [topic], deadline=deadline) as reader:
        reader.existing(hint=INIT_MAKES_IT)
        return newest_in(reader, reader.bounds(committed=not past_open))


def newest_of(
    reader: LogReader,
    place: TopicPartition,
    key: bytes,
    *,
    past_open: bool = True,
    steps: Sequence[int] = SEARCH_STEPS,
) -> dict[bytes, NewestRecord]:
    """As `newest_record`, with the newest records of other keys that were read meanwhile; empty
    without one of this key.
    """
    # An end from before `init_transactions` could be below the newest record: a shard would deliver
    # again all that came after the one that is found.
    bounds = reader.bounds(partitions=[place], committed=not past_open)
    return search(reader, place, key, bounds[place], steps)


def search(
    reader: LogReader,
    place: TopicPartition,
    key: bytes,
    bounds: tuple[int, int],
    steps: Sequence[int] = SEARCH_STEPS,
) -> dict[bytes, NewestRecord]:
    """As `newest_of`, between the log's start and an end that were read before."""
    for first in _starts(*bounds, steps):
        newest = newest_in(reader, {place: (first, bounds[1])})
        if key in newest:
            return newest
    return {}


def newest_in(
    reader: LogReader, ranges: Mapping[TopicPartition, tuple[int, int]]
) -> dict[bytes, NewestRecord]:
    """The newest record of every key in ranges of offsets."""
    return {
        record.key: NewestRecord(record.value or b"", record.timestamp_ms)
        for records, _ in reader.records(ranges)
        for record in records
        # Held copies are as large as messages, and there may be thousands: no search wants one.
        if record.key is not None and not record.key.startswith(HELD_PREFIX)
    }


def _starts(start: int, end: int, steps: Sequence[int]) -> Iterator[int]:
    for step in steps:
        if end - step > start:
            yield end - step
    yield start
