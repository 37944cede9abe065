"""Kafka settings that would lose or misjudge messages are refused at start, on a real broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ResourcePattern,
    ResourceType,
)
from structlog.testing import capture_logs
from tests.harness.launcher import run, wait_until
from tests.harness.shard_topics import DEAD, STATE, TIMER, ShardTopics, made
from tests.harness.shared_broker import WITH_ACLS, SharedBroker

from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.timer_topics_file import TopicSet
from duewheel.config.settings import load
from duewheel.dev.broker import DevBroker
from duewheel.doctor.remedies import KafkaCommands
from duewheel.doctor.topics import check_matching
from duewheel.errors import ConfigError
from duewheel.java.find import Java
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.kafka.topics.requirements import TopicPlan, state_plan
from duewheel.runtime.topic_watch import TopicWatch
from duewheel.testing import ManualClock
from duewheel.wheel.storage.data_directory import DataDirectory

pytestmark = pytest.mark.kafka

HOUR_MS = "3600000"
KEPT_MS = 694_800_000  # 24 h + 1 h + 7 d


@pytest.fixture
def topics(
    broker: SharedBroker, tmp_path: Path, unique_name: Callable[[str], str]
) -> Iterator[ShardTopics]:
    topics = made(broker, tmp_path, unique_name("app")[-60:].strip("-"))
    yield topics
    topics.client.close()


@pytest.fixture
def admin(topics: ShardTopics) -> Iterator[KafkaAdmin]:
    with KafkaAdmin(topics.settings.kafka.client_options("admin")) as admin:
        yield admin


def test_what_init_made_is_accepted(topics: ShardTopics, admin: KafkaAdmin) -> None:
    with capture_logs() as logs:
        admin.require_timer_topics(topics.settings)
        admin.require_topics(topics.settings)
    assert logs == []


@pytest.mark.parametrize(
    ("role", "changed", "said"),
    [
        (
            TIMER,
            {"message.timestamp.type": "CreateTime"},
            ["message.timestamp.type is CreateTime", "LogAppendTime", "are 3600000 (margin)"],
        ),
        (
            TIMER,
            {"message.timestamp.type": "CreateTime", "message.timestamp.after.max.ms": HOUR_MS},
            ["message.timestamp.before.max.ms"],
        ),
        (
            TIMER,
            {"retention.ms": str(KEPT_MS - 1)},
            [
                f"retention.ms is {KEPT_MS - 1}",
                f">= {KEPT_MS}",
                "roll_window 24h + margin 1h + longest_outage 168h",
                f"--add-config retention.ms={KEPT_MS}",
            ],
        ),
        (TIMER, {"retention.bytes": "1000000000"}, ["retention.bytes is 1000000000", "-1"]),
        (TIMER, {"cleanup.policy": "compact"}, ["cleanup.policy is compact"]),
        (TIMER, {"cleanup.policy": "compact,delete"}, ["cleanup.policy is compact,delete"]),
        (DEAD, {"max.message.bytes": "1048588"}, ["is 1048588", ">= 1052684", "1048588 and 4096"]),
        (DEAD, {"cleanup.policy": "compact"}, ["compaction drops dead letters"]),
        (DEAD, {"retention.ms": HOUR_MS}, ["retention.ms is 3600000", "longest_outage"]),
        (DEAD, {"retention.bytes": "1000"}, ["retention.bytes is 1000"]),
        (STATE, {"cleanup.policy": "compact,delete"}, ["deletion drops the progress"]),
        (STATE, {"cleanup.policy": "delete"}, ["cleanup.policy is delete"]),
        (STATE, {"message.timestamp.type": "CreateTime"}, ["the broker's time"]),
        (STATE, {"max.message.bytes": "100000"}, ["the progress of a shard is one record"]),
    ],
)
def test_each_refusal_names_numbers_and_remedy(
    topics: ShardTopics, admin: KafkaAdmin, role: str, changed: dict[str, str], said: list[str]
) -> None:
    topics.alter(role, changed)
    with pytest.raises(ConfigError) as caught:
        admin.require_topics(topics.settings)
    text = str(caught.value)
    for part in [topics.name(role), "kafka-configs.sh", *said]:
        assert part in text
    assert caught.value.exit_code == 2
    if role == TIMER:
        with pytest.raises(ConfigError):
            admin.require_timer_topics(topics.settings)
    else:
        admin.require_timer_topics(topics.settings)


def test_what_only_costs_time_is_a_warning_with_figures_and_remedy(
    topics: ShardTopics, admin: KafkaAdmin
) -> None:
    """The segments of Kafka's defaults: some services let nobody choose others."""
    defaults = {
        "segment.bytes": "1073741824",
        "segment.ms": "604800000",
        "min.cleanable.dirty.ratio": "0.6",
    }
    topics.alter(STATE, defaults)
    with capture_logs() as logs:
        admin.require_topics(topics.settings)
    assert [entry["event"] for entry in logs] == ["a topic setting costs time"] * 3
    bounds = ["<= 16777216", "<= 600000", "<= 0.5"]
    for entry, (setting, value), bound in zip(logs, defaults.items(), bounds, strict=True):
        assert f"{setting} is {value}, wanted is {bound}: " in entry["reason"]
        assert "1 GiB takes" in entry["reason"]
        assert f"--entity-name {topics.name(STATE)} --add-config {setting}=" in entry["remedy"]
    found = {f.setting: f.state.value for f in admin.topic_findings(topics.settings) if f.setting}
    assert found == dict.fromkeys(defaults, "costly")


