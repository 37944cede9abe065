"""The one loop that polls until a position has moved, or reached an end.

Offsets have gaps (compaction, transaction markers): a reader that waited for the last record could
wait for ever, so the position decides. An open transaction keeps the position below it however long
the loop polls: a deadline bounds the time without headway.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kafka import KafkaConsumer
from kafka.structs import TopicPartition

from duewheel.kafka.deadline import Deadline

_POLL_MS = 20
_AHEAD_S = 0.5  # before the enclosing call ends, whose message would not say why
_STAYS_OPEN = (
    "held back by an open transaction; if it stays open, kafka-transactions.sh find-hanging names "
    "it"
)


def next_records(
    consumer: KafkaConsumer,
    left: Mapping[TopicPartition, tuple[int, int]],
    deadline: Deadline,
    why: str = "no more records come",
) -> tuple[list[Any], dict[TopicPartition, int]]:
    """Poll until a position moves: a transaction's marker moves it without a record.

    Args:
        consumer: assigned, and at its position.
        left: for each partition that is read, its position and its end.
        deadline: for the call.
        why: the meaning of no progress, for the error.

    Returns:
        Records, some perhaps beyond the end; and the position of each partition.

    Raises:
        DeadlineExceeded: no position has moved in time.
    """
    while True:
        polled = consumer.poll(timeout_ms=_POLL_MS)
        reached = {
            partition: int(consumer.position(partition, timeout_ms=deadline.remaining_ms()) or 0)
            for partition in left
        }
        if any(reached[partition] > at for partition, (at, _) in left.items()):
            return [record for records in polled.values() for record in records], reached
        partition, (_, end) = next(iter(left.items()))
        deadline.check(f"at offset {reached[partition]} of {end}, {why}", _AHEAD_S)


def records_until(
    consumer: KafkaConsumer, partition: TopicPartition, end: int, deadline: Deadline
) -> Iterator[Any]:
    """The records from the consumer's position to `end`, and later ones of the last poll. Headway
    renews the deadline.

    Raises:
        DeadlineExceeded: no headway in time.
    """
    at = -1
    while at < end:
        records, reached = next_records(consumer, {partition: (at, end)}, deadline, _STAYS_OPEN)
        yield from records
        at = reached[partition]
        deadline.renew()
