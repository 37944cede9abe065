"""Compares the settings in a progress (checkpoints/config_epochs.py) with the configuration file,
in the file's names and units.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from duewheel.checkpoints.config_epochs import (
    DEFAULT_TOPIC,
    PRECISION,
    ROLL_SPREAD,
    TARGETS,
    TOPICS,
    WINDOW,
)
from duewheel.config.durations import format_duration_ms
from duewheel.config.settings import Settings
from duewheel.schemas.name_patterns import NONE

RULES, ROLLS = "rules of this version", "spread of rolls in this version"
OWN_TOPICS = "timer.topics and duewheel's own topics"
# The progress has one list of them all, without the names of their settings.
CLOSED, PARAMETERS = "forbidden_targets", "parameters"


def changed(
    old: Mapping[str, Any], settings: Settings, new: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Compares the newest epoch's values with those that the configuration gives.

    Returns:
        Old and new value by setting; None: not set. Durations are texts.
    """
    was, now = dict(_settings(old)), dict(_settings(new))
    pairs = {key: (was.get(key), now.get(key)) for key in sorted(was.keys() | now)}
    pairs |= _own_topics(set(old.get(PARAMETERS, {}).get(CLOSED, ())), settings)
    return {key: (a, b) for key, (a, b) in pairs.items() if a != b}


def _settings(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "timer.precision_ms", values.get(PRECISION)
    yield "timer.roll_window", _duration(values.get(WINDOW))
    yield "timer.levels", [_duration(level) for level in values.get("levels_ms", ())]
    parameters = values.get(PARAMETERS, {})
    yield "timer.max_delay", _duration(parameters.get("max_delay_ms"))
    pattern = parameters.get("timer_topics")
    yield "timer.topics_pattern", None if pattern == NONE else pattern
    yield RULES, values.get("rules")
    yield ROLLS, values.get(ROLL_SPREAD)
    default = values.get(DEFAULT_TOPIC, {})
    yield "timer.targets", default.get(TARGETS)
    for topic, table in values.get(TOPICS, {}).items():
        for key, value in table.items():
            if key == "target":
                yield f'timer.mapping."{topic}"', value
            elif key.endswith("_ms"):
                yield f'timer.topic."{topic}".{key.removesuffix("_ms")}', _duration(value)
            elif value != default.get(key):
                yield f'timer.topic."{topic}".{key}', value


def _own_topics(old: set[str], settings: Settings) -> dict[str, tuple[Any, Any]]:
    """Compares the topics that are no targets: timer topics, and duewheel's own."""
    service = settings.service_topics
    removed = sorted(old - {*settings.timer.topics, *service.values()})
    renamed = [key for key, topic in service.items() if topic not in old]
    added = [topic for topic in settings.timer.topics if topic not in old]
    if not added and len(renamed) == 1 and len(removed) <= 1:
        return {renamed[0]: (removed[0] if removed else None, service[renamed[0]])}
    if added and not renamed and not removed:
        listed = settings.timer.topics
        return {"timer.topics": ([t for t in listed if t in old], list(listed))}
    return {OWN_TOPICS: (removed, [*added, *(service[key] for key in renamed)])}


def _duration(value_ms: int | None) -> str | None:
    return None if value_ms is None else format_duration_ms(value_ms)
