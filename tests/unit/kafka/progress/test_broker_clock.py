"""The brokers' clock without an answer; with one: tests/integration/test_publisher_clock.py."""

from __future__ import annotations

from contextlib import closing

import pytest
from kafka import KafkaProducer

from duewheel.deadline import Deadline
from duewheel.dev.listeners import HOST, free_ports
from duewheel.errors import KafkaUnavailable
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.progress.broker_clock import stamp_ms


def test_a_partition_that_stamps_nothing_is_named() -> None:
    (nobody,) = free_ports(1)
    clients, partition = KafkaClients({}), ("orders", 3)
    producer = KafkaProducer(bootstrap_servers=f"{HOST}:{nobody}", api_version=(4, 3))
    with closing(producer), pytest.raises(KafkaUnavailable, match=": have orders-3 stamp a record"):
        stamp_ms(clients, producer, partition, Deadline(0.2))
