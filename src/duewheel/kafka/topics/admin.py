"""Creates duewheel's topics, and compares existing ones with requirements.py."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import structlog
from kafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, Unacknowledged
from duewheel.kafka.topics.requirements import (
    TopicFinding,
    TopicPlan,
    TopicState,
    compare,
    described,
    differences_text,
    remedy_command,
    room_plans,
    service_plans,
    timer_topic_plan,
    timer_topic_plans,
)
from duewheel.kafka.topics.topic_reader import TopicReader

_POLL_S = 0.05

log = structlog.get_logger(__name__)


class KafkaAdmin(TopicReader):
    """A reader that creates and checks topics, too. Calls that create, change or delete raise
    Unacknowledged without an answer in time.
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

    def matching_topics(self, settings: Settings) -> list[str]:
        """The topics of the cluster that match the pattern of timer topics and are not listed."""
        if settings.timer.topics_pattern is None:
            return []
        matching = {name for name in self.topic_names() if settings.timer_topics.matches(name)}
        return sorted(matching - set(settings.timer.topics))

    def require_timer_topics(self, settings: Settings) -> None:
        """Refuses to work on timer topics that could lose messages or misread their due times.

        Without the right DescribeConfigs the check only warns: many clusters do not grant it, and
        there the operators care for the topics.

        Raises:
            ConfigError: a topic is missing, or not as it must be: the numbers and the remedy.
        """
        plans = timer_topic_plans(settings)
        configs = self.topic_settings([plan.name for plan in plans])
        self._require(self._compare(plans, configs))

    def require_topics(self, settings: Settings, *, served: bool = False) -> None:
        """As `require_timer_topics`, for all of duewheel's topics.

        Args:
            served: the shard has run before, so that timers are waiting: missing topics of dead
                letters and replies then only delay dead letters and replies, and ingest reports
                timer topics that are wrong (discovery.py).
        """
        findings = self.topic_findings(settings)
        if served:
            spared = {settings.dead_letter_topic, settings.timer.reply_topic}
            for finding in findings:
                if finding.topic in spared and finding.state is TopicState.MISSING:
                    log.error("a topic is missing: `duewheel init` creates it", topic=finding.topic)
            refused = {TopicState.MISSING, TopicState.DIFFERS}
            findings = [
                each
                for each in findings
                if (each.topic not in settings.timer.topics or each.state not in refused)
                and (each.topic not in spared or each.state is not TopicState.MISSING)
            ]
        self._require(findings)

    def topic_findings(self, settings: Settings) -> list[TopicFinding]:
        """Checks duewheel's topics without creating, changing or refusing any."""
        timer_plans = timer_topic_plans(settings)
        names = [*settings.timer.topics, *settings.service_topics.values()]
        configs = self.topic_settings(names)
        timer_configs = [configs[plan.name] for plan in timer_plans if plan.name in configs]
        return self._compare([*timer_plans, *service_plans(settings, timer_configs)], configs)

    def timer_topic_findings(
        self, settings: Settings, topics: Sequence[str]
    ) -> dict[str, list[TopicFinding]]:
        """Why existing topics should not be read as timer topics, by topic: their own settings,
        or too little room for their messages in the topics of dead letters and replies. Also
        settings that cannot be checked: the right is missing, or the broker hides them.
        """
        services = sorted(settings.service_topics.values())
        configs = self.topic_settings([*topics, *services]) if topics else {}
        findings: dict[str, list[TopicFinding]] = {}
        for topic in topics:
            if topic not in configs:
                findings[topic] = [TopicFinding(topic, TopicState.UNREADABLE)]
                continue
            plans = [timer_topic_plan(settings, topic)]
            plans += room_plans(settings, configs[topic])
            compared = [
                finding
                for plan in plans
                if plan.name in configs
                for finding in compare(plan, 0, configs[plan.name])
            ]
            findings[topic] = [
                finding
                for finding in compared
                if finding.state is TopicState.DIFFERS
                or (finding.state is TopicState.WITHHELD and finding.topic == topic)
            ]
        return findings

    def _compare(
        self, plans: Sequence[TopicPlan], configs: Mapping[str, Mapping[str, str]]
    ) -> list[TopicFinding]:
        partitions = self.partition_counts([plan.name for plan in plans])
        findings = []
        for plan in plans:
            if plan.name not in partitions:
                findings.append(TopicFinding(plan.name, TopicState.MISSING))
            elif plan.name not in configs:
                findings.append(TopicFinding(plan.name, TopicState.UNREADABLE))
            else:
                findings += compare(plan, partitions[plan.name], configs[plan.name])
        return findings

    def _require(self, findings: Sequence[TopicFinding]) -> None:
        missing = [finding.topic for finding in findings if finding.state is TopicState.MISSING]
        if missing:
            raise ConfigError(
                f"Kafka at {self.clients.address} has no topic {', '.join(missing)}: "
                "`duewheel init` creates what is missing"
            )
        self._warn(findings)
        differences = [finding for finding in findings if finding.state is TopicState.DIFFERS]
        if differences:
            raise ConfigError(differences_text(self.clients.address, differences))

    def _warn(self, findings: Sequence[TopicFinding]) -> None:
        unreadable = [
            finding.topic for finding in findings if finding.state is TopicState.UNREADABLE
        ]
        if unreadable:
            log.warning(
                "topic settings cannot be checked: the right DescribeConfigs is missing",
                topics=unreadable,
            )
        for finding in findings:
            if finding.state is TopicState.WITHHELD:
                log.warning(
                    "a topic setting cannot be checked: the broker hides it",
                    topic=finding.topic,
                    setting=finding.setting,
                    wanted=finding.wanted,
                )
            if finding.state is TopicState.COSTLY:
                log.warning(
                    "a topic setting costs time",
                    topic=finding.topic,
                    reason=described(finding),
                    remedy=remedy_command(self.clients.address, finding.topic, finding.remedy),
                )

    def missing_targets(self, settings: Settings) -> list[str]:
        """The targets that the configuration names in full and that do not exist."""
        targets = settings.timer.named_targets
        existing = self.partition_counts(targets)
        return [target for target in targets if target not in existing]

    def create_topic(self, name: str, partitions: int | None) -> None:
        """Creates a topic with the broker's defaults, for partitions too if that is None."""
        self.create([TopicPlan(name, partitions=partitions)])

    def have_partitions(self, topic: str, count: int) -> None:
        """Raises a topic's partitions to `count`, and waits until all of them have a leader. A
        topic with more is left as it is.

        Raises:
            ConfigError: there is no such topic, or it may not be altered.
            Unacknowledged: it has not got so many in time, and may get them later.
        """
        deadline = self.deadline()
        requested = False
        while True:
            found = self.existing([topic])
            if topic not in found:
                raise ConfigError(f"there is no topic {topic!r}: `duewheel init` creates it")
            partitions = found[topic].partitions
            if len(partitions) >= count and all(each.leader >= 0 for each in partitions):
                return
            if len(partitions) < count and not requested:
                # Refused if another shard's `init` was quicker: the next turn sees its partitions.
                self.call(
                    f"add partitions to {topic}",
                    lambda c: c.create_partitions({topic: count}, raise_errors=False),
                    writes=True,
                )
                requested = True
            if not deadline.remaining_s():
                raise Unacknowledged(
                    f"Kafka at {self.clients.address}: topic {topic!r} needs {count} partitions "
                    f"with leaders, and has {len(partitions)} after {self._deadline_s:g} s: "
                    "adding some needs the right Alter on it"
                )
            time.sleep(_POLL_S)

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
            findings += compare(plan, partitions[plan.name], configs[plan.name])
        return findings

    def create(self, plans: Sequence[TopicPlan], replication_factor: int = -1) -> set[str]:
        """Creates topics; those that Kafka refuses, once more without advisory settings. Returns
        the names of the latter. One that exists is left as it is.

        Raises:
            ConfigError: Kafka refuses to create one; the message says why.
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
        for name, why in refused.items():
            raise ConfigError(
                f"Kafka at {self.clients.address} does not create topic {name!r}: "
                f"{type(why).__name__}: {why.args[0]}"
            )
        timeout_ms = int(self._deadline_s * 1000)
        wanted = [plan.name for plan in plans]
        self.call("wait for topics", lambda c: c.wait_for_topics(wanted, timeout_ms), writes=True)
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
        answer = self.call(
            "create topics", lambda c: c.create_topics(wanted, raise_errors=False), writes=True
        )
        return {
            row["name"]: for_code(row["error_code"])(row.get("error_message") or "no reason given")
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
