"""A consumer that its group has evicted commits nothing: its successor has the messages.

Kafka takes the offsets of a transaction unchecked if they carry no generation, and an evicted
consumer has none.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.errors import CommitFailedError, IllegalStateError
from tests.harness import reader
from tests.harness.shared_broker import SharedBroker

from duewheel.client import RetryLater
from duewheel.kafka.topics.admin import KafkaAdmin

pytestmark = pytest.mark.kafka

MESSAGES = 3


@pytest.mark.parametrize("fails", [False, True], ids=["handled", "failed"])
def test_an_evicted_consumer_commits_nothing(
    broker: SharedBroker, unique_name: Callable[[str], str], *, fails: bool
) -> None:
    """Its successor has handled the message, and later ones, while its own handler ran."""
    servers = broker.bootstrap_servers
    orders, timers, dead, bills = map(unique_name, ("orders", "timers", "dead", "bills"))
    with KafkaAdmin({"bootstrap_servers": [servers]}) as admin:
        for topic in (orders, timers, dead, bills):
            admin.create_topic(topic, 1)
    with closing(KafkaProducer(bootstrap_servers=servers)) as stranger:
        for number in range(MESSAGES):
            stranger.send(orders, b"%d" % number)
    group = {"group_id": orders, "enable_auto_commit": False}
    with (
        reader.consumer(servers, max_poll_interval_ms=1_000, **group) as slow,
        reader.consumer(servers, **group) as successor,
        closing(transactional(servers, f"{orders}.slow")) as of_slow,
        closing(transactional(servers, f"{orders}.successor")) as of_successor,
    ):

        @RetryLater(of_successor, timers, dead_letter_topic=dead).in_transactions(successor)
        def take(record: Any) -> None:
            of_successor.send(bills, record.value)

        @RetryLater(of_slow, timers, dead_letter_topic=dead).in_transactions(slow)
        def handle(record: Any) -> None:
            of_slow.send(bills, b"evicted")
            successor.subscribe([orders])
            taken = 0
            while taken < MESSAGES:  # they come once the group has evicted the other
                for one in reader.poll(successor, 100):
                    take(one)
                    taken += 1
            if fails:
                raise ValueError

        slow.subscribe([orders])
        records: list[Any] = []
        while not records:
            records += reader.poll(slow, 100)
        with pytest.raises(CommitFailedError):
            handle(records[0])
        with pytest.raises(IllegalStateError, match="begin again"):
            handle(records[0])
        assert successor.committed(TopicPartition(orders, 0)) == MESSAGES
    bodies = [record.value for record in reader.read_topic(servers, bills)]
    assert bodies == [b"%d" % number for number in range(MESSAGES)]
    assert reader.read_topic(servers, timers) == []


def transactional(servers: str, name: str) -> KafkaProducer:
    made = KafkaProducer(bootstrap_servers=servers, transactional_id=name)
    made.init_transactions()
    return made
