"""Many names of topics that do not exist: they delay no other timer, and no transaction waits."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from tests.harness.fault_judge import FaultTopics
from tests.harness.proxied_shard import ProxiedShard
from tests.harness.shared_broker import SharedBroker

from duewheel.kafka.targets.catalog import LOOKUPS_MAX

pytestmark = pytest.mark.kafka

COUNT = 3 * LOOKUPS_MAX


@pytest.fixture
def shard(tmp_path: Path, broker: SharedBroker) -> Iterator[ProxiedShard]:
    topics = FaultTopics.named(f"names-{uuid.uuid4().hex[:8]}")
    topics.create(broker.bootstrap_servers)
    shard = ProxiedShard(tmp_path, broker, broker.bootstrap_servers, topics)
    yield shard
    shard.stop()


def test_a_transaction_waits_for_a_bounded_number_of_names(
    shard: ProxiedShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are looked up beside it, their rows are parked, and all leave once."""
    waited: list[int] = []
    describe = KafkaAdminClient.describe_topics

    def counting(admin: KafkaAdminClient, topics: list[str]) -> object:
        if not threading.current_thread().name.startswith("look up targets"):
            waited.append(sum(topic.startswith("no.such") for topic in topics))
        return describe(admin, topics)

    monkeypatch.setattr(KafkaAdminClient, "describe_topics", counting)
    orders = shard.topics.orders
    shard.start()
    missing = [(f"no.such.{number}", 0) for number in range(COUNT)]
    shard.write([*missing, (orders, 0), (orders, 1)])
    shard.turn_until(lambda: shard.statistics.delivered == 2, "the neighbours are held up")
    assert shard.statistics.unresolved > 0, "no row waits for its name"
    assert not shard.statistics.parked, "invented names are in no metric"
    assert shard.statistics.doubts == 0
    shard.turn_until(
        lambda: sum(shard.statistics.dead_letters.values()) == COUNT, "they never leave"
    )
    assert max(waited) <= LOOKUPS_MAX
    letters = shard.values(shard.topics.dead_letters).values()
    assert sorted(itertools.chain(*letters)) == list(range(COUNT)), "exactly once"
    assert shard.statistics.dead_letters == {"unknown_target_topic": COUNT}
