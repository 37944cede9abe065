"""Finds targets whose own settings make an append slow.

Each row of a transaction waits for the slowest append, and the owner of a topic decides how slow
that is: with `flush.messages=1` an append costs a broker 4 to 25 ms, with `segment.ms=1` 11 ms. So
a transaction has a small share for such targets (wheel/dequeue/slow_rows.py), and the timer topics
that have it rest after one that took long (resting_timer_topics.py). Their neighbours wait half a
second, or for one larger row.

A setting of the broker, for all topics alike, is the operator's choice: it makes none slow.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from duewheel.kafka.topics.description import TopicSettings
from duewheel.wheel.target_rules import Target

# An append below the value ends a segment, waits for the disk, or is one of many.
_LEAST = {
    "flush.messages": 1_000,
    "segment.ms": 600_000,  # a thousand partitions that begin one together take 5 s
    "max.compaction.lag.ms": 600_000,  # Kafka takes the smaller one if it compacts the topic
    "segment.bytes": 1 << 20,
    "internal.segment.bytes": 1 << 20,  # in its place; any client may set it
    "segment.index.bytes": 4_096,
    "max.message.bytes": 4_096,
    "max.decompressed.message.bytes": 4_096,
}
NAMES = tuple(_LEAST)
_LOGGED_MAX = 1_000
_SHOWN_MAX = 20

log = structlog.get_logger(__name__)


def slow_by(settings: TopicSettings) -> str:
    """The topic's own setting, with its value, that makes appends slow; empty if there is none."""
    for name, least in _LEAST.items():
        if name in settings.own and int(settings.values[name]) < least:
            return f"{name}={settings.values[name]}"
    return ""


class SlowTargetLog:
    """Logs slow targets once each. The publisher's thread owns it."""

    def __init__(self) -> None:
        self._logged = dict[str, str]()

    def log_new(self, targets: Mapping[str, Target]) -> None:
        """Logs targets that have become slow since they were last seen."""
        new = dict[str, str]()
        for topic, target in targets.items():
            if target.slow_by != self._logged.get(topic, ""):
                new[topic] = target.slow_by
        self._logged.update(new)
        if len(self._logged) > _LOGGED_MAX:
            self._logged = {topic: by for topic, by in new.items() if by}
        slow = [f"{topic}: {by}" for topic, by in new.items() if by]
        if slow:
            log.warning(
                "settings make appends slow: timers of these targets get a tenth of the time",
                count=len(slow),
                targets=slow[:_SHOWN_MAX],
            )
