"""Creates, alters and deletes topics."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from kafka.errors import (
    InvalidPartitionsError,
    RequestTimedOutError,
    TopicAlreadyExistsError,
    for_code,
)

from duewheel.config.settings import Settings
from duewheel.errors import INIT_MAKES_IT, ConfigError, Unacknowledged
from duewheel.kafka.topics.requirements import (
    TopicFinding,
    TopicPlan,
    TopicState,
    compare,
    service_plans,
    timer_topic_plans,
)
from duewheel.kafka.topics.topic_checks import TopicChecks

_POLL_S = 0.05
_AHEAD_S = 0.5  # before an enclosing call ends, whose message would not say why


class KafkaAdmin(TopicChecks):
    """Checks topics, and changes them. Calls that create, change or delete raise Unacknowledged
    without an answer in time.
    """

    def init_topics(
        self, settings: Settings, *, partitions: int | None = None, replication_factor: int = -1
    ) -> list[TopicFinding]:
        """Creates the topics that are missing; compares the others and those that match the pattern
        of timer topics. New timer topics have `partitions`, or the broker's default.

        Raises:
            ConfigError: Kafka refuses to create a topic; the message says why.
        """
        timer_plans = timer_topic_plans(settings, partitions)
        findings = self.ensure(timer_plans, replication_factor)
        found = self._configs([plan.name for plan in timer_plans])
        plans = service_plans(settings, found.values())
        matching = self.matching_topics(settings)
        # New topics get room for the messages of all of these; existing ones need not have it.
        roomy = service_plans(settings, (found | self.topic_settings(matching)).values())
        existing = self.partition_counts([plan.name for plan in plans])
        plans = [
            small if small.name in existing else large
            for small, large in zip(plans, roomy, strict=True)
        ]
        findings += self.ensure(plans, replication_factor)
        for topic, wrong in self.timer_topic_findings(settings, matching).items():
            for each in wrong or [TopicFinding(topic, TopicState.RIGHT)]:
                is_wrong = each.state is TopicState.DIFFERS
                findings.append(replace(each, state=TopicState.UNREAD) if is_wrong else each)
        return findings

    def create_topic(self, name: str, partitions: int | None) -> None:
        """Creates a topic with the broker's defaults, for partitions too if that is None."""
        self.create([TopicPlan(name, partitions=partitions)])

    def have_partitions(self, topic: str, count: int) -> None:
        """Raises a topic's partitions to `count`, and waits until all of them have a leader. A
        topic with more is left as it is.

        Raises:
            ConfigError: there is no such topic, or Kafka refuses to add partitions; the message
                says why.
            Unacknowledged: it has not got so many in time, and may get them later.
        """
        deadline = self.deadline()
        requested = False
        while True:
            found = self.existing([topic])
            if topic not in found:
                raise ConfigError(f"there is no topic {topic!r}{INIT_MAKES_IT}")
            partitions = found[topic].partitions
            if len(partitions) >= count and all(each.leader >= 0 for each in partitions):
                return
            if len(partitions) < count and not requested:
                self._add_partitions(topic, count)
                requested = True
            if not deadline.remaining_s():
                raise Unacknowledged(
                    f"Kafka at {self.clients.address}: topic {topic!r} needs {count} partitions "
                    f"with leaders, and has {len(partitions)} after {self._deadline_s:g} s"
                )
            time.sleep(_POLL_S)

    def _add_partitions(self, topic: str, count: int) -> None:
        what = f"add partitions to {topic}"
        answer = self.call(
            what, lambda c: c.create_partitions({topic: count}, raise_errors=False), writes=True
        )
        (result,) = answer.results
        # Invalid if another shard's `init` was quicker; after a time-out they may come yet. The
        # caller sees both.
        if result.error_code not in {0, InvalidPartitionsError.errno, RequestTimedOutError.errno}:
            reason = _reason(result.error_code, result.error_message)
            raise ConfigError(f"Kafka at {self.clients.address}: {what}: {reason}")

    def delete_topics(self, topics: Sequence[str]) -> None:
        """Deletes topics; those that do not exist are left out."""
        existing = list(self.partition_counts(topics))
        if existing:
            self.call("delete topics", lambda c: c.delete_topics(existing), writes=True)

    def ensure(
        self, plans: Sequence[TopicPlan], replication_factor: int = -1
    ) -> list[TopicFinding]:
        """Creates the topics of these plans that are missing; compares the others.

        Raises:
            ConfigError: as `init_topics`.
        """
        names = [plan.name for plan in plans]
        partitions = self.partition_counts(names)
        missing = [plan for plan in plans if plan.name not in partitions]
        plain = self.create(missing, replication_factor) if missing else set()
        findings = [TopicFinding(plan.name, TopicState.CREATED) for plan in missing]
        existing = [plan for plan in plans if plan.name in partitions or plan.name in plain]
        configs = self._configs([plan.name for plan in existing])
        partitions |= self.partition_counts(sorted(plain))
        for plan in existing:
            if plan.partitions and plan.lacks_partitions(partitions[plan.name]):
                self.have_partitions(plan.name, plan.partitions)
                partitions[plan.name] = plan.partitions
            findings += compare(plan, configs[plan.name], partitions[plan.name])
        return findings

    def create(self, plans: Sequence[TopicPlan], replication_factor: int = -1) -> set[str]:
        """Creates topics; those that Kafka refuses, once more without advisory settings. Returns
        the names of the latter. One that exists is left as it is.

        Raises:
            ConfigError: Kafka refuses to create some; the message says why.
        """
        refused = self._try_to_create(plans, replication_factor)
        plain = {
            plan.name: plan.without_advice()
            for plan in plans
            if plan.name in refused and plan != plan.without_advice()
        }
        if plain:
            refused = {name: why for name, why in refused.items() if name not in plain}
            refused |= self._try_to_create([*plain.values()], replication_factor)
        if refused:
            reasons = "; ".join(f"topic {name!r}: {why}" for name, why in refused.items())
            raise ConfigError(f"Kafka at {self.clients.address} does not create {reasons}")
        timeout_ms = int((self._deadline_s - _AHEAD_S) * 1000)
        wanted = [plan.name for plan in plans]
        self.call("wait for topics", lambda c: c.wait_for_topics(wanted, timeout_ms), writes=True)
        return set(plain)

    def _try_to_create(self, plans: Sequence[TopicPlan], replication_factor: int) -> dict[str, str]:
        """Kafka's refusals by topic; a topic that exists by now counts as created."""
        wanted = {
            plan.name: {
                "num_partitions": plan.partitions or -1,
                "replication_factor": replication_factor,
                "configs": {r.setting: r.value for r in plan.requirements},
            }
            for plan in plans
        }
        answer = self.call(
            "create topics", lambda c: c.create_topics(wanted, raise_errors=False), writes=True
        )
        return {
            row["name"]: _reason(row["error_code"], row.get("error_message"))
            for row in answer["topics"]
            if row["error_code"] not in {0, TopicAlreadyExistsError.errno}
        }

    def _configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        """The settings of topics; ConfigError if one may not be read."""
        configs = self.topic_settings(topics)
        for topic in topics:
            if topic not in configs:
                raise ConfigError(
                    f"Kafka at {self.clients.address} does not show the settings of topic "
                    f"{topic!r}: the right DescribeConfigs is needed"
                )
        return configs


def _reason(error_code: int, message: str | None) -> str:
    return f"{for_code(error_code).__name__}: {message or 'no reason given'}"
