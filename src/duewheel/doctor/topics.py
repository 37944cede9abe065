"""Checks the settings of duewheel's topics and of the targets that the configuration names.

The checks of a start (kafka/topics) become findings here. The others are those that a start leaves
to the operator: replicas, elections that lose records, sizes, targets that are missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from duewheel.api.examination import Severity
from duewheel.config.keys_and_defaults import TimerSection
from duewheel.doctor import shard
from duewheel.doctor.cluster import Cluster
from duewheel.doctor.findings import Diagnosis, acl_command, diagnose
from duewheel.kafka.topics.description import Topic
from duewheel.kafka.topics.requirements import TopicFinding, remedy_command
from duewheel.kafka.topics.transaction_settings import SPAN_MIN_MS, unsurvivable

_TRANSACTION_LOG = "__transaction_state"
_IN_SYNC_MIN = "min.insync.replicas"
_UNCLEAN = "unclean.leader.election.enable"
_BYTES_MAX = "max.message.bytes"
_REPLICAS = 3  # with 2, a failure during maintenance of the other broker stops all writes


def examine(cluster: Cluster) -> Iterator[Diagnosis]:
    """Checks the topics, then the shard (shard.py)."""
    settings, own = cluster.settings, cluster.own_topics
    targets = settings.timer.named_targets
    yield from open_targets(settings.timer)
    for found in cluster.admin.topic_findings(settings):
        yield as_finding(found, cluster.address)
    yield from _matching(cluster)
    topics = cluster.admin.topics([*own, *targets, _TRANSACTION_LOG])
    existing = {name: topic for name, topic in topics.items() if topic.exists}
    for topic in existing.values():
        yield from durability(topic, cluster.address)
        yield from survivable(topic, cluster.address)
    for target in targets:
        if not topics[target].exists and not topics[target].is_forbidden:
            yield _missing_target(target, cluster.address)
    timers = [existing[name] for name in cluster.timer_topics if name in existing]
    yield from sizes(
        timers, [existing[name] for name in targets if name in existing], cluster.address
    )
    yield from shard.examine(cluster, timers, is_whole=existing.keys() >= set(own))


def _matching(cluster: Cluster) -> Iterator[Diagnosis]:
    """Checks topics that match the pattern; ingest does not read one with a problem."""
    listed = cluster.settings.timer.topics
    matching = [name for name in cluster.timer_topics if name not in listed]
    by_topic = cluster.admin.timer_topic_findings(cluster.settings, matching)
    for topic, findings in by_topic.items():
        if not findings:
            yield as_finding(TopicFinding(topic, "found"), cluster.address)
        for found in findings:
            finding = replace(as_finding(found, cluster.address), severity="warning")
            yield replace(finding, found=f"{finding.found} (so {topic} is not read, if it is new)")


def as_finding(line: TopicFinding, address: str) -> Diagnosis:
    """Converts a finding of a start's checks."""
    about = f"wanted is {line.wanted}: {line.reason}"
    severity: Severity = "warning"
    match line.state:
        case "missing":
            severity, text, remedy = "error", "there is no such topic", "duewheel init"
        case "unreadable":
            text = "no right to read its settings: they are not checked"
            remedy = acl_command(address, "User:…", ["DESCRIBE_CONFIGS"], f"--topic {line.topic}")
        case "withheld":
            text = f"{line.setting} is hidden by the broker, {about}"
            remedy = "ask the broker's vendor for its value"
        case "differs" | "costly":
            severity = "error" if line.state == "differs" else "warning"
            text = f"{line.setting} is {line.actual}, {about}"
            remedy = line.reason
            if line.remedy:
                remedy = remedy_command(address, line.topic, line.remedy)
        case _:
            severity, text, remedy = "ok", "as it must be", ""
    return Diagnosis("topic_settings", severity, f"topic {line.topic}", text, remedy)


def durability(topic: Topic, address: str) -> Iterator[Diagnosis]:
    """Checks which failures lose acknowledged records of a topic, and which stop its writes."""
    problems = list(_problems(topic, address))
    for severity, found, remedy in problems:
        yield Diagnosis("durability", severity, f"topic {topic.name}", found, remedy)
    if not problems:
        found = f"{_replicas(topic)} replicas, {_IN_SYNC_MIN} {topic.config.get(_IN_SYNC_MIN, '?')}"
        yield Diagnosis("durability", "ok", f"topic {topic.name}", found)


