"""The scratch topic, where the trials write instead of in a shard's topics.

Topic, transactional id and group of the trials have the name `<app.id>.doctor.<shard>`. Nothing
else writes there, and the hosts of several shards may be examined at the same time. The topic is
created with one partition per broker, so that each broker leads one, and is deleted afterwards.
Without the right to create topics, an operator can create it once (the finding has the command):
such a topic stays, and its retention deletes the records after an hour.

This module alone can create and delete: the other parts share a connection that only reads topics.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kafka.errors import (
    GroupAuthorizationFailedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
)

from duewheel.api.examination import DoctorFinding
from duewheel.config.settings import Settings
from duewheel.doctor.cluster import Cluster
from duewheel.doctor.findings import Check
from duewheel.doctor.remedies import has_cause
from duewheel.errors import ConfigError, DuewheelError, KafkaUnavailable
from duewheel.kafka.connect.bootstrap import advertised_brokers
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.kafka.topics.description import Partition
from duewheel.kafka.topics.requirements import Requirement, TopicPlan

_STAMPS = Requirement("message.timestamp.type", "LogAppendTime", "the clocks are read from it")
STAMPED = f"{_STAMPS.setting}={_STAMPS.value}"
_SETTINGS = (
    _STAMPS,
    Requirement("retention.ms", "3600000", "a topic that stays keeps no records for long"),
)


POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class ScratchTopic:
    """The topic with its partitions, and the ids of all brokers."""

    topic: str
    partitions: Sequence[Partition]
    brokers: Sequence[int]
    existed: bool = False  # before this run: the operator's, or of a run that was killed


def name_of(settings: Settings) -> str:
    """Returns the name of the topic, the transactional id and the group."""
    return f"{settings.app.id}.doctor.{settings.shard.index}"


@contextlib.contextmanager
def scratch_topic(cluster: Cluster, stays: list[str]) -> Iterator[ScratchTopic]:
    """Yields the topic for the length of a with block; then deletes it, and the trial's group.

    Args:
        stays: gets the reason if it cannot be deleted.

    Raises:
        ConfigError: it cannot be created.
    """
    settings, name = cluster.settings, name_of(cluster.settings)
    call_s = settings.dequeue.call_deadline.total_seconds()
    with KafkaAdmin(settings.kafka.client_options("admin"), call_s) as admin:
        existed = name in admin.partition_counts([name])
        brokers = [broker for broker, _, _ in admin.call("list brokers", advertised_brokers)]
        try:
            if not existed:
                admin.create([TopicPlan(name, _SETTINGS, max(1, len(brokers)))])
            deadline = admin.deadline()
            while not (found := admin.existing([name])):  # the next broker may have it later
                if not deadline.remaining_s():
                    raise KafkaUnavailable(f"a broker has no topic {name} after its creation")
                cluster.clock.sleep(POLL_S)
            yield ScratchTopic(name, found[name].partitions, brokers, existed)
        finally:
            with contextlib.suppress(DuewheelError):
                admin.call("delete the trial's group", lambda client: client.delete_groups([name]))
            if not existed:
                try:
                    admin.delete_topics([name])
                except DuewheelError as error:
                    stays.append(str(error))


def remedy(cluster: Cluster, error: DuewheelError, otherwise: str) -> str:
    """The command that grants a right on the scratch names, if Kafka has refused one."""
    remedies, app_id = cluster.remedies, cluster.settings.app.id
    scope = f"{app_id}.doctor. --resource-pattern-type prefixed"
    if has_cause(error, TransactionalIdAuthorizationFailedError):
        return remedies.transactional_ids(app_id)
    if has_cause(error, GroupAuthorizationFailedError):
        return remedies.acl(["READ", "DELETE"], f"--group {scope}")
    if has_cause(error, TopicAuthorizationFailedError):
        return remedies.acl(["CREATE", "DELETE", "READ", "WRITE"], f"--topic {scope}")
    return otherwise


def not_deleted(cluster: Cluster, why: str) -> DoctorFinding:
    """The finding of a topic that stays."""
    name = name_of(cluster.settings)
    delete = cluster.remedies.topic("delete", name)
    return Check("scratch_topic", f"topic {name}").warning(f"it stays: {why}", delete)


def not_created(cluster: Cluster, refusal: ConfigError) -> DoctorFinding:
    """The finding of a topic that cannot be created."""
    name = name_of(cluster.settings)
    settings = " ".join(f"--config {each.setting}={each.value}" for each in _SETTINGS)
    found = f"{refusal}: transactions and clocks are not checked"
    create = f"{cluster.remedies.topic('create', name)} {settings}"
    return Check("scratch_topic", f"topic {name}").warning(found, remedy(cluster, refusal, create))
