"""`duewheel reconfigure`: changes the settings that decide a row's slot, skips records, and accepts
the loss of timer partitions, on a shard with progress.

The steps are in wheel/admin/ (change_settings.py, skip_records.py, accept_loss.py) and in
runtime/take_settings.py. A dry run takes neither a lock nor a transactional id, so a running shard
may make its report outdated.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
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
from duewheel.checkpoints.fs import HOST_FS
from duewheel.checkpoints.local_state import Local
from duewheel.checkpoints.ownership import require_not_sealed
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.progress import Progress
from duewheel.config import setting_names
from duewheel.config.settings import Settings
from duewheel.deadline import polled
from duewheel.errors import ConfigError, DuewheelError, RecoveryRefused
from duewheel.kafka.progress.all_shards import all_shards
from duewheel.kafka.publish.publisher import KafkaPublisher
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.ops.files import open_state
from duewheel.osutil.signals import stop_signals
from duewheel.runtime import take_settings
from duewheel.runtime.checkpointer import DurableCheckpoints
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.partition_names import by_name, partition_named, record_named
from duewheel.wheel.admin.accept_loss import KafkaTopics, Loss, accept, losses
from duewheel.wheel.admin.change_settings import Plan, Rotation, commit, plan, take
from duewheel.wheel.admin.skip_records import skip as plan_skip
from duewheel.wheel.recovery.survey import survey
from duewheel.wheel.storage.data_directory import DataDirectory, hold_role

_TAKEN_S = 60.0  # a transaction in doubt, and a start, take a few seconds


def apply_settings(settings: Settings, *, dry_run: bool, rotate_key: bool = False) -> Reconfigured:
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
    for written in all_shards(settings).values():
        if written.progress.partitions:
            require_not_sealed(written.progress)
    with _connected(settings) as (publisher, admin, stopping):
        planned = _changed(
            settings, publisher, admin, stopping, dry_run=dry_run, rotate_key=rotate_key
        )
    old = planned.committed.epochs.newest.values
    changes = setting_names.changed(old, settings, factory.slot_values(settings))
    return Reconfigured(
        dry_run=dry_run,
        changes={name: SettingChange(old=a, new=b) for name, (a, b) in changes.items()},
        since=by_name(planned.since),
        epochs=len(planned.progress.epochs),
        dropped=planned.dropped,
        key_rotated=rotate_key,
    )


def _changed(
    settings: Settings,
    publisher: KafkaPublisher,
    admin: KafkaAdmin,
    stopping: threading.Event,
    *,
    dry_run: bool,
    rotate_key: bool,
) -> Plan:
    """Plans the change, and unless `dry_run` makes it: by the running dequeue, or in its place.
    Raises as `apply_settings`.
    """
    config, committed = factory.dequeue_config(settings), publisher.peek()
    offsets_at = take_settings.offsets_at(committed, admin)
    rotation = Rotation(secrets.randbits, partial(_ends, admin)) if rotate_key else None
    is_locked = lock_is_held(settings.storage.data_dir / Role.DEQUEUE.lock_name)
    runs = is_locked and not rotate_key  # a running dequeue draws no key
    terms = settings.wheel, config, offsets_at
    planned = plan(committed, _seen(settings), *terms, rotation=rotation, runs=runs)
    if dry_run or not (planned.changes or rotate_key):
        return planned
    if runs:
        admin.require_topics(settings, served=True)
        return _taken_by_dequeue(settings, publisher, planned, stopping)
    with _alone(settings) as directory:
        return take(directory, publisher, config, offsets_at, rotation=rotation)


def _taken_by_dequeue(
    settings: Settings, publisher: KafkaPublisher, planned: Plan, stopping: threading.Event
) -> Plan:
    """Has the running dequeue take the settings; returns the plan as it has made it.

    Raises:
        RecoveryRefused: it has refused them.
        DuewheelError: it has not answered in time, or before a signal; it may take them later.
    """
    with open_state(settings, HOST_FS) as state:
        state.live.want_settings(take_settings.digest(settings))
        polled(lambda: stopping.is_set() or not state.live.wanted_settings, _TAKEN_S)
        if state.live.wanted_settings:
            waited = "before the interrupt" if stopping.is_set() else f"within {_TAKEN_S:.0f} s"
            raise DuewheelError(
                f"dequeue has not taken the settings {waited}: its log says why. "
                "It takes them as soon as it can; until then ingest waits"
            )
    progress = publisher.peek()
    assert progress is not None, "the plan was made from one"
    if factory.dequeue_config(settings).changes(progress, settings.wheel):
        raise RecoveryRefused(
            "the shard keeps the settings that it had: the line `the requested settings are "
            "refused` in the log of dequeue has the reason"
        )
    return replace(planned, progress=progress, since=progress.epochs.newest.since)


def skip(settings: Settings, named: Sequence[str], *, dry_run: bool) -> Skipped:
    """Makes dead letters of these records, "topic-partition@offset" each, without parsing them:
    ingest fails on them.

    Raises:
        Locked, KafkaUnavailable: as `apply_settings`.
        ConfigError: a record does not exist, or too many are skipped.
        RecoveryRefused: ingest has taken it already, or the directory is not the owner's.
    """
    records = [_record(name) for name in named]
    config = factory.dequeue_config(settings)
    with _connected(settings) as (publisher, admin, _):
        ends = _ends(admin, (partition for partition, _ in records))

        def planned(committed: Progress | None) -> Progress:
            offsets_at = take_settings.offsets_at(committed, admin)
            local = _seen(settings)
            return plan_skip(records, committed, local, settings.wheel, config, offsets_at, ends)

        committed = publisher.peek()
        wanted = planned(committed)
        if not dry_run and wanted != committed:
            with _alone(settings) as directory:
                committed = publisher.start()
                wanted = planned(committed)
                assert committed is not None, "the plan would have refused"
                commit(directory, publisher, committed, wanted)
    skipped = by_name(wanted.epochs.skipped)
    return Skipped(dry_run=dry_run, skipped={name: list(o) for name, o in skipped.items()})


def accept_loss(settings: Settings, named: Sequence[str], *, dry_run: bool) -> LossAccepted:
    """Accepts that the shard continues without the lost records of these timer partitions,
    "topic-partition" each.

    Raises:
        Locked, KafkaUnavailable: as `apply_settings`.
        ConfigError: a partition does not exist, or other partitions of its topic are lost, too.
        RecoveryRefused: a partition has no loss, or it cannot be accepted yet.
    """
    partitions = [_partition(name) for name in named]
    config = factory.dequeue_config(settings)
    with _connected(settings) as (publisher, admin, _):
        topics = _topics(admin, {topic for topic, _ in partitions})

        def determined(committed: Progress | None) -> tuple[Progress, dict[TopicPartition, Loss]]:
            return losses(partitions, committed, _seen(settings), config, topics)

        progress, accepted = determined(publisher.peek())
        if not dry_run:
            with _alone(settings) as directory:
                progress, accepted = determined(publisher.start())
                accept(directory, publisher, progress, accepted, topics.ids)
                with closing(DurableCheckpoints(directory.path)) as checkpoints:
                    checkpoints.write()
    lost = {
        name: LostPartition(kind=loss.kind, was=loss.was, start=loss.start, unread=loss.unread)
        for name, loss in by_name(accepted).items()
    }
    return LossAccepted(dry_run=dry_run, accepted=lost)


@contextmanager
def _connected(
    settings: Settings,
) -> Iterator[tuple[KafkaPublisher, KafkaAdmin, threading.Event]]:
    """The clients, and the event that signals set."""
    with ExitStack() as stack:
        clock = factory.StoppableClock(stack.enter_context(stop_signals()))
        publisher = factory.publisher(settings, clock)
        stack.callback(publisher.close)
        admin = factory.kafka_admin(settings, clock.stopping)
        yield publisher, stack.enter_context(admin), clock.stopping


@contextmanager
def _alone(settings: Settings) -> Iterator[DataDirectory]:
    """Opens the data directory with the locks of both processes. A plan that was made beside them
    is made again: the progress may have changed.
    """
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
    return admin.ends(sorted({topic for topic, _ in partitions}), committed=False)


def _topics(admin: KafkaAdmin, names: Iterable[str]) -> KafkaTopics:
    topics = sorted(names)
    ids = admin.topic_ids(topics)
    return KafkaTopics(ids, admin.starts(topics), admin.ends(topics, committed=False))


def _partition(name: str) -> TopicPartition:
    try:
        return partition_named(name)
    except ValueError:
        raise ConfigError(f"{name!r} is no timer partition: write it as topic-partition") from None


def _record(name: str) -> tuple[TopicPartition, int]:
    try:
        return record_named(name)
    except ValueError:
        raise ConfigError(f"{name!r} is no record: write it as topic-partition@offset") from None
