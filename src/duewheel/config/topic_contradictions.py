"""Rules between the settings that name topics. Each rule yields (key, reason)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from duewheel.config.keys_and_defaults import TimerTopic
from duewheel.config.nearest_name import nearest
from duewheel.schemas.request.topic_settings import CANCEL, FIRE, KEY, NATIVE

if TYPE_CHECKING:
    from duewheel.config.settings import Settings


def topic_problems(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yields every contradiction between topics."""
    timer, topics, own = settings.timer, settings.timer.topics, settings.service_topics
    if not topics and timer.topics_pattern is None:
        yield "timer.topics", "name at least one, or give timer.topics_pattern"
    if len(set(topics)) < len(topics):
        yield "timer.topics", "names a topic twice"
    for key, topic in own.items():
        if topic in topics:
            yield key, f'"{topic}" is a timer topic: its messages would be read as timers'
    if settings.state_topic == settings.dead_letter_topic:
        yield "timer.state_topic", "is the dead-letter topic: the state topic is compacted"
    if timer.reply_topic in {settings.dead_letter_topic, settings.state_topic}:
        yield "timer.reply_topic", "is the dead-letter or the state topic: replies need their own"
    for key in ("timer.receipts_topic", "serve.changes_topic"):
        if list(own.values()).count(own.get(key, "")) > 1:
            yield key, "is another topic of duewheel's own"
    yield from _mapping_problems(settings)


def _mapping_problems(settings: Settings) -> Iterator[tuple[str, str]]:
    timer = settings.timer
    for topic in timer.mapping:
        if topic not in settings.timer_topics:
            yield "timer.mapping", f'"{topic}" is no timer topic{nearest(topic, timer.topics)}'
    named = [("timer.mapping", target) for target in timer.mapping.values()]
    named += [
        (f"timer.topic.{topic}.target", table.target)
        for topic, table in timer.topic.items()
        if table.target is not None
    ]
    for key, target in named:
        if target in timer.topics or target in settings.service_topics.values():
            yield key, f'"{target}" is one of duewheel\'s own topics, no target'
        elif target in settings.timer_topics:
            pattern = "matches timer.topics_pattern: it would be read as a timer topic"
            yield key, f'"{target}" {pattern}, and is no target'
    for topic, table in timer.topic.items():
        for key, reason in _table_problems(settings, topic, table):
            yield f"timer.topic.{topic}{key}", reason


def _table_problems(settings: Settings, topic: str, table: TimerTopic) -> Iterator[tuple[str, str]]:
    """Yields (".key", reason) for the table of one topic."""
    timer = settings.timer
    if topic not in settings.timer_topics:
        yield "", f"is no timer topic{nearest(topic, timer.topics)}"
    if table.headers != NATIVE:
        if table.id != KEY:
            yield ".id", f'"{table.headers}" messages have no ids but their keys: "key", or nothing'
        if table.null_value != CANCEL:
            yield ".null_value", f'"{table.headers}" cancels by null values: "cancel", or nothing'
    if table.target is not None and timer.mapping.get(topic, table.target) != table.target:
        yield ".target", f'is "{table.target}", timer.mapping says "{timer.mapping[topic]}"'
    longest, key = timer.max_delay, "timer.max_delay"
    if table.max_delay is not None and table.max_delay > longest:
        yield ".max_delay", "is longer than timer.max_delay, which holds for all timer topics"
    elif table.max_delay is not None:
        longest, key = table.max_delay, "max_delay"
    if table.delay is not None and table.delay > longest:
        yield ".delay", f"is longer than {key}: each message without another is refused"
    if table.delay == timedelta(0) and table.past_due != FIRE:
        yield ".delay", 'is past due at once, and past_due = "dead-letter" refuses that'
