"""Pauses and resumes a target, timer topic or tag in all shards: a record of the state topic."""

from __future__ import annotations

from duewheel.api.requests import SelectivePause
from duewheel.api.shard import PausedSelection
from duewheel.checkpoints.pauses import Kind, PauseRecord
from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError
from duewheel.kafka.connect.clients import ClientSettings
from duewheel.kafka.connect.deadline import Deadline
from duewheel.kafka.progress.pauses import write_pause
from duewheel.schemas.header_names import TAG_BYTES_MAX

_DEADLINE_S = 30.0


def pause_selection(
    settings: Settings, kind: Kind, name: str, given: SelectivePause, clock: Clock
) -> PausedSelection:
    """Lets the due timers of a target, timer topic or tag wait, until `resume_selection` or for so
    long as is `given`; replaces an earlier pause of it.

    Raises:
        ConfigError: it is no target or timer topic of this service.
        KafkaUnavailable: no acknowledgement in time.
    """
    _require(settings, kind, name)
    for_ms = given.for_ms
    until_ms = None if for_ms is None else clock.now_ms() + for_ms
    _write(settings, kind, name, PauseRecord(until_ms, given.note))
    return PausedSelection(kind=kind, name=name, paused=True, until_ms=until_ms, note=given.note)


def resume_selection(settings: Settings, kind: Kind, name: str) -> PausedSelection:
    """Ends a pause; its timers leave when they return from their wait.

    Raises:
        ConfigError, KafkaUnavailable: as `pause_selection`; a name that the settings no longer have
            is no error.
    """
    _write(settings, kind, name, None)
    return PausedSelection(kind=kind, name=name, paused=False, until_ms=None, note="")


def _require(settings: Settings, kind: Kind, name: str) -> None:
    if kind == "tag":
        if not 0 < len(name.encode(errors="surrogateescape")) <= TAG_BYTES_MAX:
            raise ConfigError(f"a tag has 1 to {TAG_BYTES_MAX} bytes")
        return
    is_timer_topic = name in settings.timer.topics or settings.timer_topics.matches(name)
    if kind == "timer-topic" and not is_timer_topic:
        raise ConfigError(f"{name!r} is no timer topic of {settings.app.id}")
    if kind == "target" and (is_timer_topic or name in settings.service_topics.values()):
        raise ConfigError(f"{name!r} is a topic of {settings.app.id} itself, and no target")


def _write(settings: Settings, kind: Kind, name: str, pause: PauseRecord | None) -> None:
    client = ClientSettings(settings.kafka.client_options("producer"))
    write_pause(client, settings.state_topic, kind, name, pause, Deadline(_DEADLINE_S))
