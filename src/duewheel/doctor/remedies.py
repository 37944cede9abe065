"""Remedies: those of failures, and the commands of Kafka."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from kafka.errors import AuthorizationError

from duewheel.errors import ConfigError, DuewheelError
from duewheel.kafka.topics.requirements import remedy_command

BROKERS_LOG = "the log of the brokers has the reason"
CLIENT_SETTINGS = "correct [kafka.client]"
SETTINGS_OR_LISTENER = f"{CLIENT_SETTINGS}, or the broker's listener"


def of_failure(error: DuewheelError) -> str:
    """The remedy of a part that fails."""
    if isinstance(error.kafka_error, AuthorizationError):
        return "grant the right: docs/security.md has those of each command"
    is_wrong = isinstance(error, ConfigError)
    return "correct the setting or the topic that it names" if is_wrong else BROKERS_LOG


class KafkaCommands(NamedTuple):
    """The commands for one cluster and one client of it: an operator copies them."""

    address: str  # the bootstrap servers
    principal: str  # of this client, in ACLs

    def acl(self, rights: Sequence[str], resource: str) -> str:
        """Grants rights on a resource, such as `--cluster` or `--topic orders`."""
        named = " ".join(f"--operation {right.title().replace('_', '')}" for right in rights)
        return (
            f"kafka-acls.sh --bootstrap-server {self.address} --add "
            f"--allow-principal {self.principal} {named} {resource}"
        )

    def transactional_ids(self, app_id: str) -> str:
        """Grants the rights on all transactional ids of an application."""
        ids = f"--transactional-id {app_id}. --resource-pattern-type prefixed"
        return self.acl(["WRITE", "DESCRIBE"], ids)

    def partitions(self, topic: str, count: int) -> str:
        """Gives a topic more partitions: `count` with those that it has."""
        return f"{self.topic('alter', topic)} --partitions {count}"

    def replicas(self, count: int, *, is_own: bool) -> str:
        """Gives the partitions of topics more replicas; `is_own`: of duewheel's."""
        text = f"give each {count} with kafka-reassign-partitions.sh --bootstrap-server "
        of_new = f"; `duewheel init --replication-factor {count}` for new" if is_own else ""
        return f"{text}{self.address}{of_new}"

    def topic(self, action: Literal["alter", "create", "delete", "describe"], topic: str) -> str:
        """Acts on a topic; settings may follow."""
        return f"kafka-topics.sh --bootstrap-server {self.address} --{action} --topic {topic}"

    def setting(self, topic: str, setting: str) -> str:
        """Gives a topic a setting, name=value."""
        return remedy_command(self.address, topic, setting)
