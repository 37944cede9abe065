"""The reader of raw record batches at a real broker."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic
from pyspark.sql.streaming.datasource import ReadMaxRows

from duewheel.client.transactions import transaction
from duewheel.deadline import Deadline
from duewheel.dev.broker import DevBroker
from duewheel.errors import KafkaUnavailable
from duewheel.java.find import Java
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.log.reader import LogReader
from duewheel.streaming.source import SourceOptions, TimerReader
from duewheel.streaming.task_share import TaskSettings
from duewheel.threads import beside

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def broker(java: Java, kafka_jars: list[Path]) -> Iterator[DevBroker]:
    """One that creates what a client asks for, as most clusters do. The last test kills it."""
    with DevBroker(java=java, properties={"auto.create.topics.enable": "true"}) as broker:
        yield broker


@pytest.fixture
def admin(broker: DevBroker) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)) as admin:
        yield admin


def test_a_deleted_topic_is_not_created_again(broker: DevBroker, admin: KafkaAdminClient) -> None:
    admin.create_topics([NewTopic("kept", 1, 1), NewTopic("deleted", 1, 1)])
    client = KafkaClients({"bootstrap_servers": broker.bootstrap_servers})
    with closing(LogReader(client, ["kept", "deleted"])) as reader:
        assert reader.partitions() == [("kept", 0), ("deleted", 0)]
        admin.delete_topics(["deleted"])
        until_s = time.monotonic() + 5
        while time.monotonic() < until_s:
            assert reader.ends([("kept", 0)], committed=True) == {("kept", 0): 0}
            time.sleep(0.2)
        assert reader.partitions() == [("kept", 0)]
        assert "deleted" not in admin.list_topics()


def test_a_deleted_topic_delays_no_other(broker: DevBroker, admin: KafkaAdminClient) -> None:
    """Ingest learns of it only with the next list of topics."""
    topics = ["remains", "goes"]
    admin.create_topics([NewTopic(topic, 1, 1) for topic in topics])
    servers = broker.bootstrap_servers
    task = TaskSettings({"bootstrap_servers": servers}, topics, "", "", "")
    starts = {("remains", 0): 0, ("goes", 0): 0}
    source = TimerReader(SourceOptions(task, starts, "none", 100, 1_000, only=True), tasks=1)
    begun = source.initialOffset()
    with closing(KafkaProducer(bootstrap_servers=servers)) as producer:
        producer.send("goes", b"x").get(30)
    seen = source.latestOffset(begun, ReadMaxRows(100))
    assert seen == {"remains": {"0": 0}, "goes": {"0": 1}}
    admin.delete_topics(["goes"])
    with closing(KafkaProducer(bootstrap_servers=servers)) as producer:  # that knows one topic
        for sent in range(1, 20):
            producer.send("remains", b"x").get(30)
            seen = source.latestOffset(seen, ReadMaxRows(100))
            assert seen == {"remains": {"0": sent}, "goes": {"0": 1}}
            time.sleep(0.1)


def test_a_wait_ends_with_a_record_that_can_be_read(
    broker: DevBroker, admin: KafkaAdminClient
) -> None:
    servers, partition = broker.bootstrap_servers, ("awaited", 0)
    admin.create_topics([NewTopic("awaited", 1, 1)])
    clients = KafkaClients({"bootstrap_servers": servers})
    written, ending = threading.Event(), threading.Event()

    def write() -> None:
        options = {"transactional_id": "awaited", "bootstrap_servers": servers}
        with closing(KafkaProducer(**options)) as producer:
            producer.init_transactions()
            with transaction(producer):
                producer.send("awaited", b"x").get(30)
                written.set()
                ending.wait(60)

    with closing(LogReader(clients)) as reader:
        assert not reader.await_news({partition: 0}, 0.2)
        writing = beside("writer", write)
        assert written.wait(60)
        assert not reader.await_news({partition: 0}, 0.2), "its transaction is open"
        threading.Timer(0.5, ending.set).start()
        assert reader.await_news({partition: 0}, 60)
        writing.result(60)
        assert not reader.await_news({partition: 2}, 0.2), "record and marker are before that"
        assert reader.await_news({partition: 9}, 60), "an offset that the log does not have"


@pytest.mark.parametrize("is_silent", [True, False])
def test_a_stop_does_not_wait_for_a_kafka_that_is_away(
    broker: DevBroker, admin: KafkaAdminClient, *, is_silent: bool
) -> None:
    stopping, timers = threading.Event(), f"timers-{is_silent}"
    admin.create_topics([NewTopic(timers, 1, 1)])
    client = KafkaClients({"bootstrap_servers": broker.bootstrap_servers})
    with closing(LogReader(client, [timers], partial(Deadline, 60, stopping))) as reader:
        assert reader.ends([(timers, 0)], committed=True) == {(timers, 0): 0}
        if is_silent:
            os.kill(broker.pid, signal.SIGSTOP)
        else:
            broker.kill()
        begun_s = time.monotonic()
        threading.Timer(1.0, stopping.set).start()
        try:
            with pytest.raises(KafkaUnavailable):
                list(reader.read({(timers, 0): (0, 5)}, 1 << 20))
        finally:
            if is_silent:
                os.kill(broker.pid, signal.SIGCONT)
    assert time.monotonic() - begun_s < 8
