"""`duewheel reconfigure`: changes the settings that decide a row's slot, skips records, and accepts
the loss of timer partitions, on a shard with progress.

wheel/admin/change_settings.py, src/duewheel/runtime/wanted_settings.py and
wheel/admin/accept_loss.py have the steps. A dry run takes no lock and no transactional id, so a
running shard may make its report outdated.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, replace
from functools import partial

from duewheel import factory
from duewheel.api.reconfigure import (
    LossAccepted,
    LostPartition,
    Reconfigured,
    SettingChange,
    Skipped,
)
from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.checkpoints.file_lock import lock_is_held
from duewheel.checkpoints.ownership import require_not_sealed
from duewheel.checkpoints.progress import Progress
from duewheel.checkpoints.recovery_decision import Local
from duewheel.checkpoints.role import Role
from duewheel.checkpoints.state_file import State
from duewheel.config import setting_names
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, DuewheelError, RecoveryRefused
from duewheel.kafka.progress.all_shards import all_shards
from duewheel.kafka.publish.publisher import KafkaPublisher
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.osutil.signals import stop_signals
from duewheel.runtime import wanted_settings
from duewheel.runtime.checkpointer import DurableCheckpoints
from duewheel.schemas.batches import TopicPartition
from duewheel.wheel.admin.accept_loss import KafkaTopics, accept, losses
from duewheel.wheel.admin.change_settings import Rotation, commit, plan, take
from duewheel.wheel.admin.change_settings import skip as plan_skip
from duewheel.wheel.recovery.survey import survey
from duewheel.wheel.storage.data_directory import DataDirectory, hold_role

_TAKEN_S = 60.0  # a transaction in doubt, and a start, take a few seconds
_POLL_S = 0.05


def reconfigure(settings: Settings, *, dry_run: bool, rotate_key: bool = False) -> Reconfigured:
    """Starts a settings epoch with `settings`, for rows that ingest has not parsed yet.

    A running shard takes them from its own configuration. `rotate_key`: draws a new key for the
    MACs of copies.

    Raises:
        Locked: a process of the shard runs, and a key is to be rotated.
        ConfigError: a setting does not permit this change, or the directory has another geometry.
        RecoveryRefused: the directory is not the owner's, or has to recover first; or a reshard has
            sealed a shard, this one or another: partitions move only between equal settings; or
            the running shard has refused the settings, and keeps its own.
        KafkaUnavailable: no answer in time.
    """
    config = factory.dequeue_config(settings)
    for written in all_shards(settings).values():
        if written.progress.partitions:
            require_not_sealed(written.progress)
    with _connected(settings) as (publisher, admin):
        progress = publisher.peek()
        offsets_at = wanted_settings.offsets_at(progress, admin)
        rotation = Rotation(secrets.randbits, partial(_ends, admin)) if rotate_key else None
        runs = lock_is_held(settings.storage.data_dir / Role.DEQUEUE.lock_name)
        planned = plan(
            progress,
            _seen(settings),
            settings.wheel,
            config,
            offsets_at,
            rotation=rotation,
            runs=runs and not rotate_key,
        )
        if planned.changes and runs and not rotate_key and not dry_run:
            admin.require_topics(settings, served=True)
            planned = replace(planned, progress=_request(settings, publisher))
            planned = replace(planned, since=planned.progress.epochs.newest.since)
        elif (planned.changes or rotate_key) and not dry_run:
            with _alone(settings) as directory:
                planned = take(directory, publisher, config, offsets_at, rotation=rotation)
    old = planned.committed.epochs.newest.values
    changes = setting_names.changed(old, settings, factory.slot_values(settings))
    return Reconfigured(
        dry_run=dry_run,
        changes={name: SettingChange(**change) for name, change in changes.items()},
        since={_name(place): offset for place, offset in sorted(planned.since.items())},
        epochs=len(planned.progress.epochs),
        dropped=planned.dropped,
        key_rotated=rotate_key,
    )


def _request(settings: Settings, publisher: KafkaPublisher) -> Progress:
    """Has the running dequeue take the settings; returns the progress with them.

    Raises:
        RecoveryRefused: it has refused them.
        DuewheelError: it has not answered in time; it may take them later.
    """
    with State.open(settings.storage.data_dir) as state:
        state.live.want_settings(wanted_settings.digest(settings))
        end_s = time.monotonic() + _TAKEN_S
        while state.live.wanted_settings:
            if time.monotonic() > end_s:
                raise DuewheelError(
                    f"dequeue has not taken the settings within {_TAKEN_S:.0f} s: its log says "
                    "why. It takes them as soon as it can; until then ingest waits"
                )
            time.sleep(_POLL_S)
    progress = publisher.peek()
    assert progress is not None, "the plan was made from one"
    if factory.dequeue_config(settings).changes(progress, settings.wheel):
        raise RecoveryRefused(
            "the shard keeps the settings that it had: the line `the requested settings are "
            "refused` in the log of dequeue has the reason"
        )
    return progress


def skip(settings: Settings, named: Sequence[str], *, dry_run: bool) -> Skipped:
    """Makes dead letters of these records, "topic-partition@offset" each, without parsing them:
    ingest fails on them.

    Raises:
        Locked, KafkaUnavailable: as `reconfigure`.
        ConfigError: a record does not exist, or too many are skipped.
        RecoveryRefused: ingest has taken it already, or the directory is not the owner's.
    """
    records = [_parsed("--skip", name, offset=True) for name in named]
    config = factory.dequeue_config(settings)
    with _connected(settings) as (publisher, admin):
        for directory, committed in _rounds(settings, publisher, dry_run=dry_run):
            ends = _ends(admin, (partition for partition, _ in records))
            offsets_at = wanted_settings.offsets_at(committed, admin)
            wanted = plan_skip(
                records, committed, _seen(settings), settings.wheel, config, offsets_at, ends
            )
            assert committed is not None, "the plan would have refused"
            if directory is not None:
                commit(directory, publisher, committed, wanted)
            elif wanted == committed:
                break
    skipped = sorted(wanted.epochs.skipped.items())
    return Skipped(dry_run=dry_run, skipped={_name(place): list(o) for place, o in skipped})


def accept_loss(settings: Settings, named: Sequence[str], *, dry_run: bool) -> LossAccepted:
    """Accepts that the shard continues without the lost records of these timer partitions,
    "topic-partition" each.

    Raises:
        Locked, KafkaUnavailable: as `reconfigure`.
        ConfigError: a partition does not exist, or other partitions of its topic are lost, too.
        RecoveryRefused: a partition has no loss, or it cannot be accepted yet.
    """
    partitions = [_parsed("--accept-loss", name)[0] for name in named]
    config = factory.dequeue_config(settings)
    with _connected(settings) as (publisher, admin):
        topics = _topics(admin, {topic for topic, _ in partitions})
        for directory, committed in _rounds(settings, publisher, dry_run=dry_run):
            progress, accepted = losses(partitions, committed, _seen(settings), config, topics)
            if directory is not None:
                accept(directory, publisher, progress, accepted, topics.ids)
                with closing(DurableCheckpoints(directory.path)) as checkpoints:
                    checkpoints.write()
    lost = {_name(place): LostPartition(**asdict(loss)) for place, loss in sorted(accepted.items())}
    return LossAccepted(dry_run=dry_run, accepted=lost)


def _rounds(
    settings: Settings, publisher: KafkaPublisher, *, dry_run: bool
) -> Iterator[tuple[DataDirectory | None, Progress | None]]:
    """Yields the progress to plan from: first beside running processes; then, unless `dry_run`,
    with the directory to write to, both processes locked out and the transactional id taken.
    """
    yield None, publisher.peek()
    if not dry_run:
        with _alone(settings) as directory:
            yield directory, publisher.start()


@contextmanager
def _connected(settings: Settings) -> Iterator[tuple[KafkaPublisher, KafkaAdmin]]:
    with ExitStack() as stack:
        clock = factory.StoppableClock(stack.enter_context(stop_signals()))
        publisher = factory.publisher(settings, clock)
        stack.callback(publisher.close)
        options = settings.kafka.client_options("admin")
        yield publisher, stack.enter_context(KafkaAdmin(options, stopping=clock.stopping))


@contextmanager
def _alone(settings: Settings) -> Iterator[DataDirectory]:
    """Opens the data directory with the locks of both processes."""
    path = settings.storage.data_dir
    directory = factory.start_directory(settings, Role.DEQUEUE)
    try:
        ingest = hold_role(path, Role.INGEST)
        try:
            yield directory
        finally:
            # First: the holder that stops last declares a clean stop.
            ingest.close()
    finally:
        directory.stop()


def _seen(settings: Settings) -> Local:
    """Reads the state of the data directory; inside `_alone`, no other process changes it."""
    return survey(settings.storage.data_dir, settings.wheel)


def _ends(admin: KafkaAdmin, partitions: Iterable[TopicPartition]) -> Marks:
    return admin.end_offsets(sorted({topic for topic, _ in partitions}))


def _topics(admin: KafkaAdmin, names: Iterable[str]) -> KafkaTopics:
    topics = sorted(names)
    ids = admin.topic_ids(topics)
    return KafkaTopics(ids, admin.log_start_offsets(topics), admin.end_offsets(topics))


def _parsed(option: str, name: str, *, offset: bool = False) -> tuple[TopicPartition, int]:
    """Parses topic-partition, with `offset` topic-partition@offset; else the offset is 0."""
    pattern = r"(.+)-([0-9]+)@([0-9]+)" if offset else r"(.+)-([0-9]+)()"
    matched = re.fullmatch(pattern, name)
    if matched is None:
        form = "topic-partition@offset" if offset else "topic-partition"
        raise ConfigError(f"{option} {name}: write it as {form}")
    topic, number, at = matched.groups()
    return (topic, int(number)), int(at or 0)


def _name(partition: TopicPartition) -> str:
    return f"{partition[0]}-{partition[1]}"
