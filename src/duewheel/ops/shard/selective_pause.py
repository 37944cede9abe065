"""Pauses and resumes a target, timer topic or tag in all shards: a record of the state topic."""

from __future__ import annotations

from duewheel import factory
from duewheel.api.limits import tag_octets
from duewheel.api.requests import SelectivePause
from duewheel.api.shard import PausedSelection
from duewheel.checkpoints.pauses import PausedKind, PauseRecord, PausesFile, in_force
from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.deadline import Deadline
from duewheel.errors import ConfigError
from duewheel.kafka.progress.pause_records import write_pause
from duewheel.ops.connection import ANSWER_S


def pause_selection(
    settings: Settings, clock: Clock, kind: PausedKind, name: str, given: SelectivePause
) -> PausedSelection:
    """Lets the due timers of a target, timer topic or tag wait, until `resume_selection` or for so
    long as is `given`; replaces an earlier pause of it.

    Raises:
        ConfigError: it is no target or timer topic of this service.
        InvalidTimer: it is no tag.
        KafkaUnavailable, Unacknowledged: as `write_pause`.
    """
    require_pausable(settings, kind, name)
    for_ms = given.for_ms
    until_ms = None if for_ms is None else clock.now_ms() + for_ms
    return _write(settings, clock, kind, name, PauseRecord(until_ms, given.note))


def resume_selection(
    settings: Settings, clock: Clock, kind: PausedKind, name: str
) -> PausedSelection:
    """Ends a pause; its timers leave when they return from their wait.

    Raises:
        InvalidTimer, KafkaUnavailable, Unacknowledged: as `pause_selection`; a name that the
            settings no longer have is no error.
    """
    require_name(kind, name)
    return _write(settings, clock, kind, name, None)


def require_pausable(settings: Settings, kind: PausedKind, name: str) -> None:
    """Refuses a name that no shard can pause, without Kafka. Raises as `pause_selection`."""
    require_name(kind, name)
    is_timer_topic = name in settings.timer.topics or settings.timer_topics.matches(name)
    if kind == "timer-topic" and not is_timer_topic:
        raise ConfigError(f"{name!r} is no timer topic of {settings.app.id}")
    if kind == "target" and (is_timer_topic or name in settings.service_topics.values()):
        raise ConfigError(f"{name!r} is a topic of {settings.app.id} itself, and no target")


def require_name(kind: PausedKind, name: str) -> None:
    """Refuses a tag that is none. Raises as `resume_selection`."""
    if kind == "tag":
        tag_octets(name)


def _write(
    settings: Settings, clock: Clock, kind: PausedKind, name: str, pause: PauseRecord | None
) -> PausedSelection:
    client = factory.kafka_clients(settings, "producer")
    try:
        last = PausesFile.read(settings.storage.data_dir)
    except OSError:  # another user's: as on a host without the file, all records are read
        last = PausesFile()
    pauses = write_pause(client, settings.state_topic, kind, name, pause, Deadline(ANSWER_S), last)
    before = in_force(pauses, clock.now_ms()).get(f"{kind}/{name}")
    now, former = pause or PauseRecord(None), before or PauseRecord(None)
    return PausedSelection(
        kind=kind,
        name=name,
        paused=pause is not None,
        until_ms=now.until_ms,
        note=now.note,
        was_paused=before is not None,
        former_until_ms=former.until_ms,
        former_note=former.note,
    )
