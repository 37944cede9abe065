"""The topics that match a pattern and are read, on a real Kafka; and the watch over them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource
from structlog.testing import capture_logs
from tests.harness.shared_broker import SharedBroker

from duewheel.checkpoints import partition_limit
from duewheel.checkpoints.commit_and_close_pages import Close
from duewheel.checkpoints.config_epochs import Epochs
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.progress import PartitionProgress, Progress
from duewheel.checkpoints.progress_mirror import Mirror
from duewheel.checkpoints.state_file import State
from duewheel.checkpoints.taken_topics import TakenTopics
from duewheel.checkpoints.timer_topics_file import TopicSet
from duewheel.clock import SystemClock
from duewheel.config.keys_and_defaults import (
    AppSection,
    IngestSection,
    KafkaSection,
    StorageSection,
    TimerSection,
)
from duewheel.config.settings import Settings
from duewheel.doctor import shard
from duewheel.doctor.cluster import Cluster as DoctorCluster
from duewheel.errors import ConfigError, RecoveryPending, RecoveryRefused
from duewheel.kafka.log.list_offsets_times import EARLIEST
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.kafka.topics.description import Topic
from duewheel.kafka.topics.discovery import discover, first_starts
from duewheel.runtime.topic_watch import TopicWatch
from duewheel.testing import ManualClock
from duewheel.wheel.storage.data_directory import DataDirectory

pytestmark = pytest.mark.kafka

RIGHT = {"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"}


@dataclass
class PatternTopics:
    """One listed timer topic, and a pattern that matches all that begins with the same name."""

    settings: Settings
    admin: KafkaAdmin
    client: KafkaAdminClient

    @property
    def listed(self) -> str:
        return self.settings.timer.topics[0]

    def name(self, end: str) -> str:
        return f"{self.settings.app.id}.{end}"

    def make(self, end: str, **changed: str) -> str:
        configs = RIGHT | {key.replace("_", "."): value for key, value in changed.items()}
        topic = {"num_partitions": 1, "replication_factor": 1, "configs": configs}
        self.client.create_topics({self.name(end): topic})
        self.client.wait_for_topics([self.name(end)], 30_000)
        return self.name(end)

    def read(self, known: TakenTopics | None = None) -> tuple[str, ...]:
        return discover(self.settings, self.admin, known).topics


@pytest.fixture
def cluster(
    broker: SharedBroker, unique_name: Callable[[str], str], tmp_path: Path
) -> Iterator[PatternTopics]:
    name = unique_name("app")[-60:].strip("-")
    settings = Settings(
        app=AppSection(id=name),
        kafka=KafkaSection(bootstrap_servers=(broker.bootstrap_servers,)),
        timer=TimerSection(
            topics=(f"{name}.listed",), topics_pattern=f"{name}[.].*", reply_topic=f"{name}.replies"
        ),
        storage=StorageSection(data_dir=tmp_path / "data"),
        ingest=IngestSection(),
    )
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    with KafkaAdmin(settings.kafka.client_options("admin")) as admin:
        admin.init_topics(settings, partitions=1)
        yield PatternTopics(settings, admin, client)
    client.close()


def test_what_the_shard_has_no_room_for_is_left_out(cluster: PatternTopics) -> None:
    first, second = cluster.make("a-first"), cluster.make("b-second")
    needed = [partition_limit.needed_bytes(topic, 1) for topic in (cluster.listed, first, second)]
    room_bytes = sum(needed) - 1
    found = discover(cluster.settings, cluster.admin, room_bytes=room_bytes)
    assert found.topics == tuple(sorted([cluster.listed, first]))
    assert found.left_out.keys() == {second}
    assert f"take up to {needed[2]} bytes" in found.left_out[second]
    # What timers were taken from has its room; doctor says the same.
    taken = TakenTopics({second: 1})
    found = discover(cluster.settings, cluster.admin, taken, room_bytes)
    assert found.left_out.keys() == {first}
    told = list(shard.check_room(*examined(cluster), room_bytes))
    assert [(f.severity, f.subject) for f in told] == [("warning", f"topic {second}")]

    # So has one that was deleted: a client that makes topics and deletes them has no more of it.
    deleted = TakenTopics({f"{second}.deleted": 1})
    found = discover(cluster.settings, cluster.admin, deleted, room_bytes)
    assert found.topics == (cluster.listed,)
    assert found.left_out.keys() == {first, second, f"{second}.deleted"}

    found = discover(cluster.settings, cluster.admin, room_bytes=needed[0] - 1)
    assert "1 partitions of it" in found.left_out[cluster.listed]


def examined(cluster: PatternTopics) -> tuple[DoctorCluster, list[Topic]]:
    doctor = DoctorCluster(cluster.settings, cluster.admin, SystemClock())
    return doctor, list(cluster.admin.topics(doctor.timer_topics).values())


def test_what_is_not_right_is_left_out_and_stops_nobody(cluster: PatternTopics) -> None:
    # The dead-letter, the state and the reply topic match, too.
    assert cluster.read() == (cluster.listed,)
    right = cluster.make("right")
    wrong = cluster.make("wrong", cleanup_policy="compact")
    large = cluster.make("large", max_message_bytes="5000000")

    found = discover(cluster.settings, cluster.admin)
    assert found.topics == tuple(sorted([cluster.listed, right]))
    assert found.left_out.keys() == {wrong, large}
    assert found.faulty == {}
    assert found.left_out[wrong].startswith("cleanup.policy is compact, wanted is delete")
    assert f"--entity-name {wrong} --add-config cleanup.policy=delete" in found.left_out[wrong]
    for topic in (cluster.name("dead-letter"), cluster.name("replies")):
        assert f"{topic}: max.message.bytes is" in found.left_out[large]
    assert "max.message.bytes=5004096" in found.left_out[large]
    cluster.admin.require_topics(cluster.settings)
    told = cluster.admin.init_topics(cluster.settings, partitions=1)
    states = {(each.topic, each.state.value) for each in told}
    assert states >= {(right, "found"), (wrong, "unread"), (cluster.name("replies"), "unread")}
    assert "differs" not in {each.state.value for each in told}, "the shard may begin"

    others = {"dead_letter_topic": f"{cluster.settings.app.id}-roomy", "reply_topic": None}
    timer = cluster.settings.timer.model_copy(update=others)
    roomy = cluster.settings.model_copy(update={"timer": timer})
    cluster.admin.init_topics(roomy, partitions=1)  # what is created has room for all
    assert large in discover(roomy, cluster.admin).topics

    before = TakenTopics({wrong: 1, cluster.name("gone"): 1})
    found = discover(cluster.settings, cluster.admin, before)
    assert found.topics == tuple(sorted([cluster.listed, right, wrong]))
    assert found.faulty.keys() == {wrong}
    assert found.left_out.keys() == {large, cluster.name("gone")}
    assert "it was deleted" in found.left_out[cluster.name("gone")]

    anew = TakenTopics({right: 1}, {right: "another"})
    found = discover(cluster.settings, cluster.admin, anew)
    assert found.topics == (cluster.listed,)
    assert "recreated" in found.left_out[right]

    follows = TakenTopics({right: 1}, only=True)
    assert cluster.read(follows) == tuple(sorted([cluster.listed, right]))
    assert cluster.read(TakenTopics(only=True)) == (cluster.listed,)

    resource = ConfigResource("TOPIC", wrong, {"cleanup.policy": "delete"})
    cluster.client.alter_configs([resource])
    while wrong not in cluster.read():
        pass


def test_without_any_topic_there_is_nothing_to_begin_with(cluster: PatternTopics) -> None:
    timer = TimerSection(topics_pattern=cluster.name("none.*"))
    settings = cluster.settings.model_copy(update={"timer": timer})
    with pytest.raises(ConfigError, match=r"no timer topic can be read, and none matches"):
        first_starts(settings, cluster.admin)


def test_the_owner_of_a_listed_topic_stops_nobody(cluster: PatternTopics) -> None:
    """Once timers were taken from it, at a start, too: its topic is the owner's to change."""
    lent, absent = cluster.make("lent"), cluster.name("absent")
    timer = TimerSection(topics=(cluster.listed, lent, absent))
    settings = cluster.settings.model_copy(update={"timer": timer})
    assert discover(settings, cluster.admin) == TopicSet(
        tuple(sorted([cluster.listed, lent])),
        {absent: "it does not exist: `duewheel init` creates it"},
    )
    with pytest.raises(ConfigError, match=f"no topic {absent}"):
        cluster.admin.require_topics(settings)
    cluster.admin.require_topics(settings, served=True)

    taken = TakenTopics(
        {cluster.listed: 1, lent: 1}, cluster.admin.topic_ids([cluster.listed, lent])
    )
    resource = ConfigResource("TOPIC", lent, {"retention.ms": "3600000"})
    cluster.client.alter_configs([resource])
    until(lambda: lent in discover(settings, cluster.admin, taken).faulty)
    assert lent in discover(settings, cluster.admin, taken).topics
    cluster.admin.require_topics(settings, served=True)

    cluster.client.delete_topics([lent])
    until(lambda: not cluster.admin.topic_ids([lent]))
    found = discover(settings, cluster.admin, taken)
    assert found.topics == (cluster.listed,)
    assert found.left_out[lent].startswith("it was deleted: ")
    cluster.make("lent")
    found = discover(settings, cluster.admin, taken)
    assert found.topics == (cluster.listed,)
    assert found.left_out[lent].startswith("it was deleted and recreated: ")


