"""Topic administration on a real broker."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import timedelta

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from tests.harness import topics
from tests.harness.launcher import wait_until
from tests.harness.shared_broker import SharedBroker

from duewheel.config.keys_and_defaults import KafkaSection, TimerSection
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, KafkaUnavailable, Unacknowledged
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.kafka.topics.description import Topic
from duewheel.kafka.topics.requirements import TopicFinding, TopicState
from duewheel.kafka.topics.topic_reader import TopicReader

pytestmark = pytest.mark.kafka

Names = Callable[[str], str]


@pytest.fixture
def settings(broker: SharedBroker, unique_name: Names) -> Settings:
    return Settings(
        kafka=KafkaSection(bootstrap_servers=(broker.bootstrap_servers,)),
        timer=TimerSection(
            topics=(unique_name("a"), unique_name("b")),
            dead_letter_topic=unique_name("dead-letter"),
            state_topic=unique_name("state"),
            reply_topic=unique_name("replies"),
        ),
    )


@pytest.fixture
def admin(settings: Settings) -> Iterator[KafkaAdmin]:
    with KafkaAdmin(settings.kafka.client_options("admin")) as admin:
        yield admin


def names(settings: Settings) -> list[str]:
    return [*settings.timer.topics, *settings.service_topics.values()]


def configs(broker: SharedBroker, topic: str) -> dict[str, str]:
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)) as client:
        return topics.configs(client, topic)


def alter(broker: SharedBroker, topic: str, **changed: str) -> None:
    wanted = {name.replace("_", "."): value for name, value in changed.items()}
    topics.alter(broker.bootstrap_servers, topic, wanted)


def test_init_creates_what_is_missing_and_then_finds_it(
    broker: SharedBroker, settings: Settings, admin: KafkaAdmin
) -> None:
    created = admin.init_topics(settings, partitions=3)
    assert created == [TopicFinding(name, TopicState.CREATED) for name in names(settings)]
    assert admin.init_topics(settings) == [
        TopicFinding(name, TopicState.RIGHT) for name in names(settings)
    ]

    assert [admin.partition_counts(names(settings))[name] for name in names(settings)] == [
        3,
        3,
        4,  # the broker's default
        1,
        4,
    ]
    timer = configs(broker, settings.timer.topics[0])
    assert timer["message.timestamp.type"] == "LogAppendTime"
    assert int(timer["retention.ms"]) == timedelta(days=8, hours=1) / timedelta(milliseconds=1)
    dead = configs(broker, settings.dead_letter_topic)
    assert int(dead["max.message.bytes"]) == int(timer["max.message.bytes"]) + 4_096
    assert dead["retention.ms"] == "-1"
    assert settings.timer.reply_topic is not None
    reply = configs(broker, settings.timer.reply_topic)
    assert (reply["cleanup.policy"], reply["retention.ms"]) == ("delete", "86400000")
    assert reply["max.message.bytes"] == dead["max.message.bytes"]
    state = configs(broker, settings.state_topic)
    assert (state["cleanup.policy"], state["segment.ms"]) == ("compact", "600000")


def test_differences_are_named_and_nothing_is_changed(
    broker: SharedBroker, settings: Settings, admin: KafkaAdmin
) -> None:
    admin.init_topics(settings)
    first, second = settings.timer.topics
    alter(broker, first, retention_ms="3600000", max_message_bytes="3000000")
    alter(broker, second, message_timestamp_type="CreateTime")
    alter(broker, settings.state_topic, cleanup_policy="compact,delete")
    assert settings.timer.reply_topic is not None
    alter(broker, settings.timer.reply_topic, retention_ms="3600000", max_message_bytes="4000000")

    findings = admin.init_topics(settings)
    assert findings == admin.init_topics(settings)
    assert [(f.topic, f.setting, f.actual) for f in findings if f.state is TopicState.DIFFERS] == [
        (first, "retention.ms", "3600000"),
        (second, "message.timestamp.type", "CreateTime"),
        (settings.dead_letter_topic, "max.message.bytes", "1052684"),
        (settings.state_topic, "cleanup.policy", "compact,delete"),
        (settings.timer.reply_topic, "retention.ms", "3600000"),
    ]
    kept = [f.wanted for f in findings if f.setting == "retention.ms"]
    assert kept == [">= 694800000", ">= 86400000"]
    with pytest.raises(ConfigError, match="is 3600000, wanted is >= 86400000"):
        admin.require_topics(settings)

    # Timestamps of the producers will do, where the broker refuses those that are far off.
    hour = "3600000"
    alter(broker, second, message_timestamp_before_max_ms=hour, message_timestamp_after_max_ms=hour)
    assert TopicFinding(second, TopicState.RIGHT) in admin.init_topics(settings)


def test_offsets_ids_and_missing_topics(
    broker: SharedBroker, settings: Settings, admin: KafkaAdmin
) -> None:
    admin.init_topics(settings, partitions=2)
    topic = settings.timer.topics[0]
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    for _ in range(3):
        producer.send(topic, b"x", partition=1)
    producer.flush(timeout=30)
    producer.close()

    asked = [topic, "no.such.topic"]
    assert admin.partition_counts(asked) == {topic: 2}
    assert admin.starts(asked) == {(topic, 0): 0, (topic, 1): 0}
    assert admin.ends(asked, committed=False) == {(topic, 0): 0, (topic, 1): 3}
    ids = admin.topic_ids([*settings.timer.topics, "no.such.topic"])
    assert set(ids) == set(settings.timer.topics)
    assert len(set(ids.values())) == 2
    assert admin.ends([], committed=False) == {}


def test_a_topic_that_kafka_refuses_is_the_configurations_fault(
    settings: Settings, admin: KafkaAdmin
) -> None:
    with pytest.raises(ConfigError, match="replication") as refused:
        admin.init_topics(settings, replication_factor=3)
    assert all(repr(topic) in str(refused.value) for topic in settings.timer.topics)


def test_init_takes_the_partitions_that_another_one_adds_meanwhile(
    settings: Settings, admin: KafkaAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.create_topic(settings.state_topic, 1)
    looks: list[dict[str, Topic]] = []

    def look(names: Sequence[str]) -> dict[str, Topic]:
        looks.append(TopicReader.existing(admin, names))
        if len(looks) == 1:
            add = {settings.state_topic: 2}
            admin.call("another init", lambda client: client.create_partitions(add))
        return looks[-1]

    monkeypatch.setattr(admin, "existing", look)
    admin.have_partitions(settings.state_topic, 2)
    assert len(looks[0][settings.state_topic].partitions) == 1


def test_what_a_created_topic_lacks_is_named(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = settings.state_topic
    leaderless = {"name": name, "partitions": [{"partition_index": 0, "leader_id": -1}]}
    monkeypatch.setattr(KafkaAdminClient, "describe_topics", lambda *_, **__: [leaderless])
    with (
        KafkaAdmin(settings.kafka.client_options("admin"), deadline_s=2.0) as admin,
        pytest.raises(Unacknowledged, match="p0=no leader"),
    ):
        admin.create_topic(name, 1)


def test_a_broker_that_never_answers(caplog: pytest.LogCaptureFixture) -> None:
    # A captured record would hold its exception, and that the socket, beyond this test.
    caplog.set_level(logging.CRITICAL, logger="kafka")
    before = set(threading.enumerate())
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        secret = {"bootstrap_servers": address, "ssl_password": "hunter2"}
        with (
            KafkaAdmin(secret, deadline_s=1.0) as admin,
            pytest.raises(KafkaUnavailable, match=address) as caught,
        ):
            admin.ends(["t"], committed=False)
    assert caught.value.exit_code == 3
    assert "hunter2" not in str(caught.value)
    wait_until(
        lambda: not set(threading.enumerate()) - before,
        "a failed connection left its thread behind",
    )
