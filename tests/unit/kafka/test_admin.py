"""What the admin client does with answers of brokers, which are made up."""

from __future__ import annotations

import pytest
from kafka.errors import LeaderNotAvailableError, TopicAuthorizationFailedError

from duewheel.errors import ConfigError, DuewheelError, KafkaUnavailable
from duewheel.kafka.log.connection import LogConnection
from duewheel.kafka.topics.admin import KafkaAdmin


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
    monkeypatch.setattr(KafkaAdmin, "describe_partitions", lambda *_: {"timers": 2})
    monkeypatch.setattr(LogConnection, "ask", lambda *_, **__: answers)
    with KafkaAdmin({}) as admin, pytest.raises(error, match="timers-1"):
        admin.end_offsets(["timers"])
