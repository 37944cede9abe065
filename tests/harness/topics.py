"""Changes settings of topics, as an operator does."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource


def alter(servers: str, topic: str, settings: Mapping[str, str]) -> None:
    """Change these settings; brokers may take a moment to follow them."""
    with closing(KafkaAdminClient(bootstrap_servers=servers)) as admin:
        admin.alter_configs([ConfigResource("TOPIC", topic, dict(settings))])
