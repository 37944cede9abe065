"""What `duewheel doctor` says of the rights of its principal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
from kafka.errors import (
    IncompatibleBrokerVersion,
    SaslAuthenticationFailedError,
    TransactionalIdAuthorizationFailedError,
)
from tests.harness.config_file import small_settings
from tests.harness.findings import severities, topic

from duewheel.clock import SystemClock
from duewheel.doctor import rights
from duewheel.doctor.cluster import Cluster
from duewheel.doctor.remedies import KafkaCommands
from duewheel.errors import ConfigError, KafkaUnavailable
from duewheel.kafka.topics.description import Topic
from duewheel.kafka.topics.topic_checks import TopicChecks

COMMANDS = KafkaCommands("kafka:9092", "User:x")


NEEDED = ({"READ", "WRITE"}, {"DESCRIBE_CONFIGS": "its settings cannot be read"})


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        ({"READ", "WRITE", "DESCRIBE_CONFIGS", "ALTER"}, ["ok"]),
        ({"READ", "WRITE"}, ["warning"]),
        ({"WRITE"}, ["error", "warning"]),
        (None, ["ok"]),
    ],
)
def test_what_a_principal_lacks(allowed: set[str] | None, expected: list[str]) -> None:
    told = topic(rights=None if allowed is None else frozenset(allowed))
    found = list(rights.check_topic(told, NEEDED, COMMANDS))
    assert severities(found) == expected
    assert ["--operation Read --topic t" in f.remedy for f in found if f.severity == "error"] in (
        [],
        [True],
    )


def test_a_topic_that_may_not_be_seen_lacks_every_right() -> None:
    found = list(rights.check_topic(Topic("t", 29), NEEDED, COMMANDS))
    assert "User:x lacks READ, WRITE" in found[0].found
    assert "--operation DescribeConfigs" in found[1].remedy


class Undescribing(TopicChecks):
    """Answers each description of a transactional id with an error."""

    def __init__(self, error: Exception) -> None:
        super().__init__({})
        self.error = error

    def call(self, what: str, call: Any, *, writes: bool = False) -> Any:
        with self.clients.explained(what):
            return call(self)

    def describe_transactions(self, _: Sequence[str]) -> NoReturn:
        raise self.error


@pytest.mark.parametrize(
    ("error", "severity", "remedy"),
    [
        (IncompatibleBrokerVersion("Kafka 2.8"), "ok", ""),
        (KafkaUnavailable("no answer"), "warning", "the log of the brokers"),
        (TransactionalIdAuthorizationFailedError(), "error", "--operation Describe"),
    ],
)
def test_a_transactional_id_that_is_not_described(
    tmp_path: Path, error: Exception, severity: str, remedy: str
) -> None:
    cluster = Cluster(small_settings(tmp_path), Undescribing(error), SystemClock())
    found = rights._check_transactional_id(cluster, "app.dequeue.0")  # noqa: SLF001
    assert (found.severity, remedy in found.remedy) == (severity, True), found
    assert ("kafka-acls" in found.remedy) == (severity == "error")


def test_a_coordinator_that_refuses_the_login_is_no_missing_right(tmp_path: Path) -> None:
    refusing = Undescribing(SaslAuthenticationFailedError("wrong password"))
    cluster = Cluster(small_settings(tmp_path), refusing, SystemClock())
    with pytest.raises(ConfigError, match="wrong password"):
        rights._check_transactional_id(cluster, "app.dequeue.0")  # noqa: SLF001


class Granting(Undescribing):
    """Describes topics on which the principal has these rights."""

    def __init__(self, *allowed: str) -> None:
        super().__init__(IncompatibleBrokerVersion("Kafka 2.8"))
        self.allowed = frozenset(allowed)

    def topics(self, names: Sequence[str]) -> dict[str, Topic]:
        return {name: topic(name=name, rights=self.allowed) for name in names}


def test_a_topic_that_nothing_reads_needs_no_right_to_read_and_others_name_their_readers(
    tmp_path: Path,
) -> None:
    settings = small_settings(tmp_path)
    timer = {"reply_topic": "replies", "receipts_topic": "receipts"}
    serve = settings.serve.model_copy(update={"changes_topic": "changes"})
    updated = {"timer": settings.timer.model_copy(update=timer), "serve": serve}
    settings = settings.model_copy(update=updated)
    reader = Granting("WRITE", "DESCRIBE", "DESCRIBE_CONFIGS")
    found = list(rights.examine(Cluster(settings, reader, SystemClock())))
    of_topic = {f.subject.removeprefix("topic "): f for f in found if f.code == "topic_rights"}
    assert of_topic["changes"].severity == "ok"
    readers = {
        settings.dead_letter_topic: "`dlq list` and `dlq replay` do not work",
        "replies": "`cancel` and `reschedule` get no replies",
        "receipts": "`receipts` does not work",
    }
    for name, lost in readers.items():
        assert of_topic[name].severity == "warning"
        assert of_topic[name].found == f"User:ANONYMOUS lacks READ: {lost}"
    assert of_topic[settings.state_topic].severity == "error"
