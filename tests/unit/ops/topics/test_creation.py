"""What `init` refuses before it creates a topic; the brokers' answers are made up."""

from __future__ import annotations

import pytest

from duewheel.config.settings import load
from duewheel.errors import ConfigError
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.ops.topics.creation import init_topics


@pytest.mark.parametrize("existing", [{}, {"orders": 2}])
def test_a_shard_without_a_partition_is_refused_before_a_topic_is_created(
    monkeypatch: pytest.MonkeyPatch, existing: dict[str, int]
) -> None:
    asked: list[str] = []

    def counts(_: KafkaAdmin, names: list[str]) -> dict[str, int]:
        asked.extend(names)
        return existing

    monkeypatch.setattr(KafkaAdmin, "partition_counts", counts)
    monkeypatch.setattr(KafkaAdmin, "create", lambda *_: pytest.fail("a topic is created"))
    timer = {"topics": ["orders", "bills"], "targets": ["paid"]}
    settings = load(None, {"timer": timer, "shard": {"count": 3}})
    with pytest.raises(ConfigError, match=r"--partitions: 3 shards need .* 3 partitions"):
        next(init_topics(settings, 2, None, lambda _: False))
    assert asked == ["orders", "bills"]


def test_another_timer_topic_may_have_the_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KafkaAdmin, "partition_counts", lambda *_: {"orders": 3})
    monkeypatch.setattr(KafkaAdmin, "init_topics", lambda *_, **__: [])
    monkeypatch.setattr(KafkaAdmin, "missing_targets", lambda *_: [])
    timer = {"topics": ["orders", "bills"], "targets": ["paid"]}
    settings = load(None, {"timer": timer, "shard": {"count": 3}})
    assert list(init_topics(settings, 2, None, lambda _: False)) == []
