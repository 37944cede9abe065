"""Deletes delivered hours and finished cancel segments:

    hours           that are delivered by Kafka's progress and by the durable checkpoint; without
                    the second condition a start from that checkpoint would miss files
    segments        in which each cancel has its reply or chase, except the newest: ingest may still
                    write to it

Once a minute dequeue

    1. raises the GC bounds under engine.lock, so that ingest neither writes to these hours nor
       commits them again
    2. unlinks the files

A kill between the two leaves files that the next call unlinks. Before each commit ingest closes its
files of expired hours: their blocks stay allocated until then.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from duewheel.checkpoints.cancel_bounds import CancelBounds
from duewheel.checkpoints.commit_and_close_pages import Commit
from duewheel.checkpoints.durable_checkpoint import Durable
from duewheel.checkpoints.progress import Progress
from duewheel.errors import CorruptFile
from duewheel.wheel.slots import first_slot_of_hour, hour_of
from duewheel.wheel.storage.data_directory import LOCK_DEADLINE_S, DataDirectory

log = structlog.get_logger(__name__)

FirstSegment = Callable[[Commit], int]


def collect(directory: DataDirectory, progress: Progress, first_segment: FirstSegment) -> int:
    """Deletes the hours without pending timers, and the cancels that have their reply; returns the
    first hour that is kept. `progress` is committed in Kafka; `first_segment` returns the hour
    below which no segment of the cancel log is needed.
    """
    live = directory.state.live
    try:
        durable = Durable.read(directory.path)
    except CorruptFile as error:
        # A damaged checkpoint is no reason to stop: ingest writes a new one within seconds.
        log.warning("no file is deleted without a durable checkpoint", reason=str(error))
        durable = None
    if durable is None:
        return live.gc_hour
    _collect_cancels(directory, first_segment)
    delivered_slot = min(progress.delivered_slot, durable.delivered_slot)
    hour = hour_of(delivered_slot + 1, directory.config.precision_ms)
    if hour > live.gc_hour:
        _drop_hours(directory, hour, progress)
    directory.log.forget_below(live.gc_hour)
    for folder in directory.hour_folders:
        folder.unlink_below(live.gc_hour)
    return live.gc_hour


def _drop_hours(directory: DataDirectory, hour: int, progress: Progress) -> None:
    with directory.engine_lock.held(LOCK_DEADLINE_S):
        # Without these bounds a cancel would be decided without the dropped logs, and miss a timer
        # whose copy is in flight.
        bounds = CancelBounds.read(directory.path)
        since = progress.delivered_slot if bounds is None else bounds.since
        # A full disk must not stop this: unlinking makes room.
        blind = CancelBounds.blind_of(since, progress.partitions)
        blind.write_or_remove(directory.path, directory.fs)
        # Before the files are unlinked: ingest must not commit an hour whose files vanish.
        directory.state.live.raise_gc_hour(hour)


def _collect_cancels(directory: DataDirectory, first_segment: FirstSegment) -> None:
    commit, live = directory.state.commit(), directory.state.live
    first_kept = min(first_segment(commit), max(commit.cancels, default=0))
    if first_kept > live.gc_cancels:
        with directory.engine_lock.held(LOCK_DEADLINE_S):
            live.set_gc_cancels(first_kept)
    directory.cancels.unlink_below(live.gc_cancels)


def close_expired_files(directory: DataDirectory) -> None:
    """Closes ingest's files of expired hours: an open file has its blocks even after its unlink."""
    live = directory.state.live
    directory.log.forget_below(live.gc_hour)
    directory.messages.files.forget_below(live.gc_hour)
    directory.cancelled.files.forget_below(live.gc_hour)
    directory.cancels.forget_below(live.gc_cancels)


def forget_expired_runs(directory: DataDirectory) -> None:
    """Drops the runs of expired hours from ingest's timeline. Under engine.lock."""
    first = first_slot_of_hour(directory.state.live.gc_hour, directory.config.precision_ms)
    directory.timeline.forget_below(first)
