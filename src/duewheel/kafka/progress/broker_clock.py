"""Reads the brokers' clock from the timestamp of a record that is written for it alone."""

from __future__ import annotations

from kafka import KafkaProducer
from kafka.structs import TopicPartition as KafkaPartition

from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.connect.deadline import Deadline

_CLOCK_KEY = b"clock"


def broker_now_ms(clients: KafkaClients, place: KafkaPartition, deadline: Deadline) -> int:
    """The clock of the broker that leads a partition of a topic with the brokers' timestamps."""
    with clients.opened(KafkaProducer, deadline) as producer:
        return stamp_ms(clients, producer, place, deadline)


def stamp_ms(
    clients: KafkaClients, producer: KafkaProducer, place: KafkaPartition, deadline: Deadline
) -> int:
    """As `broker_now_ms`, by an open producer."""

    def send() -> int:
        sent = producer.send(place.topic, key=_CLOCK_KEY, partition=place.partition)
        return int(sent.get(timeout=deadline.remaining_s()).timestamp)

    return clients.call(deadline, f"have {place} stamp a record", send)
