"""Where the records of shards are, when they were written, and the clock that says so.

Each shard has a partition of the state topic, the one of its index: an open transaction holds back
the stable offset of every partition that it has written to, and would hide another shard's records.
A partition also receives the transactions of `reshard`; the first one those of `dlq replay` and
`import`, too.
"""

from __future__ import annotations

from kafka import KafkaProducer
from kafka.structs import TopicPartition

from duewheel.kafka.connect.clients import ClientSettings
from duewheel.kafka.connect.deadline import Deadline
from duewheel.kafka.log.ends import LATEST
from duewheel.kafka.log.newest import SEARCH_STEPS, newest_in
from duewheel.kafka.log.reader import LogReader

_CLOCK_KEY = b"clock"


def place_of(state_topic: str, shard: int) -> TopicPartition:
    """The partition of a shard's records; records of no shard are in that of shard 0."""
    return TopicPartition(state_topic, shard)


def last_write_ms(
    settings: ClientSettings, place: TopicPartition, key: bytes, deadline: Deadline
) -> int:
    """When the broker took the newest record with this key that an open transaction hides; 0
    if there is none. Otherwise an owner would seem silent while another writer's open transaction
    hides its records from every reader of committed records.
    """
    with LogReader(settings, [place.topic], committed=False, deadline=deadline) as reader:
        (stable,) = reader.offsets([place], LATEST, committed=True).values()
        (end,) = reader.offsets([place], LATEST).values()
        if stable == end:
            return 0
        found = newest_in(reader, {place: (max(stable, end - SEARCH_STEPS[0]), end)})
        return found[key].timestamp_ms if key in found else 0


def broker_now_ms(settings: ClientSettings, place: TopicPartition, deadline: Deadline) -> int:
    """The clock of the broker that leads a partition of a topic with the brokers' timestamps."""
    with settings.opened(KafkaProducer, deadline) as producer:
        return stamp_ms(settings, producer, place, deadline)


def stamp_ms(
    settings: ClientSettings, producer: KafkaProducer, place: TopicPartition, deadline: Deadline
) -> int:
    """The timestamp of a record that is written for it alone."""

    def send() -> int:
        sent = producer.send(place.topic, key=_CLOCK_KEY, partition=place.partition)
        return int(sent.get(timeout=deadline.remaining_s()).timestamp)

    return settings.call(deadline, f"have {place} stamp a record", send)
