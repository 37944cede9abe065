"""The proxy itself: the answers that a plain client gets for each kind of fault."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.errors import GroupAuthorizationFailedError, KafkaError
from kafka.structs import OffsetAndMetadata
from tests.harness.fault_proxy import Action, Fault, FaultProxy
from tests.harness.reader import read_committed
from tests.harness.shared_broker import SharedBroker

from duewheel.client import transaction

pytestmark = pytest.mark.kafka


@pytest.fixture
def topic(broker: SharedBroker, unique_name: Callable[[str], str]) -> str:
    name = unique_name("topic")
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    admin.create_topics({name: {"num_partitions": 1}}, wait_for_metadata=True)
    admin.close()
    return name


def write(producer: KafkaProducer, topic: str) -> None:
    """A record and an offset, in one transaction."""
    with transaction(producer):
        producer.send(topic, b"value", partition=0)
        offsets = {TopicPartition(topic, 0): OffsetAndMetadata(1, "", -1)}
        producer.send_offsets_to_transaction(offsets, topic)


def test_clients_stay_on_the_proxy_and_get_on_over_a_retry_of_everything(
    broker: SharedBroker, proxy: FaultProxy, topic: str
) -> None:
    retried = {
        "InitProducerId": 14,
        "AddPartitionsToTxn": 51,
        "Produce": 7,
        "TxnOffsetCommit": 14,
        "EndTxn": 51,
    }
    faults = [proxy.inject(Fault(api, Action.REFUSE, code)) for api, code in retried.items()]
    producer = KafkaProducer(
        bootstrap_servers=proxy.bootstrap_servers, transactional_id=topic, retry_backoff_ms=5
    )
    producer.init_transactions()
    write(producer, topic)
    producer.close()
    assert [fault.hits for fault in faults] == [1] * len(faults)
    assert all(proxy.seen[api] >= 2 for api in retried)
    records = read_committed(broker.bootstrap_servers, {TopicPartition(topic, 0): 0})
    assert [record.value for record in records] == [b"value"]


def test_an_error_of_the_answer_reaches_the_client(proxy: FaultProxy, topic: str) -> None:
    proxy.inject(Fault("TxnOffsetCommit", Action.REFUSE, GroupAuthorizationFailedError.errno))
    producer = KafkaProducer(bootstrap_servers=proxy.bootstrap_servers, transactional_id=topic)
    producer.init_transactions()
    with pytest.raises(GroupAuthorizationFailedError):
        write(producer, topic)
    producer.close()


def test_a_proxy_that_is_away_refuses_and_comes_back(proxy: FaultProxy) -> None:
    def connect() -> KafkaAdminClient:
        return KafkaAdminClient(
            bootstrap_servers=proxy.bootstrap_servers, bootstrap_timeout_ms=1_000
        )

    proxy.away()
    with pytest.raises(KafkaError):
        connect()
    proxy.back()
    client = connect()
    assert [node["port"] for node in client.describe_cluster()["brokers"]] == [proxy.port]
    client.close()
