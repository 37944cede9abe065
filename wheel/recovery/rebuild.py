"""Ingest's part of a recovery: applies the decision of dequeue before Spark reads.

    1. drops the names of topics from a damaged line on
    2. if files are kept: unlinks the files of other hours, rebuilds the wheel from the logs up to
       the reach of the ring, and verifies all records and messages. Bytes beyond the kept lengths
       belong to no batch: the engine truncates them at its start, as after any kill
       (staged_batch.py)
    3. if no files are kept, or 2 fails: removes the durable checkpoint first, then every hour;
       lowers the marks to an offset at or below the oldest pending message
    4. writes a new commit page, then `state.set_recovered`: the files are whole

A kill leaves the recovery undone, and the next start repeats all of it: no step changes the input
of the decision. `place_replayed` places the rows that are read again.
"""

from __future__ import annotations

import time
from collections.abc import Container, Mapping
from dataclasses import dataclass

import structlog

from duewheel.checkpoints import durable_checkpoint
from duewheel.checkpoints.commit_and_close_pages import Commit, HourLengths, Marks
from duewheel.checkpoints.durable_checkpoint import Durable
from duewheel.checkpoints.local_state import Keep, RecoveryRecord, dequeue_has_decided
from duewheel.checkpoints.progress import Progress
from duewheel.errors import CorruptFile, RecoveryPending
from duewheel.schemas.partition_names import by_name
from duewheel.wheel.recovery.first_offsets import OffsetsAt, kept_commit, start_marks
from duewheel.wheel.slots import hour_of
from duewheel.wheel.storage.byte_layouts import RECORD_BYTES
from duewheel.wheel.storage.data_directory import LOCK_DEADLINE_S, DataDirectory
from duewheel.wheel.storage.findings import Finding
from duewheel.wheel.storage.full_check import check_hour, check_segment

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Recovered:
    """The outcome of a recovery."""

    keep: Keep  # the files that were kept; fewer than decided if they were damaged
    records: int  # log records kept
    marks: Marks  # next offset to read, per partition


def apply_recovery(
    directory: DataDirectory, record: RecoveryRecord, offsets_at: OffsetsAt
) -> Recovered | None:
    """Applies the record of the running dequeue, unless it was applied before; returns None if no
    recovery was necessary.

    Raises:
        RecoveryPending: that dequeue has ended, perhaps before its decision was complete.
    """
    state, begun_s = directory.state, time.monotonic()
    with directory.engine_lock.held(LOCK_DEADLINE_S):
        # Under the lock: mirror and close page are written after their record.
        if record.generation <= state.recovered:
            return None
        if dequeue_has_decided(state, directory.path) != record:
            raise RecoveryPending("dequeue has ended, or decided again: starting again")
        mirror, close = state.mirror(), state.close()
    if mirror is None or close is None:  # a new start has the lock, and a killed one's record
        raise RecoveryPending("dequeue has not decided yet: starting again")
    progress = mirror.progress
    r = max(progress.delivered_slot, close.lower)
    directory.topics.cut_damaged()
    kept = kept_commit(record.keep, state.commit, lambda: _readable_durable(directory))
    # Before the rebuild, which links up to there: slots above would have entries that no reader
    # expects.
    state.set_linked(directory.timeline.reach(close.lower))
    records = _rebuild(directory, kept, r) if kept else None
    marks = start_marks(None if records is None else kept, directory.config, progress, offsets_at)
    if records is None:
        _discard_all(directory, marks, r, progress)
    recovered = Recovered(Keep.NOTHING if records is None else record.keep, records or 0, marks)
    state.set_recovered(record.generation)
    log.info(
        "recovered",
        case=record.case,
        keep=recovered.keep.name.lower(),
        records=recovered.records,
        took_s=round(time.monotonic() - begun_s, 3),
        reads_from=by_name(recovered.marks),
    )
    return recovered


def _readable_durable(directory: DataDirectory) -> Durable | None:
    try:
        return Durable.read(directory.path)
    except CorruptFile as error:
        log.warning("the durable checkpoint cannot be read", reason=str(error))
        return None


# ---- keeping files -----------------------------------------------------------------------------


