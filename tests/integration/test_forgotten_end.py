"""Kafka 4.3 and 4.4 forget the end of a transaction where there is no leader (KAFKA-20734)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import AbortTransactionSpec, TransactionState
from tests.harness.launcher import wait_until
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
STATE = TopicPartition(NAMES.state, 0)


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


def test_a_shard_starts_once_the_forgotten_transaction_is_aborted(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state partition has no leader while Kafka ends its transaction. With the leader its start
    names the partition and the tool; after the abort it delivers once what was in doubt.
    """
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
        with closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)) as admin:
            with pytest.raises(KafkaUnavailable):
                publisher.start()
            wait_until(lambda: _is_complete(admin), "the transaction does not end")
            cluster.restart(DOWN)
            with pytest.raises(KafkaUnavailable, match=r"t\.state-0: at offset .* find-hanging"):
                publisher.start()
            (open_now,) = admin.describe_producers([STATE])[STATE].active_producers
            admin.abort_transaction(
                AbortTransactionSpec(STATE, open_now.producer_id, open_now.producer_epoch)
            )
        assert slot_of(publisher.start()) is None
        publish(publisher, rows, progress(1))
    delivered = [int(value or b"") for value in values(read(cluster, NAMES.target))]
    assert sorted(delivered) == list(range(100))


def _is_complete(admin: KafkaAdminClient) -> bool:
    """Whether Kafka has given the id to the start, and with that has ended its transaction."""
    (found,) = admin.describe_transactions([f"{NAMES.state}-0"]).values()
    return found.state in {TransactionState.EMPTY, TransactionState.COMPLETE_ABORT}
