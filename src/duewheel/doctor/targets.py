"""Checks the targets that the configuration names, and that each timer topic is open for some."""

from __future__ import annotations

import re
from collections.abc import Sequence

from duewheel.config.keys_and_defaults import TimerSection
from duewheel.doctor.cluster import Cluster
from duewheel.doctor.findings import Check, Findings
from duewheel.doctor.remedies import KafkaCommands
from duewheel.kafka.topics.description import Topic
from duewheel.schemas.name_patterns import of_shell

_BYTES_MAX = "max.message.bytes"


def examine(cluster: Cluster) -> Findings:
    """Checks which targets timer topics are open for, then the targets themselves."""
    timer, commands = cluster.settings.timer, cluster.commands
    yield from check_open_targets(timer)
    topics = cluster.topics
    targets = [topics[name] for name in timer.named_targets]
    for target in targets:
        if target.is_absent:
            create = commands.topic("create", target.name)
            yield Check("target_missing", f"topic {target.name}").error(
                "the configuration names it as a target, and it does not exist: its messages "
                "become dead letters",
                f"`duewheel topic create {target.name}`, or {create}",
            )
    contracts, default = timer.contracts, timer.default_contract
    opened = {n: of_shell(contracts.get(n, default).open_targets) for n in cluster.timer_topics}
    for target in targets:
        timers = [topics[name] for name, names in opened.items() if re.search(names, target.name)]
        yield from check_size(timers, target, commands)


def check_open_targets(timer: TimerSection) -> Findings:
    """Checks that each timer topic is open for a target."""
    for topic, opened in timer.open_targets.items():
        subject = "topics of the pattern" if topic == "*" else f"topic {topic}"
        check = Check("open_targets", subject)
        if opened:
            yield check.ok(f"open for {', '.join(opened)}")
        else:
            remedy = "name targets in timer.targets, or one in timer.mapping; duewheel reconfigure"
            yield check.warning("open for none: all dead letters", remedy)


def check_size(timers: Sequence[Topic], target: Topic, commands: KafkaCommands) -> Findings:
    """Checks that a target takes every message that the timer topics open for it take."""
    sizes_max = [int(topic.config[_BYTES_MAX]) for topic in timers if _BYTES_MAX in topic.config]
    if not sizes_max or _BYTES_MAX not in target.config:
        return
    needed, most = max(sizes_max), int(target.config[_BYTES_MAX])
    check = Check("message_size", f"topic {target.name}")
    found = f"{_BYTES_MAX} is {most}, the timer topics' {needed}"
    if most < needed:
        remedy = commands.setting(target.name, f"{_BYTES_MAX}={needed}")
        yield check.warning(f"{found}: a larger message becomes a dead letter", remedy)
    else:
        yield check.ok(found)
