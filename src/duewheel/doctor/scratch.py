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
from collections.abc import Sequence

from kafka.errors import (
    GroupAuthorizationFailedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
)

from duewheel.api.examination import DoctorFinding
from duewheel.config.settings import Settings
from duewheel.doctor.cluster import Cluster
from duewheel.doctor.findings import Check, Findings
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


def name_of(settings: Settings) -> str:
    """Returns the name of the topic, the transactional id and the group."""
    return f"{settings.app.id}.doctor.{settings.shard.index}"


class ScratchTopic:
    """Not thread-safe.

    Attributes:
        topic: the name also of the transactional id and the group.
        partitions: those of the topic; empty until it is there.
        brokers: the ids of all brokers, likewise.
        left: the finding of a topic that this run created, and could not delete.
    """

    def __init__(self, cluster: Cluster) -> None:
        """Creates nothing."""
        self.topic = name_of(cluster.settings)
        self.partitions: Sequence[Partition] = ()
        self.brokers: Sequence[int] = ()
        self.left: Sequence[DoctorFinding] = ()
        self._cluster = cluster
        self._check = Check("scratch_topic", f"topic {self.topic}")
        self._is_own = False  # otherwise it is the operator's, or of a run that was killed

    def create(self) -> Findings:
        """Creates the topic unless it is there."""
        try:
            with self._admin() as admin:
                existed = self.topic in admin.partition_counts([self.topic])
                self.brokers = [id_ for id_, _, _ in admin.call("list brokers", advertised_brokers)]
                if not existed:
                    self._is_own = True
                    admin.create([TopicPlan(self.topic, _SETTINGS, max(1, len(self.brokers)))])
                deadline = admin.deadline()
                while not (found := admin.existing([self.topic])):  # another broker may lag
                    if not deadline.remaining_s():
                        text = f"a broker has no topic {self.topic} after its creation"
                        raise KafkaUnavailable(text)
                    self._cluster.clock.sleep(POLL_S)
                self.partitions = found[self.topic].partitions
        except ConfigError as refusal:
            yield self.not_created(refusal)
        else:
            if existed:
                yield self._check.ok("it was there before this run, so it stays")

    def close(self) -> None:
        """Deletes the trial's group, and the topic if this run may have created it."""
        if not self.brokers:
            return
        with self._admin() as admin:
            with contextlib.suppress(DuewheelError):
                names = [self.topic]
                admin.call("delete the trial's group", lambda client: client.delete_groups(names))
            try:
                if self._is_own:
                    admin.delete_topics([self.topic])
            except DuewheelError as error:
                delete = self._cluster.commands.topic("delete", self.topic)
                self.left = [self._check.warning(f"it stays: {error}", delete)]

    def not_created(self, refusal: ConfigError) -> DoctorFinding:
        """The finding of a topic that cannot be created."""
        settings = " ".join(f"--config {each.setting}={each.value}" for each in _SETTINGS)
        found = f"{refusal}: transactions and clocks are not checked"
        create = f"{self._cluster.commands.topic('create', self.topic)} {settings}"
        return self._check.warning(found, self.grant(refusal, create))

    def grant(self, error: DuewheelError, otherwise: str) -> str:
        """The command that grants a right on the scratch names, if Kafka has refused one."""
        commands, app_id = self._cluster.commands, self._cluster.settings.app.id
        scope = f"{app_id}.doctor. --resource-pattern-type prefixed"
        if isinstance(error.kafka_error, TransactionalIdAuthorizationFailedError):
            return commands.transactional_ids(app_id)
        if isinstance(error.kafka_error, GroupAuthorizationFailedError):
            return commands.acl(["READ", "DELETE"], f"--group {scope}")
        if isinstance(error.kafka_error, TopicAuthorizationFailedError):
            return commands.acl(["CREATE", "DELETE", "READ", "WRITE"], f"--topic {scope}")
        return otherwise

    def _admin(self) -> KafkaAdmin:
        settings = self._cluster.settings
        call_s = settings.dequeue.call_deadline.total_seconds()
        return KafkaAdmin(settings.kafka.client_options("admin"), call_s)
