"""Creates topics: duewheel's own with `init`, others with `topic create`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from duewheel import factory
from duewheel.api.topics import CreatedTopic, ExaminedTopic
from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, Locked
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.kafka.topics.requirements import TopicFinding, TopicState
from duewheel.ops.shard.status import read_status
from duewheel.runtime.dequeue_process import init_progress
from duewheel.schemas.name_patterns import require_topic_name


def init_topics(
    settings: Settings,
    partitions: int | None,
    replication_factor: int | None,
    is_wanted: Callable[[str], bool],
) -> Iterator[ExaminedTopic]:
    """Creates duewheel's topics that are missing, and checks the others.

    Args:
        partitions: of new timer topics; None: the brokers' setting.
        replication_factor: of new topics; None: the brokers' setting.
        is_wanted: decides whether a missing target that the settings name is created.

    Raises:
        KafkaUnavailable: no answer in time.
        ConfigError: no right to create a topic, or `partitions` leaves a shard without one.
    """
    with factory.kafka_admin(settings) as admin:
        if partitions is not None:
            _require_for_each_shard(settings, admin, partitions)
        factor = replication_factor or -1  # Kafka's word for the brokers' setting
        found = admin.init_topics(settings, partitions=partitions, replication_factor=factor)
        for finding in (*found, *_targets(settings, admin, is_wanted)):
            yield ExaminedTopic(
                topic=finding.topic,
                state=finding.state.value,
                setting=finding.setting,
                wanted=finding.wanted,
                actual=finding.actual,
                reason=finding.reason,
                remedy=finding.remedy,
            )


def _require_for_each_shard(settings: Settings, admin: KafkaAdmin, partitions: int) -> None:
    """Refuses before a topic is created: the shards with partitions would begin, the rest fail."""
    shards = settings.shard.count
    if partitions < shards:
        topics = [*settings.timer.topics, *admin.matching_topics(settings)]
        if max(admin.partition_counts(topics).values(), default=0) < shards:
            raise ConfigError(
                f"--partitions: {shards} shards need a timer topic with {shards} partitions or more"
            )


def _targets(
    settings: Settings, admin: KafkaAdmin, is_wanted: Callable[[str], bool]
) -> Iterator[TopicFinding]:
    for target in admin.missing_targets(settings):
        if is_wanted(target):
            admin.create_topic(target, None)
            yield TopicFinding(target, TopicState.CREATED)
        else:
            reason = (
                f"its due messages become dead letters: `duewheel topic create {target}` makes it"
            )
            yield TopicFinding(target, TopicState.MISSING, reason=reason)


def begin_shard(settings: Settings, clock: Clock) -> bool:
    """Begins the shard; returns False if it has progress already.

    Raises:
        Locked: a process holds the data directory, and it is not its dequeue.
    """
    try:
        return init_progress(settings)
    except Locked:
        if not read_status(settings, clock).dequeue.is_alive:
            raise
        return False


def create_topics(
    settings: Settings, names: Sequence[str], partitions: int | None
) -> Iterator[CreatedTopic]:
    """Creates topics with `partitions` each, by default the brokers' setting; one that exists is
    left as it is.

    Raises:
        ConfigError: a name is none, or of duewheel's own topic; or no right to create one.
        KafkaUnavailable: no answer in time.
    """
    for name in names:
        if name in settings.timer_topics or name in settings.service_topics.values():
            raise ConfigError(f"{name!r} is a topic of duewheel's own: `duewheel init` creates it")
        require_topic_name(name)
    with factory.kafka_admin(settings) as admin:
        for name in names:
            exists = bool(admin.partition_counts([name]))
            if not exists:
                admin.create_topic(name, partitions)
            yield CreatedTopic(topic=name, state="found" if exists else "created")
