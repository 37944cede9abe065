"""What the admin client does with answers of brokers, which are made up."""

from __future__ import annotations

import pytest
from kafka.errors import LeaderNotAvailableError, TopicAuthorizationFailedError

from duewheel.checkpoints.timer_topics_file import TopicSet
from duewheel.config.settings import load
from duewheel.errors import ConfigError, DuewheelError, KafkaUnavailable
from duewheel.kafka.log.connection import LogConnection
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.kafka.topics.discovery import discover
from duewheel.kafka.topics.requirements import TopicState


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (LeaderNotAvailableError("no leader of timers-1"), KafkaUnavailable),
        (TopicAuthorizationFailedError("timers-1"), ConfigError),
    ],
)
def test_ends_are_those_of_all_partitions_or_none(
    monkeypatch: pytest.MonkeyPatch, answer: Exception, error: type[DuewheelError]
) -> None:
    """A caller would take a partition that is left out for one that does not exist."""
    answers = {("timers", 0): 4, ("timers", 1): answer}
    monkeypatch.setattr(KafkaAdmin, "partition_counts", lambda *_: {"timers": 2})
    monkeypatch.setattr(LogConnection, "ask", lambda *_, **__: answers)
    with KafkaAdmin({}) as admin, pytest.raises(error, match="timers-1"):
        admin.ends(["timers"], committed=False)


def test_a_setting_of_a_matching_topic_that_the_broker_hides_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`doctor` and `init` show it; the topic is read all the same."""
    right = {"cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"}
    shown = {"delayed": {**right, "retention.bytes": "-1"}}
    monkeypatch.setattr(KafkaAdmin, "topic_settings", lambda *_: shown)
    settings = load(None, {"timer": {"topics_pattern": "delayed"}})
    with KafkaAdmin({}) as admin:
        (found,) = admin.timer_topic_findings(settings, ["delayed"])["delayed"]
        assert (found.state, found.setting) == (TopicState.WITHHELD, "retention.ms")
        monkeypatch.setattr(KafkaAdmin, "topic_names", lambda *_: ["delayed"])
        monkeypatch.setattr(KafkaAdmin, "topic_ids", lambda *_: {"delayed": "id 1"})
        monkeypatch.setattr(KafkaAdmin, "partition_counts", lambda *_: {"delayed": 1})
        assert discover(settings, admin) == TopicSet(("delayed",))
