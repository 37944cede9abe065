"""The reader of raw record batches at a real broker."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import closing

import pytest
from kafka import KafkaAdminClient
from kafka.admin import NewTopic

from duewheel.dev.broker import DevBroker
from duewheel.errors import KafkaUnavailable
from duewheel.java.find import Java
from duewheel.kafka.clients import ClientSettings
from duewheel.kafka.log_ends import LATEST
from duewheel.kafka.raw_reader import RawReader

pytestmark = pytest.mark.kafka


def test_a_deleted_topic_is_not_created_again(java: Java) -> None:
    """Most clusters create what a client asks for."""
    properties = {"auto.create.topics.enable": "true"}
    with (
        DevBroker(java=java, properties=properties) as broker,
        closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)) as admin,
    ):
        admin.create_topics([NewTopic("kept", 1, 1), NewTopic("deleted", 1, 1)])
        client = ClientSettings({"bootstrap_servers": broker.bootstrap_servers})
        with closing(RawReader(client, ["kept", "deleted"])) as reader:
            assert reader.partitions() == [("kept", 0), ("deleted", 0)]
            admin.delete_topics(["deleted"])
            until_s = time.monotonic() + 5
            while time.monotonic() < until_s:
                assert reader.offsets([("kept", 0)], LATEST) == {("kept", 0): 0}
                time.sleep(0.2)
            assert reader.partitions() == [("kept", 0)]
            assert "deleted" not in admin.list_topics()


@pytest.mark.parametrize("is_silent", [True, False])
def test_a_stop_does_not_wait_for_a_kafka_that_is_away(*, java: Java, is_silent: bool) -> None:
    stopping = threading.Event()
    with (
        DevBroker(java=java) as broker,
        closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)) as admin,
    ):
        admin.create_topics([NewTopic("timers", 1, 1)])
        client = ClientSettings({"bootstrap_servers": broker.bootstrap_servers})
        with closing(RawReader(client, ["timers"], stopping)) as reader:
            assert reader.offsets([("timers", 0)], LATEST) == {("timers", 0): 0}
            if is_silent:
                os.kill(broker.pid, signal.SIGSTOP)
            else:
                broker.kill()
            begun_s = time.monotonic()
            threading.Timer(1.0, stopping.set).start()
            with pytest.raises(KafkaUnavailable):
                list(reader.read({("timers", 0): (0, 5)}, 1 << 20))
            if is_silent:
                os.kill(broker.pid, signal.SIGCONT)
        assert time.monotonic() - begun_s < 8
