"""A topic's records, as somebody else reads them."""

from __future__ import annotations

from typing import Any

from kafka import KafkaConsumer, TopicPartition


def everything_in(servers: str, topic: str, partitions: int) -> list[Any]:
    """Everything that is in a topic now, of open and aborted transactions, too."""
    consumer = KafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False)
    wanted = [TopicPartition(topic, number) for number in range(partitions)]
    consumer.assign(wanted)
    consumer.seek_to_beginning(*wanted)
    ends = consumer.end_offsets(wanted)
    found: list[Any] = []
    while any(consumer.position(p) < end for p, end in ends.items()):
        found += [r for batch in consumer.poll(timeout_ms=200).values() for r in batch]
    consumer.close()
    return found