def test_init_does_without_what_only_costs_time_where_kafka_refuses_it(
    topics: ShardTopics, admin: KafkaAdmin
) -> None:
    def plan(setting: str, value: str) -> TopicPlan:
        """Of the state topic, with a value that Kafka refuses."""
        right = state_plan(topics.settings)
        wrong = [replace(r, value=value) if r.setting == setting else r for r in right.requirements]
        return replace(right, requirements=tuple(wrong))

    admin.delete_topics([topics.name(STATE)])
    wait_until_gone(admin, topics.name(STATE))
    found = admin.ensure([plan("segment.bytes", "1")])
    assert [(f.state.value, f.setting) for f in found] == [
        ("created", ""),
        ("costly", "segment.bytes"),
        ("costly", "segment.ms"),
    ]
    admin.require_topics(topics.settings)
    assert admin.partition_counts([topics.name(STATE)]) == {topics.name(STATE): 1}

    # What must be is not done without.
    admin.delete_topics([topics.name(STATE)])
    wait_until_gone(admin, topics.name(STATE))
    with pytest.raises(ConfigError, match=r"InvalidConfigurationError.*max\.message\.bytes"):
        admin.ensure([plan("max.message.bytes", "-1")])


def wait_until_gone(admin: KafkaAdmin, topic: str) -> None:
    """A topic that is being deleted is still told of for a moment."""
    wait_until(lambda: not admin.partition_counts([topic]), f"{topic} is not deleted")


def test_bounded_timestamps_and_unlimited_retention_will_do(
    topics: ShardTopics, admin: KafkaAdmin
) -> None:
    bounds = ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms")
    changed = dict.fromkeys(bounds, HOUR_MS)
    topics.alter(TIMER, {"message.timestamp.type": "CreateTime", "retention.ms": "-1", **changed})
    admin.require_topics(topics.settings)


def test_the_longest_outage_is_a_setting(topics: ShardTopics, admin: KafkaAdmin) -> None:
    longer = load(topics.config, {"timer": {"longest_outage": "30d"}})
    with pytest.raises(ConfigError, match="longest_outage 720h"):
        admin.require_timer_topics(longer)
    admin.require_timer_topics(load(topics.config, {"timer": {"longest_outage": "1d"}}))