def until(reached: Callable[[], bool]) -> None:
    while not reached():
        time.sleep(0.05)


@pytest.fixture
def state(cluster: PatternTopics) -> Iterator[State]:
    settings = cluster.settings
    directory = DataDirectory.start(settings.storage.data_dir, settings.wheel, Role.INGEST)
    yield directory.state
    directory.stop()


def test_the_watch_says_when_another_query_is_to_begin(
    cluster: PatternTopics, state: State
) -> None:
    clock, marks = ManualClock(), {(cluster.listed, 0): 0}
    watch = TopicWatch(cluster.settings, state, clock, lambda: marks)
    assert watch.find(cluster.admin).keys() == {cluster.listed}
    assert watch.starts(cluster.admin) == {(cluster.listed, 0): 0}
    clock.sleep(10)
    assert not watch.poll()

    wrong, right = cluster.make("wrong", retention_bytes="1000"), cluster.make("right")
    assert not watch.poll(), "it is not time yet"
    with capture_logs() as logs:
        clock.sleep(10)
        assert watch.poll()
        assert watch.has_changed()
    assert [each["topic"] for each in logs if each["log_level"] == "error"] == [wrong]
    with capture_logs() as logs:
        assert watch.find(cluster.admin).keys() == {cluster.listed, right}
        clock.sleep(50)
        assert not watch.poll()
        assert not [each for each in logs if each["log_level"] == "error"], "said once a minute"
        clock.sleep(10)
        assert not watch.poll()
    assert [each["topic"] for each in logs if each["log_level"] == "error"] == [wrong]
    assert watch.starts(cluster.admin) == {(cluster.listed, 0): 0, (right, 0): EARLIEST}
    known = TopicSet.read(cluster.settings.storage.data_dir)
    assert known is not None
    assert known == watch.topic_set
    assert known.left_out.keys() == {wrong}
    assert not watch.has_changed()

    # Of a topic that is no more, messages would have to be read again.
    lost = (cluster.name("gone"), 0)
    state.write_close(Close(1, {}, 2, {lost: 7}))
    with pytest.raises(RecoveryRefused, match=f"--accept-loss {lost[0]}-0"):
        watch.starts(cluster.admin)
    marks[lost] = 7
    assert lost not in watch.starts(cluster.admin)


