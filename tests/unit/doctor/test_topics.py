"""What `duewheel doctor` says of duewheel's topics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.harness.config_file import small_settings
from tests.harness.findings import partition, severities, topic

from duewheel.clock import SystemClock
from duewheel.doctor import targets, topics
from duewheel.doctor.cluster import Cluster
from duewheel.doctor.remedies import KafkaCommands
from duewheel.kafka.topics.description import Topic
from duewheel.kafka.topics.requirements import TopicFinding, TopicState
from duewheel.kafka.topics.topic_checks import TopicChecks

COMMANDS = KafkaCommands("kafka:9092", "User:x")


@pytest.mark.parametrize(
    ("found", "expected", "said", "remedy"),
    [
        (topic(), ["ok"], "3 replicas, min.insync.replicas 2", ""),
        (topic(replicas=1, in_sync_min=1), ["warning"], "1 replica", "kafka-reassign-partitions"),
        (topic(in_sync_min=1), ["warning"], "acknowledged with one copy", "min.insync.replicas=2"),
        (topic(in_sync_min=3), ["warning"], "no writes with one broker", "min.insync.replicas=2"),
        (topic(partitions=(partition(3, leader=-1),)), ["error"], "[0] have no leader", "describe"),
        (topic(partitions=(partition(3, in_sync=2),)), ["warning"], "not in sync", "describe"),
        # Neither value of the setting serves two replicas, so it would be set to and fro.
        (topic(replicas=2, in_sync_min=1), ["warning"], "with one copy", "give each 3 with"),
        (topic(replicas=2), ["warning"], "no writes with one broker", "give each 3 with"),
        (topic(config={}), ["ok"], "3 replicas", ""),
        (
            topic(config={"min.insync.replicas": "2", "unclean.leader.election.enable": "true"}),
            ["error"],
            "acknowledged records",
            "unclean.leader.election.enable=false",
        ),
    ],
)
def test_how_well_a_topic_is_kept(
    found: Topic, expected: list[str], said: str, remedy: str
) -> None:
    (finding,) = topics.check_durability(found, COMMANDS, is_own=True)
    assert [finding.severity] == expected
    assert said in finding.found
    assert remedy in finding.remedy


@pytest.mark.parametrize("is_own", [True, False])
def test_init_is_a_remedy_only_for_topics_that_it_creates(is_own: bool) -> None:
    found = topic(replicas=1, in_sync_min=1)
    (finding,) = topics.check_durability(found, COMMANDS, is_own=is_own)
    assert ("duewheel init" in finding.remedy) == is_own


@pytest.mark.parametrize(
    ("state", "severity"),
    [
        ("found", "ok"),
        ("missing", "error"),
        ("unreadable", "warning"),
        ("withheld", "warning"),
        ("differs", "error"),
        ("costly", "warning"),
    ],
)
def test_the_checks_of_a_start_as_findings(state: Any, severity: str) -> None:
    line = TopicFinding(
        "t", TopicState(state), "retention.ms", ">= 7", "5", "that is much", "retention.ms=7"
    )
    finding = topics.as_finding(line, COMMANDS)
    assert finding.severity == severity
    assert bool(finding.remedy) == (severity != "ok")
    if state in {"differs", "costly"}:
        assert finding.found == "retention.ms is 5, wanted is >= 7: that is much"
        assert finding.remedy.endswith("--entity-name t --add-config retention.ms=7")
    if state == "unreadable":
        assert "--allow-principal User:x --operation DescribeConfigs" in finding.remedy


def test_a_new_matching_topic_is_read_unless_its_settings_are_known_to_be_wrong() -> None:
    wrong = TopicFinding(
        "wrong", TopicState.DIFFERS, "retention.ms", ">= 7", "5", "that is much", "x=7"
    )
    by_topic = {
        "right": [],
        "hidden": [TopicFinding("hidden", TopicState.UNREADABLE)],
        "wrong": [wrong],
    }
    found = {f.subject: f for f in topics.check_matching(by_topic, COMMANDS)}
    assert severities(found.values()) == ["ok", "warning", "warning"]
    not_read = [subject for subject, f in found.items() if "is not read" in f.found]
    assert not_read == ["topic wrong"], "as kafka/topics/discovery.py decides"


def test_a_setting_that_no_transaction_survives() -> None:
    assert list(topics.check_survivable(topic(), COMMANDS)) == []
    short = topic(config={"segment.index.bytes": "12"})
    (finding,) = topics.check_survivable(short, COMMANDS)
    assert (finding.code, finding.severity) == ("transaction_settings", "error")
    assert finding.found.startswith("segment.index.bytes is 12, below 64")
    assert "--entity-name t --add-config segment.index.bytes=" in finding.remedy


def test_a_topic_without_a_leader_lacks_neither_itself_nor_a_right(tmp_path: Path) -> None:
    settings = small_settings(tmp_path)
    timer = settings.timer.model_copy(update={"targets": ("mails",)})
    cluster = Cluster(settings.model_copy(update={"timer": timer}), TopicChecks({}), SystemClock())
    leaderless = 5
    names = [*cluster.own_topics, "mails"]
    cluster.topics = {name: Topic(name, leaderless) for name in names}
    found = [f for part in (topics, targets) for f in part.examine(cluster)]
    problems = [f for f in found if f.severity != "ok"]
    assert {(f.code, f.subject) for f in problems} == {("durability", f"topic {n}") for n in names}
    assert all("LeaderNotAvailableError" in f.found for f in problems)
    assert all("--describe --topic" in f.remedy for f in problems)


def test_a_topic_that_may_not_be_described_is_not_missing_and_hides_no_other(
    tmp_path: Path,
) -> None:
    settings = small_settings(tmp_path)
    cluster = Cluster(settings, TopicChecks({}), SystemClock())
    (timers,), others = settings.timer.topics, list(settings.service_topics.values())
    cluster.topics = {name: topic(name=name) for name in others} | {timers: Topic(timers, 29)}
    found = list(topics.examine(cluster))
    (hidden,) = [f for f in found if f.subject == f"topic {timers}"]
    assert (hidden.code, hidden.severity) == ("topic_settings", "warning")
    assert "no right to read its settings" in hidden.found
    kept = [f.subject for f in found if f.code == "durability"]
    assert kept == [f"topic {name}" for name in others]