def _replicas(topic: Topic) -> int:
    return min((each.replicas for each in topic.partitions), default=0)


def _problems(topic: Topic, address: str) -> Iterator[tuple[Severity, str, str]]:
    replicas, in_sync_min = _replicas(topic), int(topic.config.get(_IN_SYNC_MIN, 1))

    def set_to(value: str) -> str:
        return remedy_command(address, topic.name, value)

    leaderless = [each.number for each in topic.partitions if each.leader < 0]
    lagging = [each.number for each in topic.partitions if each.in_sync < each.replicas]
    status = f"kafka-topics.sh --bootstrap-server {address} --describe --topic {topic.name}"
    if leaderless:
        yield "error", f"partitions {leaderless} have no leader", status
    if lagging:
        yield "warning", f"partitions {lagging} have replicas that are not in sync", status
    if topic.config.get(_UNCLEAN) == "true":
        text = f"{_UNCLEAN} is true: acknowledged records, progress too, may vanish"
        yield "error", text, set_to(f"{_UNCLEAN}=false")
    if replicas == 1:
        text = "1 replica: a loss of its host loses acknowledged records"
        remedy = f"give each {_REPLICAS} with kafka-reassign-partitions.sh --bootstrap-server"
        yield "warning", text, f"{remedy} {address}; `duewheel init --replication-factor 3` for new"
    elif _IN_SYNC_MIN not in topic.config:
        return
    elif in_sync_min == 1:
        text = f"{replicas} replicas, {_IN_SYNC_MIN} 1: a record is acknowledged with one copy"
        yield "warning", text, set_to(f"{_IN_SYNC_MIN}=2")
    elif in_sync_min >= replicas:
        text = f"{replicas} replicas, {_IN_SYNC_MIN} {in_sync_min}: no writes with one broker away"
        yield "warning", text, set_to(f"{_IN_SYNC_MIN}={replicas - 1}")


def survivable(topic: Topic, address: str) -> Iterator[Diagnosis]:
    """Checks for a setting that no transaction survives."""
    found = unsurvivable(topic.config)
    if found:
        name, value = found
        text = f"{name} is {value}, below {SPAN_MIN_MS}: Kafka may refuse the end of a transaction "
        text += "there, so its timers are parked"
        remedy = remedy_command(address, topic.name, f"{name}=3600000")
        yield Diagnosis("transaction_settings", "error", f"topic {topic.name}", text, remedy)


def sizes(timers: Sequence[Topic], targets: Sequence[Topic], address: str) -> Iterator[Diagnosis]:
    """Checks that a target takes every message that a timer topic takes."""
    sizes_max = [int(topic.config[_BYTES_MAX]) for topic in timers if _BYTES_MAX in topic.config]
    for target in targets if sizes_max else ():
        if _BYTES_MAX not in target.config:
            continue
        most, needed = int(target.config[_BYTES_MAX]), max(sizes_max)
        yield diagnose(
            "message_size",
            f"topic {target.name}",
            f"{_BYTES_MAX} is {most}, the timer topics' {needed}"
            + ("" if most >= needed else ": a larger message becomes a dead letter"),
            warning=most < needed,
            remedy=remedy_command(address, target.name, f"{_BYTES_MAX}={needed}"),
        )


def open_targets(timer: TimerSection) -> Iterator[Diagnosis]:
    """Checks that each timer topic is open for a target."""
    for topic, opened in timer.open_targets.items():
        yield diagnose(
            "open_targets",
            "topics of the pattern" if topic == "*" else f"topic {topic}",
            f"open for {', '.join(opened)}" if opened else "open for none: all dead letters",
            warning=not opened,
            remedy="name targets in timer.targets, or one in timer.mapping; duewheel reconfigure",
        )


def _missing_target(topic: str, address: str) -> Diagnosis:
    return Diagnosis(
        "target_missing",
        "error",
        f"topic {topic}",
        "the configuration names it as a target, and it does not exist: its messages become "
        "dead letters",
        f"`duewheel topic create {topic}`, or kafka-topics.sh --bootstrap-server {address} "
        f"--create --topic {topic}",
    )
