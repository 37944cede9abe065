"""The topics that `init` makes, and their settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kafka import KafkaAdminClient
from tests.harness import topics
from tests.harness.shared_broker import AnyBroker

from duewheel.config.settings import Settings, load
from duewheel.kafka.topics.admin import KafkaAdmin

TIMER = "timer"
DEAD = "dead-letter"
STATE = "state"


@dataclass
class ShardTopics:
    """A shard's topics, made by `init`."""

    settings: Settings
    config: Path
    client: KafkaAdminClient

    def name(self, role: str) -> str:
        names = {
            TIMER: self.settings.timer.topics[0],
            DEAD: self.settings.dead_letter_topic,
            STATE: self.settings.state_topic,
        }
        return names[role]

    def alter(self, role: str, changed: dict[str, str]) -> None:
        """Change settings and wait until the broker knows of it."""
        topics.alter_by(self.client, {self.name(role): changed})


def made(broker: AnyBroker, path: Path, name: str) -> ShardTopics:
    config = path / "duewheel.toml"
    config.write_text(
        f'[app]\nid = "{name}"\n'
        f'[kafka]\nbootstrap_servers = "{broker.bootstrap_servers}"\n'
        f'[timer]\ntopics = ["{name}.timers"]\ntargets = ["*"]\n'
        f'[storage]\ndata_dir = "{path / "data"}"\n'
    )
    settings = load(config)
    with KafkaAdmin(settings.kafka.client_options("admin")) as admin:
        admin.init_topics(settings)
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    return ShardTopics(settings, config, client)
