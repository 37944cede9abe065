"""Makes topics, and changes their settings, as an operator does."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource
from tests.harness.launcher import wait_until


def make_timer_topic(servers: str, topic: str, **changed: str) -> None:
    """A timer topic of one partition, as it must be but for what is changed."""
    right = {"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"}
    configs = right | {name.replace("_", "."): value for name, value in changed.items()}
    with closing(KafkaAdminClient(bootstrap_servers=servers)) as admin:
        admin.create_topics(
            {topic: {"num_partitions": 1, "replication_factor": 1, "configs": configs}}
        )


def alter(servers: str, topic: str, settings: Mapping[str, str]) -> None:
    """Change these settings, and wait until the broker shows them."""
    with closing(KafkaAdminClient(bootstrap_servers=servers)) as admin:
        alter_by(admin, {topic: settings})


def alter_by(admin: KafkaAdminClient, changes: Mapping[str, Mapping[str, str]]) -> None:
    """As `alter`, of some topics by a client that is there."""
    admin.alter_configs([ConfigResource("TOPIC", name, dict(s)) for name, s in changes.items()])
    wait_until(
        lambda: all(
            wanted.items() <= configs(admin, name).items() for name, wanted in changes.items()
        ),
        f"the broker never showed {changes}",
    )


def configs(admin: KafkaAdminClient, topic: str) -> dict[str, str]:
    """The settings of a topic, as the broker shows them."""
    resources = [ConfigResource("TOPIC", topic)]
    found = admin.describe_configs(resources, config_filter="all")["topic"][topic]
    return {name: entry["value"] for name, entry in found.items()}
