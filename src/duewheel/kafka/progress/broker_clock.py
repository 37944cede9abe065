"""Reads the brokers' clock from the timestamp of a record that is written for it alone."""

from __future__ import annotations

from kafka import KafkaProducer

from duewheel.deadline import Deadline
from duewheel.errors import Misconfigured
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.partition_names import partition_name

_CLOCK_KEY = b"clock"
_SENT_MS = 1  # no broker's time: it comes back where the brokers keep the senders' timestamps


class NotStamped(Misconfigured):
    """The topic has the senders' timestamps, so it does not show a broker's clock."""


def broker_now_ms(clients: KafkaClients, partition: TopicPartition, deadline: Deadline) -> int:
    """The clock of the broker that leads a partition of a topic with the brokers' timestamps."""
    with clients.opened(KafkaProducer, deadline) as producer:
        return stamp_ms(clients, producer, partition, deadline)


def stamp_ms(
    clients: KafkaClients, producer: KafkaProducer, partition: TopicPartition, deadline: Deadline
) -> int:
    """As `broker_now_ms`, by an open producer.

    Raises:
        NotStamped: the broker has kept the sender's timestamp.
    """

    def send() -> int:
        topic, number = partition
        sent = producer.send(topic, key=_CLOCK_KEY, partition=number, timestamp_ms=_SENT_MS)
        return int(sent.get(timeout=deadline.remaining_s()).timestamp)

    at_ms = clients.call(deadline, f"have {partition_name(partition)} stamp a record", send)
    if at_ms == _SENT_MS:
        raise NotStamped("records get no timestamp of the broker")
    return at_ms
