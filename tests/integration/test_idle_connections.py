"""Connections that the broker closes because they were idle: after ten minutes, by default."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest
from kafka import KafkaProducer
from tests.harness.topics import make_timer_topic
from tests.harness.whole_shard import WholeShard

from duewheel.dev.broker import DevBroker
from duewheel.java.find import Java

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

IDLE_MS = 3_000


def test_a_new_topic_is_read_by_the_ingest_that_runs(tmp_path: Path, java: Java) -> None:
    """Its connection for topics is used only where a query ends: a new Spark took a minute."""
    properties = {"connections.max.idle.ms": str(IDLE_MS)}
    with (
        DevBroker(java=java, properties=properties) as broker,
        closing(WholeShard(tmp_path, broker.bootstrap_servers, "idle")) as shard,
    ):
        shard.start()
        pid = shard.status()["ingest"]["pid"]
        time.sleep(2 * IDLE_MS / 1_000)
        topic = "idle.later.new"
        make_timer_topic(broker.bootstrap_servers, topic)
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
        headers = [("TIMER_DELAY_MS", b"0"), ("REAL_TOPIC", shard.target.encode())]
        producer.send(topic, b"of the new topic", headers=headers).get(timeout=30)
        producer.close()
        shard.wait(lambda: b"of the new topic" in shard.arrivals.first)
        assert shard.status()["ingest"]["pid"] == pid
        assert shard.stop() == 0