def test_ingest_waits_for_the_first_topic(cluster: PatternTopics, state: State) -> None:
    timer = TimerSection(topics_pattern=cluster.name("first"))
    settings = cluster.settings.model_copy(update={"timer": timer})
    watch = TopicWatch(settings, state, ManualClock(), dict)
    with pytest.raises(RecoveryPending, match="no timer topic yet"):
        watch.find(cluster.admin)
    first = cluster.make("first")
    assert watch.find(cluster.admin).keys() == {first}


def test_a_standby_reads_what_its_owner_has_taken(cluster: PatternTopics, state: State) -> None:
    def progress(*topics: str) -> bytes:
        parts = {(topic, 0): PartitionProgress(1, 0) for topic in topics}
        epochs = Epochs.first({"precision_ms": 50, "roll_window_ms": 1_000})
        return Progress(0, 1, "owner", 1, 1, epochs, parts).encode()

    state.set_standby(on=True)
    state.write_mirror(Mirror(1, 0, progress(cluster.listed)))
    later, clock = cluster.make("later"), ManualClock()
    watch = TopicWatch(cluster.settings, state, clock, dict)
    assert watch.find(cluster.admin).keys() == {cluster.listed}
    clock.sleep(10)
    assert not watch.poll(), "its owner knows nothing of it"
    state.write_mirror(Mirror(1, 0, progress(cluster.listed, later)))
    clock.sleep(10)
    assert watch.poll()
    assert watch.find(cluster.admin).keys() == {cluster.listed, later}
    # As the owner it reads what there is.
    state.set_standby(on=False)
    latest = cluster.make("latest")
    assert watch.find(cluster.admin).keys() == {cluster.listed, later, latest}
