"""Checks each topic: its settings, and how well its records are kept.

The checks of a start (kafka/topics) become findings here. The others are those that a start leaves
to the operator: replicas, elections that lose records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import assert_never

from kafka.errors import for_code

from duewheel.api.examination import DoctorFinding, Severity
from duewheel.doctor.cluster import Cluster
from duewheel.doctor.findings import Check, Findings
from duewheel.doctor.remedies import KafkaCommands
from duewheel.kafka.topics.description import Topic
from duewheel.kafka.topics.requirements import TopicFinding, TopicState, described
from duewheel.kafka.topics.topic_checks import findings_of, timer_findings_of
from duewheel.kafka.topics.transaction_settings import USUAL, unsurvivable

_IN_SYNC_MIN = "min.insync.replicas"
_UNCLEAN = "unclean.leader.election.enable"
_REPLICAS = 3  # with 2, a failure during maintenance of the other broker stops all writes


def examine(cluster: Cluster) -> Findings:
    """Compares duewheel's topics with their requirements; checks all that are described."""
    settings, topics, commands = cluster.settings, cluster.topics, cluster.commands
    configs = {name: topic.config for name, topic in topics.items() if topic.config}
    # Also of topics that may not be described: their settings are not readable either.
    counts = {name: len(each.partitions) for name, each in topics.items() if not each.is_absent}
    known = {n for n, each in topics.items() if each.exists or each.is_absent or each.is_forbidden}
    for found in findings_of(settings, configs, counts):
        if found.topic in known:
            yield as_finding(found, commands)
    others = [name for name in cluster.timer_topics if name not in settings.timer.topics]
    matching = [name for name in others if topics[name].exists]
    yield from check_matching(timer_findings_of(settings, matching, configs), commands)
    for name, topic in topics.items():
        if name not in known:  # without a leader, say: neither there nor gone
            reason = for_code(topic.error_code).__name__
            text = f"Kafka does not describe it at the moment: {reason}"
            yield Check("durability", f"topic {name}").error(text, commands.topic("describe", name))
        elif topic.exists:
            yield from check_durability(topic, commands, is_own=name in cluster.own_topics)
            yield from check_survivable(topic, commands)


def check_matching(
    by_topic: Mapping[str, Sequence[TopicFinding]], commands: KafkaCommands
) -> Findings:
    """Checks topics that match the pattern; a new one with wrong settings is not read."""
    for topic, findings in by_topic.items():
        for found in findings or [TopicFinding(topic, TopicState.RIGHT)]:
            finding = as_finding(found, commands)
            if found.state is TopicState.DIFFERS:
                text = f"{finding.found} (so {topic} is not read, if it is new)"
                finding = finding.model_copy(update={"severity": "warning", "found": text})
            yield finding


def as_finding(line: TopicFinding, commands: KafkaCommands) -> DoctorFinding:
    """Converts a finding of a start's checks."""
    severity: Severity = "warning"
    match line.state:
        case TopicState.MISSING:
            severity, text, remedy = "error", "there is no such topic", "duewheel init"
        case TopicState.UNREADABLE:
            text = "no right to read its settings: they are not checked"
            remedy = commands.acl(["DESCRIBE_CONFIGS"], f"--topic {line.topic}")
        case TopicState.WITHHELD:
            text = f"{line.setting} is hidden by the broker, wanted is {line.wanted}: {line.reason}"
            remedy = "ask the broker's vendor for its value"
        case TopicState.DIFFERS | TopicState.UNREAD | TopicState.COSTLY:
            severity = "error" if line.state is TopicState.DIFFERS else "warning"
            text = described(line)
            remedy = commands.setting(line.topic, line.remedy) if line.remedy else line.reason
        case TopicState.RIGHT | TopicState.CREATED:
            severity, text, remedy = "ok", "as it must be", ""
        case _:
            assert_never(line.state)
    return Check("topic_settings", f"topic {line.topic}").of(severity, text, remedy)


def check_durability(topic: Topic, commands: KafkaCommands, *, is_own: bool) -> Findings:
    """Checks which failures lose acknowledged records of a topic, and which stop its writes."""
    check = Check("durability", f"topic {topic.name}")
    problems = list(_problems(topic, commands, is_own=is_own))
    for problem in problems:
        yield check.of(*problem)
    if not problems:
        in_sync_min = topic.config.get(_IN_SYNC_MIN, "?")
        yield check.ok(f"{_replicas(topic)} replicas, {_IN_SYNC_MIN} {in_sync_min}")


def _replicas(topic: Topic) -> int:
    return min((each.replicas for each in topic.partitions), default=0)


def _problems(
    topic: Topic, commands: KafkaCommands, *, is_own: bool
) -> Iterator[tuple[Severity, str, str]]:
    replicas, in_sync_min = _replicas(topic), int(topic.config.get(_IN_SYNC_MIN, 1))

    def set_to(value: str) -> str:
        return commands.setting(topic.name, value)

    more = commands.replicas(_REPLICAS, is_own=is_own)
    leaderless = [each.number for each in topic.partitions if each.leader < 0]
    lagging = [each.number for each in topic.partitions if each.in_sync < each.replicas]
    status = commands.topic("describe", topic.name)
    if leaderless:
        yield "error", f"partitions {leaderless} have no leader", status
    if lagging:
        yield "warning", f"partitions {lagging} have replicas that are not in sync", status
    if topic.config.get(_UNCLEAN) == "true":
        text = f"{_UNCLEAN} is true: acknowledged records, progress too, may vanish"
        yield "error", text, set_to(f"{_UNCLEAN}=false")
    if replicas == 1:
        text = "1 replica: a loss of its host loses acknowledged records"
        yield "warning", text, more
    elif _IN_SYNC_MIN not in topic.config:
        return
    elif in_sync_min == 1:
        text = f"{replicas} replicas, {_IN_SYNC_MIN} 1: a record is acknowledged with one copy"
        # Of two replicas neither value will do: each would be set to the other.
        yield "warning", text, set_to(f"{_IN_SYNC_MIN}=2") if replicas >= _REPLICAS else more
    elif in_sync_min >= replicas:
        text = f"{replicas} replicas, {_IN_SYNC_MIN} {in_sync_min}: no writes with one broker away"
        fewer = set_to(f"{_IN_SYNC_MIN}={replicas - 1}")
        yield "warning", text, fewer if replicas >= _REPLICAS else more


def check_survivable(topic: Topic, commands: KafkaCommands) -> Findings:
    """Checks for a setting that no transaction survives."""
    found = unsurvivable(topic.config)
    if found:
        yield Check("transaction_settings", f"topic {topic.name}").error(
            f"{found.name} is {found.value}, below {found.least}: Kafka may refuse the end of a "
            "transaction there, so its timers are parked",
            commands.setting(topic.name, f"{found.name}={USUAL}"),
        )
