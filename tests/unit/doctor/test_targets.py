"""What `duewheel doctor` says of the targets that the configuration names."""

from __future__ import annotations

from pathlib import Path

from tests.harness.config_file import small_settings
from tests.harness.findings import severities, topic

from duewheel.clock import SystemClock
from duewheel.config.keys_and_defaults import TimerSection
from duewheel.doctor import targets
from duewheel.doctor.cluster import Cluster
from duewheel.doctor.remedies import KafkaCommands
from duewheel.kafka.topics.topic_checks import TopicChecks

COMMANDS = KafkaCommands("kafka:9092", "User:x")


def test_a_target_takes_what_a_timer_topic_takes() -> None:
    small, large = (topic(config={"max.message.bytes": size}) for size in ("1000", "5000"))
    assert severities(targets.check_size([small], large, COMMANDS)) == ["ok"]
    (finding,) = targets.check_size([small, large], small, COMMANDS)
    assert (finding.severity, "max.message.bytes=5000" in finding.remedy) == ("warning", True)
    assert list(targets.check_size([topic()], small, COMMANDS)) == []


def test_a_target_needs_no_room_for_topics_that_are_not_open_for_it(tmp_path: Path) -> None:
    settings = small_settings(tmp_path)
    named = {"topics": "a,b", "topics_pattern": "c", "targets": ["y*"]}
    own = {"mapping": {"b": "x"}, "topic": {"b": {"targets": []}}}
    timer = TimerSection.model_validate(settings.timer.model_dump() | named | own)
    cluster = Cluster(settings.model_copy(update={"timer": timer}), TopicChecks({}), SystemClock())
    cluster.timer_topics = ["a", "b", "c"]
    sizes = {"a": "5000", "b": "1000", "c": "9000", "x": "1000"}
    cluster.topics = {
        name: topic(name=name, config={"max.message.bytes": size}) for name, size in sizes.items()
    }
    (found,) = [f for f in targets.examine(cluster) if f.code == "message_size"]
    assert (found.subject, found.severity) == ("topic x", "ok"), found


def test_timer_topics_that_are_open_for_no_target() -> None:
    named = {"topics": ["a", "b"], "topics_pattern": "team-.*", "topic": {"a": {"target": "mails"}}}
    timer = TimerSection.model_validate(named)
    found = list(targets.check_open_targets(timer))
    assert [(f.subject, f.severity) for f in found] == [
        ("topic a", "ok"),
        ("topic b", "warning"),
        ("topics of the pattern", "warning"),
    ]
    assert found[0].found == "open for mails"
    assert "duewheel reconfigure" in found[1].remedy
