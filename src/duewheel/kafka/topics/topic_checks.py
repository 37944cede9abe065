"""Compares existing topics with requirements.py, to find differences or to refuse them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import structlog

from duewheel.config.settings import Settings
from duewheel.errors import ConfigError
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

Configs = Mapping[str, Mapping[str, str]]  # the settings of topics, as far as they are readable

log = structlog.get_logger(__name__)


def findings_of(
    settings: Settings, configs: Configs, counts: Mapping[str, int]
) -> list[TopicFinding]:
    """Compares duewheel's topics, by their settings and their numbers of partitions."""
    timer_plans = timer_topic_plans(settings)
    timer_configs = [configs[plan.name] for plan in timer_plans if plan.name in configs]
    return _compared([*timer_plans, *service_plans(settings, timer_configs)], configs, counts)


def timer_findings_of(
    settings: Settings, topics: Sequence[str], configs: Configs
) -> dict[str, list[TopicFinding]]:
    """Why existing topics should not be read as timer topics, by topic: their own settings, or too
    little room for their messages in the topics of dead letters and replies. Also settings that
    cannot be checked: the right is missing, or the broker hides them.
    """
    findings: dict[str, list[TopicFinding]] = {}
    for topic in topics:
        if topic not in configs:
            findings[topic] = [TopicFinding(topic, TopicState.UNREADABLE)]
            continue
        plans = [timer_topic_plan(settings, topic), *room_plans(settings, configs[topic])]
        findings[topic] = [
            finding
            for plan in plans
            if plan.name in configs
            for finding in compare(plan, configs[plan.name])
            if finding.state is TopicState.DIFFERS
            or (finding.state is TopicState.WITHHELD and finding.topic == topic)
        ]
    return findings


def _compared(
    plans: Sequence[TopicPlan], configs: Configs, counts: Mapping[str, int]
) -> list[TopicFinding]:
    findings = []
    for plan in plans:
        if plan.name not in counts:
            findings.append(TopicFinding(plan.name, TopicState.MISSING))
        elif plan.name not in configs:
            findings.append(TopicFinding(plan.name, TopicState.UNREADABLE))
        else:
            findings += compare(plan, configs[plan.name], counts[plan.name])
    return findings


class TopicChecks(TopicReader):
    """A reader that checks topics, and changes none."""

    def matching_topics(self, settings: Settings) -> list[str]:
        """The topics of the cluster that match the pattern of timer topics and are not listed."""
        if settings.timer.topics_pattern is None:
            return []
        matching = {name for name in self.topic_names() if settings.timer_topics.matches(name)}
        return sorted(matching - set(settings.timer.topics))

    def missing_targets(self, settings: Settings) -> list[str]:
        """The targets that the configuration names in full and that do not exist."""
        targets = settings.timer.named_targets
        existing = self.partition_counts(targets)
        return [target for target in targets if target not in existing]

    def require_timer_topics(self, settings: Settings) -> None:
        """Refuses to work on timer topics that could lose messages or misread their due times.

        Without the right DescribeConfigs the check only warns: many clusters do not grant it, and
        there the operators care for the topics.

        Raises:
            ConfigError: a topic is missing, or not as it must be: the numbers and the remedy.
        """
        plans = timer_topic_plans(settings)
        names = [plan.name for plan in plans]
        configs, counts = self.topic_settings(names), self.partition_counts(names)
        self._refuse_or_warn(_compared(plans, configs, counts))

    def require_topics(self, settings: Settings, *, served: bool = False) -> None:
        """As `require_timer_topics`, for all of duewheel's topics.

        Args:
            served: the shard has run before, so that timers are waiting: missing topics of dead
                letters and replies then only delay dead letters and replies, that of changes stops
                changes by the API, and ingest reports timer topics that are wrong (discovery.py).
        """
        findings = self.topic_findings(settings)
        if served:
            spared = {settings.dead_letter_topic, settings.timer.reply_topic}
            spared.add(settings.serve.changes_topic)
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
        self._refuse_or_warn(findings)

    def topic_findings(self, settings: Settings) -> list[TopicFinding]:
        """Checks duewheel's topics without creating, changing or refusing any."""
        names = [*settings.timer.topics, *settings.service_topics.values()]
        return findings_of(settings, self.topic_settings(names), self.partition_counts(names))

    def timer_topic_findings(
        self, settings: Settings, topics: Sequence[str]
    ) -> dict[str, list[TopicFinding]]:
        """As `timer_findings_of`, of topics as they are now."""
        services = sorted(settings.service_topics.values())
        configs = self.topic_settings([*topics, *services]) if topics else {}
        return timer_findings_of(settings, topics, configs)

    def _refuse_or_warn(self, findings: Sequence[TopicFinding]) -> None:
        address = self.clients.address
        of = {state: [each for each in findings if each.state is state] for state in TopicState}
        if missing := of[TopicState.MISSING]:
            raise ConfigError(
                f"Kafka at {address} has no topic {', '.join(each.topic for each in missing)}: "
                "`duewheel init` creates what is missing"
            )
        if unreadable := of[TopicState.UNREADABLE]:
            log.warning(
                "topic settings cannot be checked: the right DescribeConfigs is missing",
                topics=[each.topic for each in unreadable],
            )
        for each in of[TopicState.WITHHELD]:
            log.warning(
                "a topic setting cannot be checked: the broker hides it",
                topic=each.topic,
                setting=each.setting,
                wanted=each.wanted,
            )
        for each in of[TopicState.COSTLY]:
            log.warning(
                "a topic setting costs time",
                topic=each.topic,
                reason=described(each),
                remedy=remedy_command(address, each.topic, each.remedy),
            )
        if differences := of[TopicState.DIFFERS]:
            raise ConfigError(differences_text(address, differences))
