"""Topics: creating and checking duewheel's own, and asking where partitions begin and end.

What each topic must be (created so where missing; where it is there, only compared):

    timer topic     LogAppendTime, so that a record's timestamp is the broker's; kept for longer
                    than the roll window, the margin and the longest outage to survive; no limit
                    by size, no compaction: all of it may be read again after a loss
    dead letters    takes the largest timer message and its error headers; kept for good
    state topic     one partition, compacted only, small segments: it is read back at every start
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, OffsetSpec
from kafka.errors import (
    InvalidTopicError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    for_code,
)
from kafka.structs import TopicPartition as KafkaPartition

from duewheel.config import Settings
from duewheel.config_values import as_millis
from duewheel.errors import ConfigError, KafkaUnavailable
from duewheel.schemas.timers import TopicPartition
from duewheel.wheel.deadline import Deadline
from duewheel.wheel.kafka_clients import ClientSettings, close

T = TypeVar("T")
Relation = Literal["=", ">=", "<="]

OUTAGE_DEFAULT = timedelta(days=7)
ERROR_HEADERS_BYTES_MAX = 4 * 1024
_UNLIMITED = "-1"
_STATE_SEGMENT_BYTES = 16 * 1024 * 1024
_STATE_SEGMENT_MS = 10 * 60 * 1000
_ABSENT = (UnknownTopicOrPartitionError.errno, InvalidTopicError.errno)
_DEADLINE_S = 30.0


@dataclass(frozen=True, slots=True)
class Requirement:
    """One setting of a topic: what it is created with, and what is accepted where it exists.

    `bound` is compared by `relation`; as a retention, -1 (unlimited) is at least anything.
    """

    setting: str
    value: str
    relation: Relation = "="
    bound: float = 0

    def holds(self, found: str) -> bool:
        """Whether an existing topic's value will do."""
        if self.relation == "=":
            return found == self.value
        number = float(found)
        if self.relation == "<=":
            return number <= self.bound
        return found == _UNLIMITED or number >= self.bound

    @property
    def wanted(self) -> str:
        """For people."""
        return self.value if self.relation == "=" else f"{self.relation} {self.bound}"


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic as it must be.

    Attributes:
        name: the topic.
        partitions: how many to create it with; None takes the broker's default.
        partitions_exact: a different number on an existing topic is a difference.
        requirements: its settings.
        create_time_within_ms: also accept CreateTime, if the broker bounds the timestamps' error
            by this.
    """

    name: str
    partitions: int | None
    partitions_exact: bool
    requirements: tuple[Requirement, ...]
    create_time_within_ms: int | None = None


@dataclass(frozen=True, slots=True)
class TopicFinding:
    """One line of `init`'s report; `setting`, `wanted`, `found` only for a difference."""

    topic: str
    state: Literal["created", "found", "differs"]
    setting: str = ""
    wanted: str = ""
    found: str = ""