def _rebuild(directory: DataDirectory, kept: Commit, r: int) -> int | None:
    """Reduces files and wheel to `kept`; returns the number of records, None if damaged."""
    state = directory.state
    first = hour_of(r + 1, directory.config.precision_ms)
    hours = {h: lengths for h, lengths in kept.hours.items() if h >= first}
    segments = _kept_segments(directory, kept)
    batch = _next_batch(directory, kept.batch)
    try:
        directory.topics.require(kept.topics)
        _unlink_others(directory, hours, segments)
        directory.timeline.clear(batch)
        for hour, lengths in sorted(hours.items()):
            _link_hour(directory, hour, lengths.log_bytes, batch)
            directory.restore_cancelled(hour, lengths)
        findings = _verify(directory, hours, segments, r)
    except (CorruptFile, ValueError, IndexError, AssertionError) as error:
        # Damaged bytes may decode to anything, so they raise more than CorruptFile. An error that
        # passes here ends this and every later start, although Kafka still has every message.
        log.error("files are damaged: reading everything again", reason=repr(error))  # noqa: TRY400
        return None
    if findings:
        log.error("files are damaged: reading everything again", findings=findings[:10])
        return None
    state.write_commit(
        kept._replace(
            batch=batch,
            hours=hours,
            topics=len(directory.topics),
            cancels=segments,
            applied=False,
        )
    )
    state.mark_applied()
    state.live.set_gc_hour(first)
    state.live.set_gc_cancels(min(segments, default=0))
    return sum(lengths.log_bytes for lengths in hours.values()) // RECORD_BYTES


def _kept_segments(directory: DataDirectory, kept: Commit) -> dict[int, tuple[int, ...]]:
    """Returns the segments of the cancel log that are not unlinked. The newest one never is: a
    bound above it is damaged, and the files decide.
    """
    try:
        newest = directory.state.commit().cancels
    except CorruptFile:
        newest = kept.cancels
    bound = directory.state.live.gc_cancels
    if bound > max([*kept.cancels, *newest], default=bound):
        bound = 0
    return {hour: lengths for hour, lengths in kept.cancels.items() if hour >= bound}


def _next_batch(directory: DataDirectory, kept: int) -> int:
    """Returns a batch number above those of both commit pages. With a lower one, damage to the new
    page would restore the old page unnoticed: no entry of the wheel would name a later batch.
    """
    try:
        return max(kept, directory.state.commit().batch) + 1
    except CorruptFile:
        return kept + 1


def _unlink_others(
    directory: DataDirectory, hours: Container[int], segments: Container[int]
) -> None:
    """Unlinks all hours and segments except these. If the engine truncated them to nothing instead,
    a `check` that has mapped them would be killed (SIGBUS); unlinked, they last until it has ended.
    """
    for folders, kept in ((directory.hour_folders, hours), (directory.cancels.folders, segments)):
        for folder in folders:
            for hour in folder.hours():
                if hour not in kept:
                    folder.unlink(hour)


def _link_hour(directory: DataDirectory, hour: int, log_bytes: int, batch: int) -> None:
    """Links an hour's runs into the wheel, up to the reach of the ring."""
    for start, records in directory.log.blocks(hour, log_bytes):
        runs = directory.log.runs(hour, records, start, directory.config.precision_ms)
        directory.timeline.link(runs.where(runs.slot <= directory.state.linked), batch)


def _verify(
    directory: DataDirectory,
    hours: Mapping[int, HourLengths],
    segments: Mapping[int, tuple[int, ...]],
    r: int,
) -> list[Finding]:
    timeline = directory.timeline.verifier(r, directory.state.linked, alone=True)
    findings = [
        finding
        for hour, lengths in hours.items()
        for finding in check_hour(directory, hour, lengths, timeline).findings
    ]
    for hour, length in segments.items():
        findings += check_segment(directory, hour, length)
    return findings


# ---- keeping nothing ---------------------------------------------------------------------------


def _discard_all(directory: DataDirectory, marks: Marks, r: int, progress: Progress) -> None:
    # First: otherwise, after a kill and a loss of power, a start would keep unlinked files.
    directory.fs.remove(directory.path / durable_checkpoint.FILE_NAME)
    _unlink_others(directory, (), ())
    state = directory.state
    batch, names = _next_batch(directory, 0), len(directory.topics)
    directory.timeline.clear(batch)
    state.write_commit(Commit(batch, marks, {}, 0, progress.topic_ids, names))
    state.mark_applied()
    state.live.set_gc_hour(hour_of(r + 1, directory.config.precision_ms))
    state.live.set_gc_cancels(0)
