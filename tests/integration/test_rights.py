"""The right to write to a target is taken away while timers for it are due."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ResourcePattern,
    ResourceType,
)
from tests.harness.proxied_shard import shard_of_two_teams
from tests.harness.shared_broker import WITH_ACLS

from duewheel.dev.broker import DevBroker
from duewheel.java.find import Java
from duewheel.kafka.targets import target_cache

pytestmark = pytest.mark.kafka

USUAL, DESCRIBE_ONLY = ACLOperation.ALL, ACLOperation.DESCRIBE


class Rights:
    """Sets the only right that anybody has on a topic."""

    def __init__(self, admin: KafkaAdminClient) -> None:
        self._admin = admin

    def set(self, topic: str, operation: ACLOperation) -> None:
        pattern = ResourcePattern(ResourceType.TOPIC, topic)
        who = ("User:*", "*")
        # The new one first: without any, everybody has all rights.
        self._admin.create_acls([ACL(*who, operation, ACLPermissionType.ALLOW, pattern)])
        other = USUAL if operation is DESCRIBE_ONLY else DESCRIBE_ONLY
        self._admin.delete_acls([ACL(*who, other, ACLPermissionType.ALLOW, pattern)])


@pytest.fixture
def secured(java: Java) -> Iterator[DevBroker]:
    with DevBroker(java=java, properties=WITH_ACLS) as broker:
        yield broker


@pytest.mark.slow
def test_a_timer_topic_rests_once_a_second_of_its_targets_loses_the_right(
    secured: DevBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first one only the timers for that target are dead letters."""
    monkeypatch.setattr(target_cache, "_MISSING_AGE_S", 0.5)
    monkeypatch.setattr(
        target_cache, "_AGE_S", 300
    )  # else a slow host looks again before the refusal
    with (
        shard_of_two_teams(tmp_path, secured) as shard,
        closing(KafkaAdminClient(bootstrap_servers=secured.bootstrap_servers)) as admin,
    ):
        orders, bills = shard.topics.orders, shard.topics.bills
        other, more = f"{shard.topics.timers}.other", f"{bills}.more"
        admin.create_topics({more: {"num_partitions": 1}}, wait_for_metadata=True)
        rights = Rights(admin)
        shard.start()
        shard.write([(orders, 0), (bills, 0), (more, 0)])
        shard.turn_until(lambda: shard.statistics.delivered == 3, "the first never come")

        rights.set(bills, DESCRIBE_ONLY)
        shard.write([(orders, 1), (bills, 0)], after_ms=0, timer_topic=other)
        shard.turn_until(lambda: shard.values(orders).keys() == {0, 1}, "the neighbour is held up")
        assert shard.statistics.doubts == 1, "nothing is refused"
        assert shard.statistics.dead_letters == {"target_not_authorized": 1}
        shard.write([(more, 0)], after_ms=0, timer_topic=other)
        shard.turn_until(lambda: len(shard.values(more)[0]) == 2, "it rests after a single one")
        assert not shard.statistics.parked

        rights.set(more, DESCRIBE_ONLY)
        shard.write([(more, 0)], after_ms=0, timer_topic=other)
        shard.turn_until(lambda: shard.statistics.doubts == 2, "nothing is refused")
        shard.await_rest(other)
        assert shard.statistics.dead_letters["target_not_authorized"] == 2

        for topic in (bills, more):
            rights.set(topic, USUAL)
        before = shard.statistics.delivered
        shard.write([(bills, 0), (more, 0)], timer_topic=other)
        shard.turn_until(lambda: shard.statistics.delivered == before + 2, "they never come")
        assert shard.statistics.doubts == 2