class KafkaAdmin:
    """Asks and tells Kafka about topics. One connection, opened by the first call.

    Not thread-safe. Every call has a deadline and raises KafkaUnavailable, naming the address,
    when it passes.

    Example:
        with KafkaAdmin(settings.kafka.client_options("admin")) as admin:
            admin.end_offsets(["orders.delayed"])     # {("orders.delayed", 0): 1234, …}
    """

    def __init__(self, client: Mapping[str, Any], deadline_s: float = _DEADLINE_S) -> None:
        """Check the client settings; connects nothing.

        Raises:
            ConfigError: a client setting is unknown or decided by duewheel.
        """
        self._settings = ClientSettings(client)
        self._deadline_s = deadline_s
        self._client: KafkaAdminClient | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drop the connection; the next call opens another one."""
        client, self._client = self._client, None
        if client is not None:
            close(client)

    def describe_partitions(self, topics: Sequence[str]) -> dict[str, int]:
        """Number of partitions by topic; a topic that does not exist is left out."""
        return {name: len(row["partitions"]) for name, row in self._describe(topics).items()}

    def topic_ids(self, topics: Sequence[str]) -> dict[str, uuid.UUID]:
        """The id that Kafka gave each topic when it was created; missing topics are left out."""
        return {
            name: uuid.UUID(str(row["topic_id"])) for name, row in self._describe(topics).items()
        }

    def log_start_offsets(self, topics: Sequence[str]) -> dict[TopicPartition, int]:
        """The first offset that is still there, by partition; missing topics are left out."""
        return self._offsets(topics, OffsetSpec.EARLIEST)

    def end_offsets(self, topics: Sequence[str]) -> dict[TopicPartition, int]:
        """The offset of the next record, committed or not, by partition."""
        return self._offsets(topics, OffsetSpec.LATEST)

    def init_topics(
        self, settings: Settings, *, partitions: int | None = None, replication_factor: int = -1
    ) -> list[TopicFinding]:
        """Create what is missing of the timer, dead-letter and state topics, compare the rest.

        Args:
            settings: names and times.
            partitions: for new timer topics; None takes the broker's default.
            replication_factor: for new topics; -1 takes the broker's default.

        Raises:
            ConfigError: Kafka refuses to create a topic; the message says why.
        """
        timer_plans = timer_topic_plans(settings, partitions)
        findings = self._ensure(timer_plans, replication_factor)
        found = self._configs([plan.name for plan in timer_plans])
        largest = max(int(config["max.message.bytes"]) for config in found.values())
        others = [dead_letter_plan(settings, largest), state_plan(settings)]
        return findings + self._ensure(others, replication_factor)

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a plain topic, with the broker's defaults; one that exists is left as it is.

        Raises:
            ConfigError: Kafka refuses; the message says why.
        """
        self._create([TopicPlan(name, partitions, False, ())], -1)

    def delete_topics(self, topics: Sequence[str]) -> None:
        """Delete topics; those that do not exist are left out."""
        there = list(self.describe_partitions(topics))
        if there:
            self._call("delete topics", lambda c: c.delete_topics(there))

    def _ensure(self, plans: Sequence[TopicPlan], replication_factor: int) -> list[TopicFinding]:
        names = [plan.name for plan in plans]
        partitions = self.describe_partitions(names)
        missing = [plan for plan in plans if plan.name not in partitions]
        if missing:
            self._create(missing, replication_factor)
        there = [plan for plan in plans if plan.name in partitions]
        configs = self._configs([plan.name for plan in there])
        findings = [TopicFinding(plan.name, "created") for plan in missing]
        for plan in there:
            findings += compare(plan, partitions[plan.name], configs[plan.name])
        return findings

    def _create(self, plans: Sequence[TopicPlan], replication_factor: int) -> None:
        wanted = {
            plan.name: {
                "num_partitions": plan.partitions or -1,
                "replication_factor": replication_factor,
                "configs": {r.setting: r.value for r in plan.requirements},
            }
            for plan in plans
        }
        answer = self._call("create topics", lambda c: c.create_topics(wanted, raise_errors=False))
        for row in answer["topics"]:
            error = for_code(row["error_code"])
            if row["error_code"] and error is not TopicAlreadyExistsError:
                raise ConfigError(
                    f"Kafka at {self._settings.address} does not create topic {row['name']!r}: "
                    f"{error.__name__}: {row.get('error_message') or 'no reason given'}"
                )
        names = [plan.name for plan in plans]
        timeout_ms = int(self._deadline_s * 1000)
        self._call("wait for topics", lambda c: c.wait_for_topics(names, timeout_ms))

    def _describe(self, topics: Sequence[str]) -> dict[str, dict[str, Any]]:
        rows = self._call("look up topics", lambda c: c.describe_topics(list(topics)))
        found: dict[str, dict[str, Any]] = {}
        for row in rows if topics else ():
            if row["error_code"] in _ABSENT:
                continue
            if row["error_code"]:
                error = for_code(row["error_code"]).__name__
                where = f"Kafka at {self._settings.address}: topic {row['name']!r}"
                raise KafkaUnavailable(f"{where}: {error}")
            found[row["name"]] = row
        return found

    def _configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        if not topics:
            return {}
        resources = [ConfigResource("TOPIC", topic) for topic in topics]
        answer = self._call(
            "read topic settings", lambda c: c.describe_configs(resources, config_filter="all")
        )
        configs = {
            topic: {name: entry["value"] for name, entry in entries.items()}
            for topic, entries in answer.get("topic", {}).items()
        }
        for topic in topics:
            if not configs.get(topic):
                raise ConfigError(
                    f"Kafka at {self._settings.address} does not show the settings of topic "
                    f"{topic!r}: the right DescribeConfigs is needed"
                )
        return configs

    def _offsets(self, topics: Sequence[str], spec: OffsetSpec) -> dict[TopicPartition, int]:
        wanted = {
            KafkaPartition(topic, partition): spec
            for topic, count in self.describe_partitions(topics).items()
            for partition in range(count)
        }
        if not wanted:
            return {}
        found = self._call("ask for offsets", lambda c: c.list_partition_offsets(wanted))
        return {(p.topic, p.partition): int(answer.offset) for p, answer in found.items()}

    def _call(self, what: str, call: Callable[[KafkaAdminClient], T]) -> T:
        deadline = Deadline(self._deadline_s)
        try:
            if self._client is None:
                self._client = self._settings.open(KafkaAdminClient, deadline)
            client = self._client
            return self._settings.call(deadline, what, lambda: call(client))
        except KafkaUnavailable:
            # A call that may still hang in the old client ends when that is closed.
            self.close()
            raise


