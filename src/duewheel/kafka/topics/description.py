"""Topics and their settings, as brokers describe them: the only requests for either.

`admin` and doctor compare the answers with the requirements; `targets.target_describer` decides by
them whether a transaction may write.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kafka import KafkaAdminClient
from kafka.admin import ACLOperation, ConfigResource
from kafka.errors import (
    InvalidTopicError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)

_TOPICS_PER_REQUEST = 1_000  # for unlimited numbers of names: it bounds the size of an answer
_NOT_AUTHORIZED: int = TopicAuthorizationFailedError.errno
_OWN = "DYNAMIC_TOPIC_CONFIG"
_EACH_RIGHT = frozenset(ACLOperation.__members__)
_ABSENT = (UnknownTopicOrPartitionError.errno, InvalidTopicError.errno)


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition; `leader` is a broker's id, or -1 while none leads."""

    number: int
    leader: int
    replicas: int
    in_sync: int


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic, which may not exist.

    Attributes:
        error_code: Kafka's; 0 if the other fields are set.
        id: drawn at creation: a topic that is recreated under the same name has another.
        rights: the operations that this client may do; None if the broker lists none.
        config: by name; empty if it was not read, or may not be. A setting that the broker hides is
            left out.
    """

    name: str
    error_code: int
    id: str = ""
    partitions: Sequence[Partition] = ()
    rights: frozenset[str] | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    is_internal: bool = False

    @property
    def exists(self) -> bool:
        return self.error_code == 0

    @property
    def is_absent(self) -> bool:
        return self.error_code in _ABSENT

    @property
    def is_forbidden(self) -> bool:
        return self.error_code == _NOT_AUTHORIZED


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Settings by name, and which of them are the topic's own: the others are the broker's."""

    values: Mapping[str, str] = field(default_factory=dict)
    own: frozenset[str] = frozenset()


def requests_of(names: Sequence[str]) -> Iterator[list[str]]:
    """Divides any number of names into those of one request each."""
    for first in range(0, len(names), _TOPICS_PER_REQUEST):
        yield list(names[first : first + _TOPICS_PER_REQUEST])


def describe(admin: KafkaAdminClient, names: Iterable[str]) -> dict[str, Topic]:
    """Describes topics by name, without their settings."""
    wanted = list(names)
    return {row["name"]: _topic(row) for row in (admin.describe_topics(wanted) if wanted else ())}


def read_settings(
    admin: KafkaAdminClient, names: Iterable[str], wanted: Sequence[str] = (), kind: str = "TOPIC"
) -> dict[str, dict[str, str]]:
    """As `describe_settings`, the values only; of brokers by id with `kind` "BROKER"."""
    found = describe_settings(admin, names, wanted, kind)
    return {name: dict(settings.values) for name, settings in found.items()}


def describe_settings(
    admin: KafkaAdminClient, names: Iterable[str], wanted: Sequence[str] = (), kind: str = "TOPIC"
) -> dict[str, TopicSettings]:
    """Reads settings by topic; without the right to, and of topics that do not exist, they are left
    out.

    Only a broker itself knows its settings: for one that is away, the call waits for its deadline.

    Args:
        wanted: names of settings; none: all.
    """
    resources = [ConfigResource(kind, name, list(wanted) or None) for name in names]
    answer = admin.describe_configs(resources, config_filter="all") if resources else {}
    return {
        name: TopicSettings(
            {key: row["value"] for key, row in rows.items() if row["value"] is not None},
            frozenset(key for key, row in rows.items() if row.get("config_source") == _OWN),
        )
        for name, rows in answer.get(kind.lower(), {}).items()
        if rows
    }


def _topic(row: Mapping[str, Any]) -> Topic:
    operations = frozenset(map(str, row.get("authorized_operations") or ()))
    return Topic(
        row["name"],
        row["error_code"],
        str(row.get("topic_id", "")),
        [
            Partition(
                each["partition_index"],
                each["leader_id"],
                len(each["replica_nodes"]),
                len(each["isr_nodes"]),
            )
            for each in row.get("partitions") or ()
        ],
        _EACH_RIGHT if "ALL" in operations else operations or None,
        is_internal=bool(row.get("is_internal")),
    )
