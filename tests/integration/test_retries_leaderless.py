"""RetryLater in transactions while a broker is down: the timer topic has no other replica."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.errors import KafkaTimeoutError
from tests.harness import reader
from tests.soak.cluster import Cluster

from duewheel.client import Retry, RetryLater

pytestmark = [pytest.mark.kafka, pytest.mark.crash_matrix]

DOWN = 3  # the only broker with the timers


def test_a_message_whose_retry_has_no_leader_is_handled_again(tmp_path: Path) -> None:
    """The retry expires: no offset is committed. Once the broker is back, the retry is written."""
    with Cluster(3, tmp_path) as cluster:
        with closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)) as admin:
            made: dict[str, Any] = {"orders": {"num_partitions": 1}, "dead": {"num_partitions": 1}}
            made["timers"] = {"assignments": {0: [DOWN]}, "configs": {"min.insync.replicas": "1"}}
            admin.create_topics(made, wait_for_metadata=True)
        with closing(KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)) as stranger:
            stranger.send("orders", b"0").get(60)
        cluster.kill(DOWN)
        with pytest.raises(KafkaTimeoutError):
            _consume(cluster)
        cluster.restart(DOWN)
        assert [outcome.attempt for outcome in _consume(cluster)] == [1]
        (retry,) = reader.read_topic(cluster.bootstrap_servers, "timers")
        assert retry.value == b"0"


def _consume(cluster: Cluster) -> list[Retry]:
    """A consumer's process: until its offset is committed, or an error ends it."""
    servers, place = cluster.bootstrap_servers, TopicPartition("orders", 0)
    settings = {"group_id": "billing", "enable_auto_commit": False}
    producer = KafkaProducer(
        bootstrap_servers=servers,
        transactional_id="billing",
        request_timeout_ms=5_000,
        delivery_timeout_ms=10_000,
    )
    with closing(producer), reader.consumer(servers, **settings) as consumer:
        producer.init_transactions()
        retry_later = RetryLater(producer, "timers", dead_letter_topic="dead")

        @retry_later.in_transactions(consumer)
        def handle(record: Any) -> None:
            raise ValueError

        consumer.assign([place])
        outcomes: list[Any] = []
        while not consumer.committed(place):
            outcomes += [handle(record) for record in reader.poll(consumer, 100)]
        return outcomes
