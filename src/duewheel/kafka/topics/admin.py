"""Creates and checks duewheel's topics, and reads where partitions begin and end.

What each topic must be: requirements.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self, TypeVar

import structlog
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource
from kafka.errors import (
    InvalidTopicError,
    KafkaError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    for_code,
)

from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, KafkaUnavailable
from duewheel.kafka.connect.clients import ClientSettings, close
from duewheel.kafka.connect.deadline import Deadline
from duewheel.kafka.log.connection import LogConnection
from duewheel.kafka.log.ends import EARLIEST, LATEST
from duewheel.kafka.topics.requirements import (
    TopicFinding,
    TopicPlan,
    compare,
    described,
    refusal,
    remedy_command,
    room_plans,
    service_plans,
    timer_topic_plan,
    timer_topic_plans,
)
from duewheel.schemas.batches import TopicPartition

T = TypeVar("T")
_ABSENT = (UnknownTopicOrPartitionError.errno, InvalidTopicError.errno)
_DEADLINE_S = 30.0
_POLL_S = 0.05

log = structlog.get_logger(__name__)


class KafkaAdmin:
    """Administers topics. Connections are opened by the first call that needs them.

    Not thread-safe. Every call has a deadline and raises KafkaUnavailable, naming the address,
    when it passes.

    Example:
        with KafkaAdmin(settings.kafka.client_options("admin")) as admin:
            admin.end_offsets(["orders.delayed"])     # {("orders.delayed", 0): 1234, …}
    """

    def __init__(
        self,
        client: Mapping[str, Any],
        deadline_s: float = _DEADLINE_S,
        stopping: threading.Event | None = None,
    ) -> None:
        """Check the client settings; connects nothing.

        Args:
            client: kafka-python settings: address, security.
            deadline_s: of each call.
            stopping: once set, no call waits longer than a moment for Kafka.

        Raises:
            ConfigError: a client setting is unknown or decided by duewheel.
        """
        self._settings = ClientSettings(client)
        self._deadline_s = deadline_s
        self._stopping = stopping
        self._client: KafkaAdminClient | None = None
        self._log: LogConnection | None = None
        self._log_topics: Sequence[str] = ()  # of which it has the metadata

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop the connections; the next call opens others."""
        client, self._client = self._client, None
        if client is not None:
            close(client)
        if self._log is not None:
            self._log.close()

    def topic_names(self) -> list[str]:
        """All topics of the cluster that this user may describe."""
        return self._call("list topics", lambda c: [str(name) for name in c.list_topics()])

    def describe_partitions(self, topics: Sequence[str]) -> dict[str, int]:
        """Number of partitions by topic; a topic that does not exist is left out."""
        return {name: len(row["partitions"]) for name, row in self._describe(topics).items()}

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        """The id that Kafka gave each topic when it was created; missing topics are left out."""
        return {name: str(row["topic_id"]) for name, row in self._describe(topics).items()}

    def log_start_offsets(self, topics: Sequence[str]) -> dict[TopicPartition, int]:
        """Returns the log start of each partition of existing topics."""
        return self._offsets(topics, EARLIEST)

    def end_offsets(self, topics: Sequence[str]) -> dict[TopicPartition, int]:
        """The offset of the next record, committed or not, by partition."""
        return self._offsets(topics, LATEST)

    def stable_offsets(self, topics: Sequence[str]) -> dict[TopicPartition, int]:
        """The last stable offset of each partition: an open transaction may begin there."""
        return self._offsets(topics, LATEST, committed=True)

    def offsets_at(self, topics: Sequence[str], time_ms: int) -> dict[TopicPartition, int]:
        """The first offset whose timestamp is `time_ms` or later, by partition; partitions without
        one are left out.
        """
        found = self._offsets(topics, max(0, time_ms))
        return {partition: offset for partition, offset in found.items() if offset >= 0}

    def init_topics(
        self, settings: Settings, *, partitions: int | None = None, replication_factor: int = -1
    ) -> list[TopicFinding]:
        """Create the topics that are missing; compare the others and those that match the pattern
        of timer topics.

        Args:
            settings: names and times.
            partitions: for new timer topics; None takes the broker's default.
            replication_factor: for new topics; -1 takes the broker's default.

        Raises:
            ConfigError: Kafka refuses to create a topic; the message says why.
        """
        timer_plans = timer_topic_plans(settings, partitions)
        findings = self.ensure(timer_plans, replication_factor)
        found = self._configs([plan.name for plan in timer_plans])
        plans = service_plans(settings, found.values())
        matching = self.matching_topics(settings)
        # New topics get room for the messages of all of these; existing ones need not have it.
        roomy = service_plans(settings, (found | self._readable_configs(matching)).values())
        existing = self.describe_partitions([plan.name for plan in plans])
        plans = [
            small if small.name in existing else large
            for small, large in zip(plans, roomy, strict=True)
        ]
        findings += self.ensure(plans, replication_factor)
        for topic, wrong in self.timer_topic_findings(settings, matching).items():
            for each in wrong or [TopicFinding(topic, "found")]:
                findings.append(replace(each, state="unread") if each.state == "differs" else each)
        return findings

    def matching_topics(self, settings: Settings) -> list[str]:
        """The topics of the cluster that match the pattern of timer topics and are not listed."""
        if settings.timer.topics_pattern is None:
            return []
        matching = {name for name in self.topic_names() if settings.timer_topics.matches(name)}
        return sorted(matching - set(settings.timer.topics))

    def require_timer_topics(self, settings: Settings) -> None:
        """Refuse to work on timer topics that could lose messages or misread their due times.

        Without the right DescribeConfigs the check only warns: many clusters do not grant it, and
        there the operators care for the topics.

        Raises:
            ConfigError: a topic is missing, or not as it must be: the numbers and the remedy.
        """
        plans = timer_topic_plans(settings, None)
        configs = self._readable_configs([plan.name for plan in plans])
        self._require(self._compare(plans, configs))

    def require_topics(self, settings: Settings, *, served: bool = False) -> None:
        """As `require_timer_topics`, for all of duewheel's topics.

        Args:
            settings: of the shard.
            served: the shard has run before, so that timers are waiting: missing topics of dead
                letters and replies then only delay dead letters and replies.
        """
        findings = self.topic_findings(settings)
        if served:
            spared = {settings.dead_letter_topic, settings.timer.reply_topic}
            for finding in findings:
                if finding.topic in spared and finding.state == "missing":
                    log.error("a topic is missing: `duewheel init` creates it", topic=finding.topic)
            findings = [f for f in findings if f.topic not in spared or f.state != "missing"]
        self._require(findings)

    def topic_findings(self, settings: Settings) -> list[TopicFinding]:
        """Checks duewheel's topics without creating, changing or refusing any."""
        timer_plans = timer_topic_plans(settings, None)
        names = [*settings.timer.topics, *settings.service_topics.values()]
        configs = self._readable_configs(names)
        timer_configs = [configs[plan.name] for plan in timer_plans if plan.name in configs]
        return self._compare([*timer_plans, *service_plans(settings, timer_configs)], configs)

    def timer_topic_findings(
        self, settings: Settings, topics: Sequence[str]
    ) -> dict[str, list[TopicFinding]]:
        """Why existing topics should not be read as timer topics, by topic: their own settings,
        too little room for their messages in the topics of dead letters and replies, or no right
        to check either.
        """
        services = sorted(settings.service_topics.values())
        configs = self._readable_configs([*topics, *services]) if topics else {}
        findings: dict[str, list[TopicFinding]] = {}
        for topic in topics:
            if topic not in configs:
                findings[topic] = [TopicFinding(topic, "unreadable")]
                continue
            plans = [timer_topic_plan(settings, topic)]
            plans += room_plans(settings, configs[topic])
            compared = [
                finding
                for plan in plans
                if plan.name in configs
                for finding in compare(plan, 0, configs[plan.name])
            ]
            findings[topic] = [finding for finding in compared if finding.state == "differs"]
        return findings

    def _compare(
        self, plans: Sequence[TopicPlan], configs: Mapping[str, Mapping[str, str]]
    ) -> list[TopicFinding]:
        partitions = self.describe_partitions([plan.name for plan in plans])
        findings = []
        for plan in plans:
            if plan.name not in partitions:
                findings.append(TopicFinding(plan.name, "missing"))
            elif plan.name not in configs:
                findings.append(TopicFinding(plan.name, "unreadable"))
            else:
                findings += compare(plan, partitions[plan.name], configs[plan.name])
        return findings

    def _require(self, findings: Sequence[TopicFinding]) -> None:
        missing = [finding.topic for finding in findings if finding.state == "missing"]
        if missing:
            raise ConfigError(
                f"Kafka at {self._settings.address} has no topic {', '.join(missing)}: "
                "`duewheel init` creates what is missing"
            )
        unreadable = [finding.topic for finding in findings if finding.state == "unreadable"]
        if unreadable:
            log.warning(
                "topic settings cannot be checked: the right DescribeConfigs is missing",
                topics=unreadable,
            )
        for finding in findings:
            if finding.state == "withheld":
                log.warning(
                    "a topic setting cannot be checked: the broker hides it",
                    topic=finding.topic,
                    setting=finding.setting,
                    wanted=finding.wanted,
                )
            if finding.state == "costly":
                log.warning(
                    "a topic setting costs time",
                    topic=finding.topic,
                    reason=described(finding),
                    remedy=remedy_command(self._settings.address, finding.topic, finding.remedy),
                )
        differences = [finding for finding in findings if finding.state == "differs"]
        if differences:
            raise ConfigError(refusal(self._settings.address, differences))

    def missing_targets(self, settings: Settings) -> list[str]:
        """The targets that the configuration names in full and that do not exist."""
        targets = settings.timer.named_targets
        existing = self.describe_partitions(targets)
        return [target for target in targets if target not in existing]

    def create_topic(self, name: str, partitions: int | None) -> None:
        """Create a plain topic, with the broker's defaults; one that exists is left as it is.

        Args:
            name: of the topic.
            partitions: how many; None takes the broker's default.

        Raises:
            ConfigError: Kafka refuses; the message says why.
        """
        self._create([TopicPlan(name, partitions, False, ())], -1)

    def have_partitions(self, topic: str, count: int) -> None:
        """Raise a topic's partitions to `count`, and wait until all of them have a leader. A topic
        with more is left as it is.

        Raises:
            ConfigError: there is no such topic, or it may not be altered.
        """
        deadline = Deadline(self._deadline_s, self._stopping)
        requested = False
        while True:
            rows = self._describe([topic])
            if topic not in rows:
                raise ConfigError(f"there is no topic {topic!r}: `duewheel init` creates it")
            partitions = rows[topic]["partitions"]
            if len(partitions) >= count and all(row["leader_id"] >= 0 for row in partitions):
                return
            if len(partitions) < count and not requested:
                # Refused if another shard's `init` was quicker: the next turn sees its partitions.
                self._call(
                    f"add partitions to {topic}",
                    lambda c: c.create_partitions({topic: count}, raise_errors=False),
                )
                requested = True
            if not deadline.remaining_s():
                raise KafkaUnavailable(
                    f"Kafka at {self._settings.address}: topic {topic!r} needs {count} partitions "
                    f"with leaders, and has {len(partitions)} after {self._deadline_s:g} s: "
                    "adding some needs the right Alter on it"
                )
            time.sleep(_POLL_S)

    def delete_topics(self, topics: Sequence[str]) -> None:
        """Delete topics; those that do not exist are left out."""
        existing = list(self.describe_partitions(topics))
        if existing:
            self._call("delete topics", lambda c: c.delete_topics(existing))

    def ensure(
        self, plans: Sequence[TopicPlan], replication_factor: int = -1
    ) -> list[TopicFinding]:
        """Creates the topics of these plans that are missing; compares the others. Arguments and
        errors are those of `init_topics`.
        """
        names = [plan.name for plan in plans]
        partitions = self.describe_partitions(names)
        missing = [plan for plan in plans if plan.name not in partitions]
        plain = self._create(missing, replication_factor) if missing else set()
        findings = [TopicFinding(plan.name, "created") for plan in missing]
        existing = [plan for plan in plans if plan.name in partitions or plan.name in plain]
        configs = self._configs([plan.name for plan in existing])
        partitions |= self.describe_partitions(sorted(plain))
        for plan in existing:
            if plan.partitions and plan.lacks_partitions(partitions[plan.name]):
                self.have_partitions(plan.name, plan.partitions)
                partitions[plan.name] = plan.partitions
            findings += compare(plan, partitions[plan.name], configs[plan.name])
        return findings

    def _create(self, plans: Sequence[TopicPlan], replication_factor: int) -> set[str]:
        """Create topics; those that Kafka refuses, once more without advisory settings.

        Returns:
            The names of those created without advisory settings.

        Raises:
            ConfigError: Kafka refuses to create one; the message says why.
        """
        refused = self._try_to_create(plans, replication_factor)
        plain = {
            plan.name: plan.without_advice()
            for plan in plans
            if plan.name in refused and plan.has_advice
        }
        if plain:
            refused = {name: why for name, why in refused.items() if name not in plain}
            refused |= self._try_to_create([*plain.values()], replication_factor)
        for name, why in refused.items():
            raise ConfigError(
                f"Kafka at {self._settings.address} does not create topic {name!r}: "
                f"{type(why).__name__}: {why.args[0]}"
            )
        timeout_ms = int(self._deadline_s * 1000)
        wanted = [plan.name for plan in plans]
        self._call("wait for topics", lambda c: c.wait_for_topics(wanted, timeout_ms))
        return set(plain)

    def _try_to_create(
        self, plans: Sequence[TopicPlan], replication_factor: int
    ) -> dict[str, KafkaError]:
        """Kafka's refusals by topic; a topic that exists by now counts as created."""
        wanted = {
            plan.name: {
                "num_partitions": plan.partitions or -1,
                "replication_factor": replication_factor,
                "configs": {r.setting: r.value for r in plan.requirements},
            }
            for plan in plans
        }
        answer = self._call("create topics", lambda c: c.create_topics(wanted, raise_errors=False))
        return {
            row["name"]: for_code(row["error_code"])(row.get("error_message") or "no reason given")
            for row in answer["topics"]
            if row["error_code"] not in {0, TopicAlreadyExistsError.errno}
        }

    def _describe(self, topics: Sequence[str]) -> dict[str, dict[str, Any]]:
        rows = self._call("look up topics", lambda c: c.describe_topics(list(topics)))
        by_name: dict[str, dict[str, Any]] = {}
        for row in rows if topics else ():
            if row["error_code"] in _ABSENT:
                continue
            if row["error_code"]:
                error = for_code(row["error_code"])
                text = f"Kafka at {self._settings.address}: topic {row['name']!r}: {error.__name__}"
                if error is TopicAuthorizationFailedError:
                    raise ConfigError(f"{text}: the right Describe is needed")
                raise KafkaUnavailable(text)
            by_name[row["name"]] = row
        return by_name

    def _configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        """The settings of topics, all of which must be readable."""
        configs = self._readable_configs(topics)
        for topic in topics:
            if topic not in configs:
                raise ConfigError(
                    f"Kafka at {self._settings.address} does not show the settings of topic "
                    f"{topic!r}: the right DescribeConfigs is needed"
                )
        return configs

    def _readable_configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        """The settings of topics; those that may not be read, or do not exist, are left out."""
        if not topics:
            return {}
        resources = [ConfigResource("TOPIC", topic) for topic in topics]
        answer = self._call(
            "read topic settings", lambda c: c.describe_configs(resources, config_filter="all")
        )
        return {
            topic: {name: entry["value"] for name, entry in entries.items()}
            for topic, entries in answer.get("topic", {}).items()
            if entries
        }

    def _offsets(
        self, topics: Sequence[str], time: int, *, committed: bool = False
    ) -> dict[TopicPartition, int]:
        counts = self.describe_partitions(topics)
        wanted = [(topic, number) for topic, count in counts.items() for number in range(count)]
        if self._log is None or list(counts) != self._log_topics:
            # Kafka's client asks again and again for topics that have been deleted.
            if self._log is not None:
                self._log.close()
            self._log, self._log_topics = LogConnection(self._settings, list(counts)), list(counts)
        self._log.deadline = Deadline(self._deadline_s, self._stopping)
        answers = self._log.answers(wanted, time, committed=committed)
        with self._settings.explained("ask for offsets"):
            return {place: _offset(answer) for place, answer in answers.items()}

    def _call(self, what: str, call: Callable[[KafkaAdminClient], T]) -> T:
        deadline = Deadline(self._deadline_s, self._stopping)
        try:
            if self._client is None:
                self._client = self._settings.open(KafkaAdminClient, deadline)
            client = self._client
            return self._settings.call(deadline, what, lambda: call(client))
        except KafkaUnavailable:
            # Without this a call that hangs in the old client would never end.
            self.close()
            raise


def _offset(answer: int | Exception) -> int:
    if isinstance(answer, Exception):
        raise answer
    return answer
