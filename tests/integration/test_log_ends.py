"""The ends of timer partitions, as cancels wait for them: open transactions included."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from tests.harness.publishing import Names, create_topics, new_publisher
from tests.harness.shared_broker import SharedBroker

from duewheel.errors import KafkaUnavailable

pytestmark = pytest.mark.kafka


@pytest.fixture
def names(broker: SharedBroker) -> Iterator[Names]:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    yield create_topics(admin)
    admin.close()


def test_open_transactions_count_and_what_is_missing_is_left_out(
    broker: SharedBroker, names: Names
) -> None:
    publisher = new_publisher(broker, names, 0)
    with pytest.raises(KafkaUnavailable, match="not started"):
        publisher.log_ends([(names.target, 0)])
    publisher.start()
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, transactional_id=uuid.uuid4().hex
    )
    try:
        producer.init_transactions()
        producer.begin_transaction()
        for partition in (0, 0, 3):
            producer.send(names.target, b"v", partition=partition)
        producer.flush()
        asked = [(names.target, 0), (names.target, 1), (names.target, 3)]
        ends = {(names.target, 0): 2, (names.target, 1): 0, (names.target, 3): 1}
        assert publisher.log_ends(asked) == ends
        missing = [(names.target, 9), ("there.is.no.such.topic", 0)]
        assert publisher.log_ends([*asked, *missing]) == ends
        producer.abort_transaction()
    finally:
        producer.close()
        publisher.close()
