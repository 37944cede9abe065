"""The timer topic that a request names: one of these settings."""

from __future__ import annotations

from duewheel.client.handle import RecallHandle
from duewheel.config.nearest_name import nearest
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, InvalidTimer
from duewheel.schemas.name_patterns import may_name_topic
from duewheel.schemas.topic_scope import NO_TOPICS, TopicScope


def timer_topic_of(settings: Settings, given: str | None) -> str:
    """The timer topic that a caller names; by default the first.

    Raises:
        ConfigError: there is none, or no such one.
    """
    if given is None and not settings.timer.topics:
        raise ConfigError("timer.topics names none: name the timer topic")
    # timer.topics_pattern may match `orders.*`, too, which would be a pattern in a scope.
    if given is not None and not (given in settings.timer_topics and may_name_topic(given)):
        hint = nearest(given, settings.timer.topics)
        raise ConfigError(f'"{given}" is no timer topic of these settings{hint}')
    return given or settings.timer.topics[0]


def narrowed(settings: Settings, scope: TopicScope, timer_topic: str | None) -> TopicScope:
    """The part of a scope that is the timer topic which a filter names, all without a name. Raises
    as `timer_topic_of`.
    """
    if timer_topic is None:
        return scope
    topic = timer_topic_of(settings, timer_topic)
    return TopicScope((topic,)) if topic in scope else NO_TOPICS


def decoded_handle(settings: Settings, handle: str) -> RecallHandle:
    """Parses the recall handle of a timer.

    Raises:
        InvalidTimer: it does not parse, or its topic is no timer topic of these settings.
    """
    decoded = RecallHandle.decode(handle)
    if decoded.timer_topic not in settings.timer_topics:
        raise InvalidTimer(
            f'the recall handle names "{decoded.timer_topic}", which is no timer topic'
        )
    return decoded
