"""A standby's reader of the progress, on a real broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import CoordinatorNotAvailableError
from kafka.net.compat import KafkaNetClient
from tests.harness.fault_proxy import ALWAYS, Action, Fault, FaultProxy
from tests.harness.launcher import wait_until
from tests.harness.publishing import progress, slot_of
from tests.harness.shared_broker import SharedBroker

from duewheel.checkpoints.progress import Progress, record_key
from duewheel.client import transaction
from duewheel.deadline import Deadline
from duewheel.errors import KafkaUnavailable
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.log.leader_requests import LeaderRequests
from duewheel.kafka.progress.newest import newest_records
from duewheel.kafka.progress.progress_reader import KafkaProgressReader
from duewheel.kafka.progress.state_topic import state_partition
from duewheel.wheel.publisher_protocol import Seen

pytestmark = pytest.mark.kafka

NOT_AVAILABLE = CoordinatorNotAvailableError.errno


@pytest.fixture
def topic(broker: SharedBroker, unique_name: Callable[[str], str]) -> str:
    name = unique_name("state")
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    configs = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
    admin.create_topics({name: {"num_partitions": 1, "configs": configs}}, wait_for_metadata=True)
    admin.close()
    return name


@pytest.fixture
def producer(broker: SharedBroker, topic: str) -> Iterator[KafkaProducer]:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic)
    producer.init_transactions()
    yield producer
    producer.close()


def write(producer: KafkaProducer, topic: str, slot: int, shard: int = 0) -> None:
    producer.send(topic, progress(slot, shard).encode(), record_key(shard)).get(timeout=30)


def committed(producer: KafkaProducer, topic: str, *slots: int, shard: int = 0) -> None:
    with transaction(producer):
        for slot in slots:
            write(producer, topic, slot, shard)


class CountingSettings(KafkaClients):
    """Counts the clients that it opens."""

    count = 0

    def connect(self, deadline: Deadline, **own: Any) -> KafkaNetClient:
        self.count += 1
        return super().connect(deadline, **own)


def await_slot(reader: KafkaProgressReader, slot: int) -> Seen:
    """The broker answers a commit before it has closed the transaction in each partition."""

    def is_there() -> bool:
        seen = reader.newest()
        return seen is not None and slot_of(seen.progress) == slot

    wait_until(is_there, f"no progress of slot {slot}")
    seen = reader.newest()
    assert seen is not None
    return seen


def test_it_sees_each_new_progress_once_it_is_committed(
    broker: SharedBroker, topic: str, producer: KafkaProducer
) -> None:
    settings = CountingSettings({"bootstrap_servers": broker.bootstrap_servers})
    reader = KafkaProgressReader(
        settings, state_partition(topic, 0), record_key(0), topic, deadline_s=30
    )
    assert reader.newest() is None
    committed(producer, topic, 1, 2)
    committed(producer, topic, 9, shard=1)
    first = await_slot(reader, 2)
    assert first.written_ms > 0
    # Another shard's news are none; nor is what is not committed.
    committed(producer, topic, 10, shard=1)
    producer.begin_transaction()
    write(producer, topic, 3)
    assert reader.newest() is first
    producer.abort_transaction()
    assert reader.newest() is first
    committed(producer, topic, 4)
    newest = await_slot(reader, 4)
    assert newest.written_ms >= first.written_ms
    assert settings.count == 1
    # Who comes later finds it, too.
    later = KafkaProgressReader(settings, state_partition(topic, 0), record_key(0), topic)
    assert later.newest() == newest
    for each in (reader, later):
        each.close()


def test_a_broker_that_is_away_is_noticed(topic: str) -> None:
    settings = KafkaClients({"bootstrap_servers": "127.0.0.1:1"})
    reader = KafkaProgressReader(
        settings, state_partition(topic, 0), record_key(0), topic, deadline_s=1
    )
    with pytest.raises(KafkaUnavailable):
        reader.newest()
    reader.close()


def test_a_coordinator_that_does_not_answer_is_noticed(
    broker: SharedBroker, topic: str, producer: KafkaProducer
) -> None:
    """The progress can be read all the while."""
    with FaultProxy(broker.bootstrap_servers) as proxy:
        settings = KafkaClients({"bootstrap_servers": proxy.bootstrap_servers})
        reader, nobodys = (
            KafkaProgressReader(settings, state_partition(topic, 0), record_key(0), name)
            for name in (topic, f"{topic}.not-used-yet")
        )
        committed(producer, topic, 1)
        for each in (reader, nobodys):
            each.require_coordinator()
        absent = proxy.inject(Fault("FindCoordinator", Action.REFUSE, NOT_AVAILABLE, times=ALWAYS))
        with pytest.raises(KafkaUnavailable):
            reader.require_coordinator()
        assert absent.hits
        committed(producer, topic, 2)
        await_slot(reader, 2)
        proxy.clear()
        reader.require_coordinator()
        reader.close()
        nobodys.close()


def test_what_takes_long_to_read_is_read_as_long_as_there_is_headway(
    broker: SharedBroker,
    topic: str,
    producer: KafkaProducer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A record batch at a time, each of which takes most of the deadline."""
    committed(producer, topic, 1, 2, 3)
    committed(producer, topic, *range(5, 9), shard=1)
    settings = KafkaClients({"bootstrap_servers": broker.bootstrap_servers})
    for shard, slot in enumerate((3, 8)):
        reader = KafkaProgressReader(settings, state_partition(topic, 0), record_key(shard), topic)
        await_slot(reader, slot)
        reader.close()
    now_s, fetch = [0.0], LeaderRequests.fetch

    async def slow(self: LeaderRequests, positions: Any, _: int, *others: Any) -> Any:
        now_s[0] += 20
        return await fetch(self, positions, 1, *others)

    monkeypatch.setattr(LeaderRequests, "fetch", slow)
    newest = newest_records(settings, topic, Deadline(30, now_s=lambda: now_s[0]))
    assert now_s[0] >= 4 * 20, "four batches in a partition"
    slots = {key: slot_of(Progress.decode(found.value)) for key, found in newest.items()}
    assert slots == {record_key(0): 3, record_key(1): 8}
