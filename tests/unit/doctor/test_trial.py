"""What `duewheel doctor` says of transactions: of what a reader has seen, and of failures."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import MagicMock

import pytest
from kafka.errors import (
    GroupAuthorizationFailedError,
    IncompatibleBrokerVersion,
    KafkaTimeoutError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
)
from tests.harness.config_file import small_settings

from duewheel.clock import SystemClock
from duewheel.doctor import trial
from duewheel.doctor.cluster import Cluster
from duewheel.doctor.scratch import ScratchTopic
from duewheel.errors import ConfigError
from duewheel.kafka.topics.description import Topic
from duewheel.kafka.topics.topic_checks import TopicChecks


@pytest.mark.parametrize(
    ("seen", "errors"),
    [
        ({trial.COMMITTED, trial.OFFSETS}, []),
        ({trial.COMMITTED}, ["committed_seen"]),
        ({trial.COMMITTED, trial.OFFSETS, trial.ZOMBIE}, ["fencing"]),
        ({trial.COMMITTED, trial.OFFSETS, trial.ABORTED}, ["read_committed"]),
    ],
)
def test_what_a_reader_of_committed_records_has_seen(seen: set[bytes], errors: list[str]) -> None:
    found = trial.check_seen("t", seen, {trial.COMMITTED, trial.OFFSETS})
    assert [f.code for f in found if f.severity == "error"] == errors


PREFIXED = "--resource-pattern-type prefixed"


def cluster_of(data_dir: Path) -> Cluster:
    settings = small_settings(data_dir)
    return Cluster(settings, TopicChecks(settings.kafka.client_options("admin")), SystemClock())


def through_clients(error: Exception) -> NoReturn:
    """As a call fails."""
    with TopicChecks({}).clients.explained("open"):
        raise error


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (
            TransactionalIdAuthorizationFailedError(),
            "--operation Write --operation Describe --transactional-id duewheel. " + PREFIXED,
        ),
        (TopicAuthorizationFailedError(), "--operation Write --topic duewheel.doctor. " + PREFIXED),
        (KafkaTimeoutError(), "the log of the brokers"),
        (IncompatibleBrokerVersion(), "needs transactions as Apache Kafka 2.8"),
    ],
)
def test_a_trial_that_fails_has_the_remedy_of_its_reason(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    remedy: str,
) -> None:
    monkeypatch.setattr(trial, "open_producer", lambda *_: through_clients(error))
    cluster = cluster_of(tmp_path)
    (found,) = trial.examine(cluster, ScratchTopic(cluster))
    assert (found.code, found.severity) == ("transactions", "error")
    assert remedy in found.remedy
    assert ("kafka-acls" in found.remedy) == remedy.endswith(PREFIXED)


@pytest.mark.parametrize(
    ("error", "severity", "remedy"),
    [
        (GroupAuthorizationFailedError(), "warning", "--operation Delete --group duewheel.doctor."),
        (KafkaTimeoutError(), "warning", "the log of the brokers"),
        (IncompatibleBrokerVersion(), "ok", ""),  # as apis.py has it
    ],
)
def test_group_offsets_that_fail_have_the_remedy_of_their_reason(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    severity: str,
    remedy: str,
) -> None:
    producer: Any = MagicMock()
    producer.send_offsets_to_transaction.side_effect = error
    monkeypatch.setattr(trial, "open_producer", lambda *_: producer)
    cluster = cluster_of(tmp_path)
    tried = trial._Trial(cluster, ScratchTopic(cluster))  # noqa: SLF001
    found = tried._try_offsets()  # noqa: SLF001
    assert (found.severity, remedy in found.remedy) == (severity, True)
    assert ("kafka-acls" in found.remedy) == ("--group" in remedy)
    assert tried._committed == {trial.COMMITTED}, "no reader must see the other record"  # noqa: SLF001


def test_a_scratch_topic_that_may_not_be_seen_is_not_the_operators_to_create(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, forbidden = cluster_of(tmp_path), Topic("duewheel.doctor.0", 29)
    reader = cluster.reader
    monkeypatch.setattr(reader, "call", lambda *_: {forbidden.name: forbidden})
    with pytest.raises(ConfigError, match="the right Describe is needed") as refused:
        reader.partition_counts([forbidden.name])
    scratch = ScratchTopic(cluster)
    found = scratch.not_created(refused.value)
    assert "--operation Create" in found.remedy and found.remedy.endswith(PREFIXED)
    other = scratch.not_created(ConfigError("PolicyViolationError"))
    assert "kafka-topics.sh" in other.remedy and "--create --topic" in other.remedy