def test_missing_topics(topics: ShardTopics, admin: KafkaAdmin) -> None:
    dead = topics.name(DEAD)
    admin.delete_topics([dead])
    # A deletion is acknowledged before the metadata follow.
    wait_until(lambda: not admin.partition_counts([dead]), "the end of the topic")
    with pytest.raises(ConfigError, match=r"no topic .*dead-letter.*duewheel init"):
        admin.require_topics(topics.settings)
    admin.require_topics(topics.settings, served=True)  # its dead letters wait, its timers do not
    with_changes = load(topics.config, {"serve": {"changes_topic": f"{dead}.changes"}})
    with pytest.raises(ConfigError, match=r"no topic .*\.changes"):
        admin.require_topics(with_changes)
    admin.require_topics(with_changes, served=True)  # only changes by the API are refused


@pytest.mark.parametrize("process", ["ingest", "dequeue"])
def test_both_processes_refuse_to_start(topics: ShardTopics, process: str) -> None:
    topics.alter(TIMER, {"retention.ms": HOUR_MS})
    done = run(topics.config, process)
    assert done.returncode == 2, done.stderr
    assert f"retention.ms is {HOUR_MS}, wanted is >= {KEPT_MS}" in done.stderr


def test_without_the_right_to_look_it_is_a_warning_and_to_alter_an_error(
    java: Java, kafka_jars: list[Path], tmp_path: Path
) -> None:
    with DevBroker(java=java, properties=WITH_ACLS) as broker:
        topics = made(broker, tmp_path, "app")
        topics.alter(TIMER, {"retention.ms": HOUR_MS})
        pattern = ResourcePattern(ResourceType.TOPIC, topics.name(TIMER))
        topics.client.create_acls(
            [
                ACL("User:ANONYMOUS", "*", operation, permission, pattern)
                for operation, permission in (
                    (ACLOperation.ALL, ACLPermissionType.ALLOW),
                    (ACLOperation.DESCRIBE_CONFIGS, ACLPermissionType.DENY),
                    (ACLOperation.ALTER, ACLPermissionType.DENY),
                )
            ]
        )
        with KafkaAdmin(topics.settings.kafka.client_options("admin")) as admin:
            with capture_logs() as logs:
                admin.require_topics(topics.settings)
            assert [entry["topics"] for entry in logs] == [[topics.name(TIMER)]]
            assert "DescribeConfigs" in logs[0]["event"]
            with pytest.raises(ConfigError, match="DescribeConfigs is needed"):
                admin.init_topics(topics.settings)
            with pytest.raises(ConfigError, match=r"add partitions.*TopicAuthorizationFailed"):
                admin.have_partitions(topics.name(TIMER), 9)
            with capture_logs() as logs:
                admin.require_topics(topics.settings, served=True)
            assert [entry["topics"] for entry in logs] == [[topics.name(TIMER)]]
            require_found_unchecked(topics, admin)
        topics.client.close()


def require_found_unchecked(topics: ShardTopics, admin: KafkaAdmin) -> None:
    """A topic that only the pattern names: `status`, the log and doctor say that it is read."""
    name, named = topics.name(TIMER), topics.settings
    changes = {"topics": (), "topics_pattern": name.replace(".", "[.]")}
    timer = named.timer.model_copy(update=changes)
    settings = named.model_copy(update={"timer": timer})
    directory = DataDirectory.start(settings.storage.data_dir, settings.wheel, Role.INGEST)
    with ExitStack() as stack, capture_logs() as logs:
        stack.callback(directory.stop)
        watch = TopicWatch(settings, directory.state, ManualClock(), dict)
        watch.find(admin)
    (logged,) = [entry for entry in logs if entry["log_level"] == "error"]
    assert logged["event"] == "a timer topic is read although its settings are wrong or unknown"
    known = TopicSet.read(settings.storage.data_dir)
    assert known is not None
    assert known.topics == (name,)
    assert "the right DescribeConfigs is missing" in known.faulty[name] == logged["reason"]
    findings = admin.timer_topic_findings(settings, [name])
    (found,) = check_matching(findings, KafkaCommands("a:1", "User:x"))
    assert found.severity == "warning"
    assert "they are not checked" in found.found and "DescribeConfigs" in found.remedy
