"""`duewheel recover --dry-run`: previews the recovery of the shard's next start.

    1. reads the newest progress from Kafka without taking the shard, and the local files without a
       lock; nothing changes, and the processes may run
    2. decides as dequeue does (wheel/recovery/kept_files.py), and finds ingest's start offsets
    3. reads the messages from there up to C of the close page, where dequeue would end its wait,
       and counts them as ingest would: done, or pending again

It reads 8 MiB of batches, or one larger batch, from each broker at a time; decompressed they may
need more memory. The preview does not verify the files. If the start finds damage in them, it keeps
nothing, whatever the preview reported.
"""

from __future__ import annotations

import functools
import time
from contextlib import closing
from dataclasses import dataclass
from itertools import chain

import numpy as np
import structlog

from duewheel import factory
from duewheel.api.recovery import StartPreview
from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.checkpoints.file_lock import lock_is_held
from duewheel.checkpoints.local_state import Keep, Local, is_own
from duewheel.checkpoints.ownership import require_own_files
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.progress import NOBODY, Progress
from duewheel.config.settings import Settings
from duewheel.errors import RecoveryRefused
from duewheel.kafka.log.columns import committed_records
from duewheel.kafka.log.reader import LogReader
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.kafka.topics.discovery import first_starts
from duewheel.osutil.signals import stop_signals
from duewheel.osutil.terminal import Advanced, unseen
from duewheel.schemas.batches import OffsetRanges, TopicPartition
from duewheel.schemas.partition_names import by_name, partition_name
from duewheel.schemas.request.parser import parse
from duewheel.streaming.epoch_parser import contracts, parse_by_epoch
from duewheel.wheel.recovery.first_offsets import kept_commit, start_marks
from duewheel.wheel.recovery.kept_files import Decision, decide
from duewheel.wheel.recovery.startup import NO_PROGRESS
from duewheel.wheel.recovery.survey import survey
from duewheel.wheel.roll_rule import requested_slots

_PART_BYTES = 8 << 20  # read and counted at a time

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Reread:
    """Counts the messages that the start would read again."""

    done: int = 0
    pending: int = 0


def preview_start(settings: Settings, advanced: Advanced = unseen) -> StartPreview:
    """Previews the next start; calls `advanced` with the offsets that are read, of all.

    Raises:
        ConfigError: the data directory has another geometry, or a topic is missing.
        RecoveryRefused: the start would be refused with any options.
        KafkaUnavailable: no answer in time.
    """
    begun_s = time.monotonic()
    with factory.kafka_admin(settings) as admin:
        progress, local = _read_state(settings)
        if progress is None:
            starts, are_empty = first_starts(settings, admin)
            if not (are_empty and local.is_fresh):
                raise RecoveryRefused(NO_PROGRESS)
            return _preview("new", Keep.NOTHING, starts, Reread(), begun_s)
        decision = _decide(settings, progress, local)
        kept = kept_commit(decision.keep, lambda: local.commit, lambda: local.durable)
        topics = sorted(progress.topics)
        starts = start_marks(
            kept, settings.wheel, progress, lambda ms: admin.offsets_at(topics, ms)
        )
        bounds = _readable(admin, topics, starts, decision.close.marks)
        reread = _classify_rows(settings, progress, bounds, advanced)
    return _preview(decision.case, decision.keep, starts, reread, begun_s)


def _preview(case: str, keep: Keep, starts: Marks, reread: Reread, begun_s: float) -> StartPreview:
    return StartPreview(
        dry_run=True,
        case=case,
        keep=keep.name.lower(),
        start_offsets=by_name(starts),
        rows_to_read=reread.done + reread.pending,
        done_rows=reread.done,
        pending_rows=reread.pending,
        took_s=round(time.monotonic() - begun_s, 3),
    )


# ---- the decision -------------------------------------------------------------------------------


def _read_state(settings: Settings) -> tuple[Progress | None, Local]:
    """Reads the newest progress, then the state of the files, which is thus no older."""
    with stop_signals() as stopping:
        clock = factory.StoppableClock(stopping)
        with closing(factory.publisher(settings, clock)) as publisher:
            progress = publisher.peek()
    local = survey(settings.storage.data_dir, settings.wheel)
    require_own_files(local, settings.shard.index, settings.storage.data_dir)
    if progress is None:
        return local.mirror, local
    # A running dequeue has committed more since; its copy is never ahead of Kafka.
    runs = lock_is_held(settings.storage.data_dir / Role.DEQUEUE.lock_name)
    if runs and local.mirror and local.mirror.incarnation == progress.incarnation:
        progress = max(progress, local.mirror, key=_reached)
    return progress, local


def _reached(progress: Progress) -> tuple[int, int]:
    parts = progress.partitions.values()
    return sum(part.delivered_slot for part in parts), sum(part.half_below or 0 for part in parts)


def _decide(settings: Settings, progress: Progress, local: Local) -> Decision:
    factory.dequeue_config(settings).require_fits(progress, settings.wheel)
    if progress.owner != NOBODY and not is_own(progress, local):
        log.warning(
            "the shard belongs to another data directory, or to another copy of this one: its "
            "owner must have been silent, or the start needs --take-over",
            owner=progress.owner,
            silent_s=settings.shard.take_over_after.total_seconds(),
        )
    return decide(progress, local)


# ---- the messages that come again ---------------------------------------------------------------


def _classify_rows(
    settings: Settings, progress: Progress, bounds: OffsetRanges, advanced: Advanced
) -> Reread:
    """Reads and counts the messages within `bounds`."""
    epochs, reread = progress.epochs, Reread()
    offsets, total = 0, sum(end - start for start, end in bounds.values())
    epoch_contracts = contracts(epochs, settings.dead_letter_topic)
    parsers = [functools.partial(parse, contract=contract) for contract in epoch_contracts]
    client = factory.kafka_clients(settings, "consumer")
    with LogReader(client, sorted(progress.topics)) as reader:
        for part in reader.read(bounds, _PART_BYTES):
            offsets += sum(fetched.end - fetched.begin for fetched in part)
            advanced(offsets, total)
            groups = committed_records(part, bounds, skipped=epochs.skipped)
            for records in chain.from_iterable(each.slices() for each in groups):
                rows = parse_by_epoch(records, parsers, epochs)
                rows = rows.take(np.flatnonzero(rows.timer))  # cancels take no slot
                positions = rows.partitions, rows.partition, rows.offset
                windows_ms = epochs.windows_ms(*positions)
                by_offset = epochs.rolls_by_offset(*positions)
                slot, _ = requested_slots(rows, settings.wheel.precision_ms, windows_ms, by_offset)
                done = int(progress.done(*positions, slot).sum())
                reread = Reread(reread.done + done, reread.pending + len(rows) - done)
    return reread


def _readable(
    admin: KafkaAdmin, topics: list[str], starts: Marks, until: Marks
) -> dict[TopicPartition, tuple[int, int]]:
    """The offsets between `starts` and `until` that the timer topics still have."""
    log_starts, ends = admin.starts(topics), admin.ends(topics, committed=False)
    bounds = {}
    for partition, end in until.items():
        first, last = log_starts.get(partition, end), min(end, ends.get(partition, end))
        start = starts.get(partition, 0)
        if start < min(first, end):
            log.error(
                "the timer topic no longer has messages that must be read again",
                partition=partition_name(partition),
                offsets=min(first, end) - start,
            )
        if max(start, first) < last:
            bounds[partition] = (max(start, first), last)
    return bounds
