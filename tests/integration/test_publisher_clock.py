"""The publisher's readings of the brokers' clock, and the timestamps of its records."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from tests.harness.fault_judge import FaultTopics
from tests.harness.fault_proxy import Action, Fault, FaultProxy
from tests.harness.proxied_shard import ProxiedShard
from tests.harness.publishing import Message, progress, publish, read
from tests.harness.shared_broker import SharedBroker

from duewheel.clock import SystemClock
from duewheel.kafka.publish.fenced_session import ShardNames
from duewheel.kafka.publish.publisher import KafkaPublisher
from duewheel.wheel.publisher_protocol import publish_progress

pytestmark = pytest.mark.kafka

HOUR_MS = 3_600_000
STRICT_MS = 30_000


class WrongClock(SystemClock):
    """The host's clock, set to another time."""

    error_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.error_ms


class WrongClockHost:
    """Topics, and a publisher on a host whose clock may be wrong."""

    def __init__(self, servers: str) -> None:
        prefix = f"clock-{uuid.uuid4().hex[:8]}"
        self.target, self.dead_letters = f"{prefix}.orders", f"{prefix}.dead-letter"
        self.state = f"{prefix}.state"
        self.servers, self.clock = servers, WrongClock()
        self.publisher = KafkaPublisher(
            {"bootstrap_servers": servers},
            ShardNames(prefix, self.state, self.dead_letters, 0),
            self.clock,
        )

    def create_topics(self, timestamp_type: str = "LogAppendTime") -> None:
        admin = KafkaAdminClient(bootstrap_servers=self.servers)
        bounds = ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms")
        strict = dict.fromkeys(bounds, str(STRICT_MS))
        admin.create_topics(
            {
                self.target: {"num_partitions": 1, "configs": strict},
                self.dead_letters: {"num_partitions": 1, "configs": strict},
                self.state: {
                    "num_partitions": 1,
                    "configs": {"message.timestamp.type": timestamp_type},
                },
            },
            wait_for_metadata=True,
        )
        admin.close()


@pytest.fixture
def shard(broker: SharedBroker) -> Iterator[WrongClockHost]:
    shard = WrongClockHost(broker.bootstrap_servers)
    yield shard
    shard.publisher.close()


def test_publishing_tells_when_the_broker_took_the_progress(
    broker: SharedBroker, shard: WrongClockHost
) -> None:
    """Whatever the host's clock says."""
    shard.create_topics()
    shard.clock.error_ms = -2 * HOUR_MS
    shard.publisher.start()
    stamps = [publish_progress(shard.publisher, progress(slot)) for slot in range(3)]
    assert [record.timestamp for record in read(broker, shard.state)] == stamps


@pytest.mark.parametrize("error_ms", [2 * HOUR_MS, -2 * HOUR_MS])
def test_records_have_a_time_that_strict_topics_take(
    broker: SharedBroker, shard: WrongClockHost, error_ms: int
) -> None:
    """That of a host far ahead, or far behind, is refused; dead letters too."""
    shard.create_topics()
    shard.clock.error_ms = error_ms
    shard.publisher.start()
    stamp_ms = publish_progress(shard.publisher, progress(1))
    assert stamp_ms is not None
    messages = [Message(shard.target, b"1"), Message("no.such.topic", b"2")]
    publish(shard.publisher, messages, progress(2))
    for topic in (shard.target, shard.dead_letters):
        (record,) = read(broker, topic)
        assert abs(record.timestamp - stamp_ms) < STRICT_MS


def test_a_state_topic_that_keeps_the_hosts_time_does_not_tell(shard: WrongClockHost) -> None:
    shard.create_topics("CreateTime")
    shard.publisher.start()
    assert publish_progress(shard.publisher, progress(1)) is None


@pytest.mark.slow
def test_after_a_slow_transaction_no_record_has_a_time_before_it_is_due(
    broker: SharedBroker, proxy: FaultProxy, tmp_path: Path
) -> None:
    """The broker takes the progress at once, and its answer to the commit comes seconds later."""
    topics = FaultTopics.named(f"slow-{uuid.uuid4().hex[:8]}")
    topics.create(broker.bootstrap_servers)
    shard = ProxiedShard(tmp_path, broker, proxy.bootstrap_servers, topics)
    try:
        shard.start()
        due_ms = [shard.write([(topics.orders, 0)], after_ms=1_000 + 250 * n) for n in range(24)]
        slow = proxy.inject(Fault("EndTxn", Action.HOLD_ANSWER, seconds=4.0, skip=1))
        shard.turn_until(lambda: shard.statistics.delivered == len(due_ms), "not delivered")
        records = shard.arrived(topics.orders)[0]
        early_ms = [
            int(dict(record.headers)["TIMER_DUE_MS"]) - record.timestamp for record in records
        ]
        assert (len(early_ms), slow.hits) == (len(due_ms), 1)
        assert max(early_ms) <= 0, early_ms
    finally:
        shard.stop()