def timer_topic_plans(settings: Settings, partitions: int | None) -> list[TopicPlan]:
    """The timer topics as they must be."""
    margin_ms = as_millis(settings.timer.margin)
    kept_ms = as_millis(settings.timer.roll_window) + margin_ms + as_millis(OUTAGE_DEFAULT)
    requirements = (
        Requirement("cleanup.policy", "delete"),
        Requirement("message.timestamp.type", "LogAppendTime"),
        Requirement("retention.ms", str(kept_ms), ">=", kept_ms),
        Requirement("retention.bytes", _UNLIMITED),
    )
    return [
        TopicPlan(topic, partitions, False, requirements, create_time_within_ms=margin_ms)
        for topic in settings.timer.topics
    ]


def dead_letter_plan(settings: Settings, timer_bytes_max: int) -> TopicPlan:
    """The dead-letter topic as it must be, given the timer topics' largest message."""
    bytes_max = timer_bytes_max + ERROR_HEADERS_BYTES_MAX
    kept_ms = as_millis(OUTAGE_DEFAULT)
    return TopicPlan(
        settings.dead_letter_topic,
        None,
        False,
        (
            Requirement("cleanup.policy", "delete"),
            Requirement("max.message.bytes", str(bytes_max), ">=", bytes_max),
            Requirement("retention.ms", _UNLIMITED, ">=", kept_ms),
            Requirement("retention.bytes", _UNLIMITED),
        ),
    )


def state_plan(settings: Settings) -> TopicPlan:
    """The state topic as it must be."""
    return TopicPlan(
        settings.state_topic,
        1,
        True,
        (
            Requirement("cleanup.policy", "compact"),
            Requirement("message.timestamp.type", "LogAppendTime"),
            Requirement("segment.bytes", str(_STATE_SEGMENT_BYTES), "<=", _STATE_SEGMENT_BYTES),
            Requirement("segment.ms", str(_STATE_SEGMENT_MS), "<=", _STATE_SEGMENT_MS),
            Requirement("min.cleanable.dirty.ratio", "0.1", "<=", 0.5),
        ),
    )


def compare(plan: TopicPlan, partitions: int, config: Mapping[str, str]) -> list[TopicFinding]:
    """What of an existing topic is not as planned; one line "found" if all is."""
    differences = [
        TopicFinding(plan.name, "differs", r.setting, r.wanted, config[r.setting])
        for r in plan.requirements
        if not r.holds(config[r.setting]) and not _bounded_create_time(plan, r, config)
    ]
    if plan.partitions_exact and partitions != plan.partitions:
        differences.append(
            TopicFinding(plan.name, "differs", "partitions", str(plan.partitions), str(partitions))
        )
    return differences or [TopicFinding(plan.name, "found")]


def _bounded_create_time(
    plan: TopicPlan, requirement: Requirement, config: Mapping[str, str]
) -> bool:
    """The producers' own timestamps will do, if the broker refuses those that are far off."""
    if requirement.setting != "message.timestamp.type" or plan.create_time_within_ms is None:
        return False
    allowed = ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms")
    return all(int(config[name]) <= plan.create_time_within_ms for name in allowed)
