"""Pauses and resumes a target or a timer topic in all shards: a record of the state topic."""

from __future__ import annotations

from duewheel.api.requests import TopicPause
from duewheel.api.shard import PausedTopic
from duewheel.checkpoints.pauses import Kind, PauseRecord
from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError
from duewheel.kafka.connect.clients import ClientSettings
from duewheel.kafka.connect.deadline import Deadline
from duewheel.kafka.progress.pauses import write_pause

_DEADLINE_S = 30.0


def pause_topic(
    settings: Settings, kind: Kind, topic: str, given: TopicPause, clock: Clock
) -> PausedTopic:
    """Lets the due timers of a topic wait, until `resume_topic` or for so long as is `given`;
    replaces an earlier pause of it.

    Raises:
        ConfigError: it is no target or timer topic of this service.
        KafkaUnavailable: no acknowledgement in time.
    """
    _require(settings, kind, topic)
    for_ms = given.for_ms
    until_ms = None if for_ms is None else clock.now_ms() + for_ms
    _write(settings, kind, topic, PauseRecord(until_ms, given.note))
    return PausedTopic(kind=kind, topic=topic, paused=True, until_ms=until_ms, note=given.note)


def resume_topic(settings: Settings, kind: Kind, topic: str) -> PausedTopic:
    """Ends the pause of a topic; its timers leave when they return from their wait.

    Raises:
        ConfigError, KafkaUnavailable: as `pause_topic`.
    """
    _require(settings, kind, topic)
    _write(settings, kind, topic, None)
    return PausedTopic(kind=kind, topic=topic, paused=False, until_ms=None, note="")


def _require(settings: Settings, kind: Kind, topic: str) -> None:
    is_timer_topic = topic in settings.timer.topics or settings.timer_topics.matches(topic)
    if kind == "timer-topic" and not is_timer_topic:
        raise ConfigError(f"{topic!r} is no timer topic of {settings.app.id}")
    if kind == "target" and (is_timer_topic or topic in settings.service_topics.values()):
        raise ConfigError(f"{topic!r} is a topic of {settings.app.id} itself, and no target")


def _write(settings: Settings, kind: Kind, topic: str, pause: PauseRecord | None) -> None:
    client = ClientSettings(settings.kafka.client_options("producer"))
    write_pause(client, settings.state_topic, kind, topic, pause, Deadline(_DEADLINE_S))
