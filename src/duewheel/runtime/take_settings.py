"""Settings that a running shard takes: `duewheel reconfigure` requests them, dequeue takes them.

    1. the command writes the digest of the settings into `state`; from here on ingest commits no
       batch (Engine.append), and ends its query
    2. dequeue ends its loop, reads the configuration again, and compares the digest: only settings
       that an operator has requested are taken
    3. one transaction: the progress, with an epoch that begins at max(marks, C)
       (wheel/admin/change_settings.py)
    4. dequeue starts with these settings (wheel/recovery/startup.py). Under one engine.lock it
       mirrors the progress, claims another incarnation, and then ends the request
    5. ingest sees that it has ended, reads the configuration again, and begins a query under the
       epochs of the mirror, at the marks

So each batch is committed under the epochs under which it was parsed: before 1 under the old ones,
and the marks that 3 reads are after it; after 4 the incarnation is another, and the engine
compares the epochs. Settings that are refused in 2 or 3 change nothing: 4 ends the request, too.
"""

from __future__ import annotations

from contextlib import ExitStack

import structlog

from duewheel import factory
from duewheel.checkpoints import config_epochs
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.progress import Progress
from duewheel.checkpoints.state_file import State
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, CorruptFile, RecoveryRefused
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.schemas.partition_names import by_name
from duewheel.wheel.admin.change_settings import take
from duewheel.wheel.recovery.first_offsets import OffsetsAt

log = structlog.get_logger(__name__)


def digest(settings: Settings) -> int:
    """Returns the number by which `state` names these settings."""
    return config_epochs.digest(factory.slot_values(settings))


def require_same_place(settings: Settings, running: Settings) -> None:
    """Refuses settings with which this is another shard, or has other files.

    Raises:
        ConfigError: naming the setting, with both values.
    """
    for key in ("app.id", "shard.index", "shard.count", "storage.data_dir", "timer.timeline"):
        section, name = key.split(".")
        old, new = (getattr(getattr(each, section), name) for each in (running, settings))
        if old != new:
            raise ConfigError(f"{key} was {old}, is {new}: it changes only while the shard stands")


def taken(settings: Settings, clock: factory.StoppableClock) -> Settings:
    """Takes the settings that are requested, if there are any. Called while no loop runs.

    Returns the settings of the process from here on; the edited ones, if the shard has taken them.

    Raises:
        KafkaUnavailable, Fenced: as `take`; the next start of the process tries again.
    """
    wanted = _wanted(settings)
    if not wanted:
        return settings
    try:
        edited = settings.reloaded()
        require_same_place(edited, settings)
        if digest(edited) != wanted:
            raise ConfigError("the configuration of this process is not the one of the request")
        _take(edited, clock)
    except (ConfigError, RecoveryRefused) as refused:
        log.error("the requested settings are refused", reason=str(refused))  # noqa: TRY400
        return settings
    return edited


def _wanted(settings: Settings) -> int:
    try:
        with State.open(settings.storage.data_dir) as state:
            return state.live.wanted_settings
    except (FileNotFoundError, CorruptFile):
        return 0


def _take(settings: Settings, clock: factory.StoppableClock) -> None:
    """Runs 3. of the module's head."""
    with ExitStack() as stack:
        admin = stack.enter_context(factory.kafka_admin(settings, clock.stopping))
        admin.require_topics(settings, served=True)
        directory = factory.start_directory(settings, Role.DEQUEUE)
        stack.callback(directory.stop)
        publisher = factory.publisher(settings, clock)
        stack.callback(publisher.close)
        config = factory.dequeue_config(settings)
        planned = take(directory, publisher, config, offsets_at(publisher.peek(), admin))
    since = by_name(planned.since)
    log.info("the shard takes other settings", changed=list(planned.changes), since=since)


def offsets_at(progress: Progress | None, admin: KafkaAdmin) -> OffsetsAt:
    """Returns a function that finds the first offsets of a time in the topics of the progress."""
    topics = sorted(progress.topics) if progress else []
    return lambda time_ms: admin.offsets_at(topics, time_ms)
