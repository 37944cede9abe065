"""Makes topics, and changes their settings, as an operator does."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource


def make_timer_topic(servers: str, topic: str, **changed: str) -> None:
    """A timer topic of one partition, as it must be but for what is changed."""
    right = {"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"}
    configs = right | {name.replace("_", "."): value for name, value in changed.items()}
    with closing(KafkaAdminClient(bootstrap_servers=servers)) as admin:
        admin.create_topics(
            {topic: {"num_partitions": 1, "replication_factor": 1, "configs": configs}}
        )


def alter(servers: str, topic: str, settings: Mapping[str, str]) -> None:
    """Change these settings; brokers may take a moment to follow them."""
    with closing(KafkaAdminClient(bootstrap_servers=servers)) as admin:
        admin.alter_configs([ConfigResource("TOPIC", topic, dict(settings))])
