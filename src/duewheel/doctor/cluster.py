"""The examined cluster: one connection, and the requests that several examinations share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource
from kafka.errors import TopicAuthorizationFailedError

from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.kafka.connect.clients import ClientSettings
from duewheel.kafka.connect.deadline import Deadline
from duewheel.kafka.topics.admin import KafkaAdmin

T = TypeVar("T")

_NOT_AUTHORIZED: int = TopicAuthorizationFailedError.errno


@dataclass(frozen=True, slots=True)
class Topic:
    """A broker's description of a topic, which may not exist."""

    name: str
    error_code: int  # Kafka's; 0 if the other fields are set
    partitions: Sequence[Mapping[str, Any]] = ()  # rows of Metadata
    rights: frozenset[str] | None = None  # what this client may do; None if the broker lists none
    config: Mapping[str, str] = field(default_factory=dict)  # empty: this client may not read them

    @property
    def exists(self) -> bool:
        return self.error_code == 0

    @property
    def is_forbidden(self) -> bool:
        return self.error_code == _NOT_AUTHORIZED


class Cluster:
    """One admin client; each of its calls has a deadline. Only `ask` is thread-safe."""

    def __init__(
        self, settings: Settings, client: ClientSettings, admin: KafkaAdminClient, clock: Clock
    ) -> None:
        """Uses an open client, which the caller closes."""
        self.settings = settings
        self.client = client
        self.admin = admin
        self.clock = clock
        self.call_s = settings.dequeue.call_deadline.total_seconds()

    @property
    def address(self) -> str:
        """The bootstrap servers, in the form of Kafka's command-line tools."""
        return self.client.address

    @property
    def own_topics(self) -> list[str]:
        """Timer topics, then duewheel's other topics."""
        return [*self.timer_topics, *self.settings.service_topics.values()]

    @cached_property
    def timer_topics(self) -> list[str]:
        """Listed timer topics, existing or not, and topics that match the pattern."""
        with self.open_topics() as topics:
            return [*self.settings.timer.topics, *topics.matching_topics(self.settings)]

    def open_topics(self) -> KafkaAdmin:
        """Opens the client with the topic checks of a start; the caller closes it."""
        return KafkaAdmin(self.settings.kafka.client_options("admin"), self.call_s)

    def deadline(self) -> Deadline:
        """For one call."""
        return Deadline(self.call_s)

    def ask(self, what: str, call: Callable[[KafkaAdminClient], T]) -> T:
        """Makes one call.

        Raises:
            KafkaUnavailable, ConfigError: as `ClientSettings.call`.
        """
        return self.client.call(self.deadline(), what, lambda: call(self.admin))

    def topics(self, names: Sequence[str]) -> dict[str, Topic]:
        """Describes topics, existing or not."""
        rows = self.ask("look up topics", lambda admin: admin.describe_topics(list(names)))
        existing = [row["name"] for row in rows if row["error_code"] == 0]
        configs = self.configs("TOPIC", existing) if existing else {}
        return {row["name"]: _topic(row, configs.get(row["name"], {})) for row in rows}

    def configs(self, kind: str, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """Reads the settings of topics ("TOPIC") or brokers ("BROKER"); empty without the right to.

        Only a broker itself knows its settings: request those of a reachable one only, or the call
        waits for its deadline.
        """
        resources = [ConfigResource(kind, name) for name in names]
        answer = self.ask(
            "read settings", lambda admin: admin.describe_configs(resources, config_filter="all")
        )
        return {
            name: {key: entry["value"] for key, entry in entries.items()}
            for name, entries in answer.get(kind.lower(), {}).items()
        }


def _topic(row: Mapping[str, Any], config: Mapping[str, str]) -> Topic:
    operations = row.get("authorized_operations")
    return Topic(
        row["name"],
        row["error_code"],
        row["partitions"],
        frozenset(map(str, operations)) if operations else None,
        config,
    )
