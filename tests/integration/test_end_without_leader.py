"""The state partition has no leader while Kafka ends a transaction with records in it.

Kafka 4.3.0, 4.3.1 and 4.4.0 write no marker then, and the shard never starts (KAFKA-20734): with
them this test fails.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from tests.harness.publishing import (
    Message,
    Names,
    new_publisher,
    progress,
    publish,
    read,
    slot_of,
    started,
    values,
)
from tests.soak.cluster import Cluster

from duewheel.errors import KafkaUnavailable, PublishDoubt
from duewheel.kafka.ledger import producer_internals

pytestmark = [pytest.mark.kafka, pytest.mark.crash_matrix]

DOWN = 3  # the only broker with the state topic
NAMES = Names("t.orders", "t.dead-letter", "t.state")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Its state topic has one replica, the other topics have three."""
    state = {"message.timestamp.type": "LogAppendTime", "min.insync.replicas": "1"}
    topics: dict[str, Any] = {
        NAMES.target: {"num_partitions": 3},
        NAMES.dead_letters: {"num_partitions": 1},
        NAMES.state: {"assignments": {0: [DOWN]}, "configs": state},
    }
    with Cluster(3, tmp_path) as cluster:
        with closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)) as admin:
            admin.create_topics(topics, wait_for_metadata=True)
        yield cluster


def test_a_shard_starts_once_its_state_partition_has_a_leader_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [Message(NAMES.target, b"%d" % i, key=b"%d" % i) for i in range(100)]
    with closing(new_publisher(cluster, NAMES, 0)) as publisher:
        started(publisher)

        def kill(*_: object) -> None:
            cluster.kill(DOWN)
            raise KafkaUnavailable("killed")

        with monkeypatch.context() as patch:
            patch.setattr(producer_internals, "commit", kill)
            with pytest.raises(PublishDoubt):
                publish(publisher, rows, progress(1))
        for _ in range(2):  # the first start has Kafka end the transaction
            with pytest.raises(KafkaUnavailable):
                publisher.start()
            time.sleep(5)
        cluster.restart(DOWN)
        assert slot_of(started(publisher)) is None
        publish(publisher, rows, progress(1))
    delivered = [int(value or b"") for value in values(read(cluster, NAMES.target))]
    assert sorted(delivered) == list(range(100))
