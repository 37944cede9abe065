"""Accepts losses of timer partitions: `duewheel reconfigure --accept-loss topic-partition`.

Kafka no longer has the records that follow the marks of a lost partition. Ingest refuses to start,
because it would mistake new messages for old ones; dequeue still delivers the timers in the wheel.
After the loss is accepted, the partition counts as one that was never read:

    deleted     dropped from the progress and from the marks
    recreated   marks and C become the log start; the new topic's id is recorded
    cut short   marks and C fall to the log end; offsets below it stay as they were

Timers in the wheel are still delivered. A deleted or recreated topic gets another name here
(`retire` in topic_numbers.py), because old and new offsets differ, and a slot may hold rows of
both. A partition that was cut short keeps its name. So no timer from beyond the cut may be pending,
and none that a cancel from beyond the cut has cancelled: its reply may have been written.

    1. locks and transactional id, as in change_settings.py
    2. the old topic gets its other name; cancels from beyond a cut get no replies, once 3 is done:
       the lost end may come back before
    3. one transaction: the progress; then its mirror
    4. the close page
    5. the durable checkpoint is removed, then the commit page is written: marks and topic ids. Only
       now is ingest let in

A kill before 5 leaves ingest refused: run the command again. Every step may be done twice, and
dequeue may run in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import structlog

from duewheel.checkpoints import durable_checkpoint
from duewheel.checkpoints.cancel_bounds import CancelBounds
from duewheel.checkpoints.commit_and_close_pages import Close, Commit, HourLengths, Marks
from duewheel.checkpoints.local_state import Local
from duewheel.checkpoints.progress import PartitionProgress, Progress
from duewheel.errors import ConfigError, RecoveryRefused
from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.partition_names import by_name, partition_name
from duewheel.wheel.admin.change_settings import commit, require_owned
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.inspect.snapshot import Snapshot
from duewheel.wheel.publisher_protocol import Publisher
from duewheel.wheel.recovery.kept_files import decide
from duewheel.wheel.storage.byte_layouts import PREFIX, RECORD_BYTES, slots_in
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.message_store import Prefixes, split_by_count
from duewheel.wheel.storage.runs import Runs
from duewheel.wheel.storage.timer_log import Records

DELETED, RECREATED, CUT_SHORT = "deleted", "recreated", "cut short"
_NEVER = np.iinfo(np.int64).max

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class KafkaTopics:
    """The existing timer topics in Kafka."""

    ids: Mapping[str, str]  # by name
    starts: Marks  # of every partition, like `ends`
    ends: Marks


@dataclass(frozen=True, slots=True)
class Loss:
    """A partition whose messages are lost."""

    kind: str  # DELETED, RECREATED or CUT_SHORT
    was: int  # the next offset before the loss
    start: int | None  # next offset to take; None if the partition is deleted
    unread: int  # offsets below C that ingest would have to read again, and cannot


Losses = Mapping[TopicPartition, Loss]


def losses(
    named: Iterable[TopicPartition],
    committed: Progress | None,
    local: Local,
    config: DequeueConfig,
    topics: KafkaTopics,
) -> tuple[Progress, dict[TopicPartition, Loss]]:
    """Determines the loss of each named partition; changes nothing. `committed` is the newest
    progress in Kafka.

    Raises:
        ConfigError: the shard has no such partition, or another one of its topic is lost, too.
        RecoveryRefused: nothing is lost; or it cannot be accepted now.
    """
    progress = _require_ready(committed, local, config)
    recorded_ids = {**progress.topic_ids, **local.commit.topic_ids}
    accepted: dict[TopicPartition, Loss] = {}
    for partition in sorted(set(named)):
        loss = _loss(partition, progress, local, recorded_ids, topics)
        if loss is None:
            name = partition_name(partition)
            raise RecoveryRefused(f"nothing is lost of {name}: Kafka has it, as it was")
        accepted[partition] = loss
    _require_whole_topics(accepted, progress, local)
    deleted = {partition for partition, loss in accepted.items() if loss.start is None}
    if not progress.partitions.keys() - deleted:
        raise RecoveryRefused(
            "the shard would have no timer partition left: recreate the topic (`duewheel init`) "
            "and accept the loss then, or let `duewheel dequeue` deliver what is in the wheel"
        )
    return progress, accepted


def _require_ready(committed: Progress | None, local: Local, config: DequeueConfig) -> Progress:
    if committed is None:
        raise RecoveryRefused("Kafka has no progress for this shard: there is no loss to accept")
    require_owned(committed, local, config)
    if not decide(committed, local).is_whole:
        raise RecoveryRefused(
            "the files have to be recovered first: start the shard, and stop it once ingest has "
            "been refused"
        )
    half = any(part.half_below is not None for part in committed.partitions.values())
    if half and local.commit.hours:
        raise RecoveryRefused(
            f"slot {committed.delivered_slot + 1} is half delivered: start `duewheel dequeue`, "
            "which runs without ingest, and let it finish the slot first"
        )
    return committed


def _loss(
    partition: TopicPartition,
    progress: Progress,
    local: Local,
    recorded_ids: Mapping[str, str],
    topics: KafkaTopics,
) -> Loss | None:
    """Determines the loss of a partition; None without one."""
    topic, mark = partition[0], local.commit.marks.get(partition)
    part, close = progress.partitions.get(partition), local.close
    closed = max(close.marks.get(partition, 0) if close else 0, part.delivered_mark if part else 0)
    if mark is None and part is None and (close is None or partition not in close.marks):
        raise ConfigError(f"the shard knows no timer partition {partition_name(partition)}")
    was, unread = max(mark or 0, closed), max(0, closed - (mark or 0))
    if partition not in topics.ends:
        return Loss(DELETED, was, None, unread)
    if topics.ids[topic] != recorded_ids.get(topic, topics.ids[topic]):
        return Loss(RECREATED, was, topics.starts[partition], unread)
    if topics.ends[partition] < was:
        end = topics.ends[partition]
        return Loss(CUT_SHORT, was, end, max(0, closed - max(mark or 0, end)))
    return None


def _require_whole_topics(accepted: Losses, progress: Progress, local: Local) -> None:
    """Requires all partitions of a recreated topic: it is recreated as a whole."""
    for topic in _topics_lost(accepted):
        partitions = progress.partitions.keys() | local.commit.marks.keys()
        others = sorted(p for p in partitions if p[0] == topic and p not in accepted)
        if others:
            options = " ".join(f"--accept-loss {partition_name(each)}" for each in others)
            raise ConfigError(f"all of topic {topic!r} is lost: add {options}")


# ---- accepting -----------------------------------------------------------------------------------


def accept(
    directory: DataDirectory,
    publisher: Publisher,
    committed: Progress,
    accepted: Losses,
    ids: Mapping[str, str],
) -> None:
    """Runs 2. to 5. of the module's head. The directory is started as DEQUEUE, while no process can
    start as INGEST; the publisher is started, and has read `committed`. `ids` are those of the
    present timer topics.

    Raises:
        RecoveryRefused: timers are pending from beyond a cut, or cancelled from there.
        Fenced, KafkaUnavailable: as `commit` of change_settings.py.
    """
    with directory.locked() as before:
        cuts = {p: loss.start or 0 for p, loss in accepted.items() if loss.kind == CUT_SHORT}
        if cuts:
            _require_none_behind(directory, cuts)
            _require_none_cancelled(directory, cuts, before)
            _cut_off_cancels(directory, cuts, before, committed.assignment_epoch)
        close = directory.state.close()
        assert close is not None, "the shard has run"
        # Copies and cancels may be lost: without bounds a cancel would be decided without them.
        CancelBounds.blind_of(close.floor, committed.partitions).write(directory.path, directory.fs)
        for topic in sorted(_topics_lost(accepted)):
            directory.topics.retire(topic)
    commit(directory, publisher, committed, _accepted(committed, accepted, ids))
    _write_pages(directory, accepted, ids)
    for name, loss in by_name(accepted).items():
        log.warning("loss accepted", partition=name, kind=loss.kind, was=loss.was)


def _topics_lost(accepted: Losses) -> set[str]:
    return {topic for (topic, _), loss in accepted.items() if loss.kind != CUT_SHORT}


def _require_none_behind(directory: DataDirectory, cuts: Marks) -> None:
    """Refuses a cut while timers from beyond it are pending: new ones will have their offsets."""
    snapshot, count, last = Snapshot.take(directory), 0, 0
    for hour, log_bytes in snapshot.log_bytes.items():
        for _, slot, records in directory.blocks(hour, 0, log_bytes):
            rows = np.flatnonzero(slot > snapshot.delivered_slot)
            prefix = _prefixes(directory, hour, records[rows])
            behind = prefix["source_offset"] >= _ends(directory, prefix, cuts)
            count += int(behind.sum())
            last = max(last, int(slot[rows][behind].max(initial=0)))
    if count:
        until = np.datetime64(last * directory.config.precision_ms, "ms")
        raise RecoveryRefused(
            f"{count} timers are pending from behind the cut, and new ones will have their "
            f"offsets: let `duewheel dequeue`, which runs without ingest, deliver them first (the "
            f"last one leaves at {until}Z)"
        )


def _require_none_cancelled(directory: DataDirectory, cuts: Marks, before: Commit) -> None:
    """Refuses a cut while timers are pending that a cancel from beyond it has stopped: they would
    be delivered.
    """
    snapshot, precision_ms = Snapshot.take(directory), directory.config.precision_ms
    count, last = 0, 0
    for hour, log_bytes in snapshot.log_bytes.items():
        for rows in directory.cancelled.blocks(hour, 0, before.hours[hour].cancelled_bytes):
            view = directory.log.view(hour, log_bytes)
            records = view.take(rows["position"].astype(np.int64) // RECORD_BYTES)
            slot = slots_in(records, precision_ms)
            behind = rows["offset"] >= _ends(directory, _prefixes(directory, hour, records), cuts)
            behind &= slot > snapshot.delivered_slot
            count += int(behind.sum())
            last = max(last, int(slot[behind].max(initial=0)))
    if count:
        until = np.datetime64(last * precision_ms, "ms")
        raise RecoveryRefused(
            f"{count} pending timers are cancelled from behind the cut, and would be delivered: "
            "let `duewheel dequeue`, which runs without ingest, pass their slots first (the last "
            f"one at {until}Z)"
        )


def _cut_off_cancels(
    directory: DataDirectory, cuts: Marks, before: Commit, assignment_epoch: int
) -> None:
    """Removes the replies to cancels from beyond a cut, by the next assignment epoch: new records
    will have their offsets. A call before, whose transaction has failed, has no effect any more.
    """
    for hour, (length, _) in before.cancels.items():
        if hour < directory.state.live.gc_cancels:
            continue
        for rows in directory.cancels.blocks(hour, length):
            prefix = rows.requests.prefix
            behind = prefix["source_offset"] >= _ends(directory, prefix, cuts)
            in_force = (rows.cut_at > 0) & (rows.cut_at <= assignment_epoch)
            cut_at = np.where(behind, assignment_epoch + 1, 0).astype(np.int32)
            cut_at = np.where(in_force, rows.cut_at, cut_at)
            changed = cut_at != rows.cut_at
            directory.cancels.cut(hour, rows.position[changed], cut_at[changed])


def _prefixes(directory: DataDirectory, hour: int, records: Records) -> Prefixes:
    """Reads the prefixes of messages, which are verified, a bounded number of them at once."""
    blocks = [directory.messages.read_ids(hour, each)[0] for each in split_by_count(records)]
    return np.concatenate([np.empty(0, PREFIX), *blocks])


def _ends(directory: DataDirectory, prefix: Prefixes, cuts: Marks) -> Int64:
    """Returns the offset at which the partition of each message is cut."""
    sources, source = directory.topics.sources(prefix)
    ends: Int64 = np.array([cuts.get(p, _NEVER) for p in sources], np.int64)[source]
    return ends


def _accepted(committed: Progress, accepted: Losses, ids: Mapping[str, str]) -> Progress:
    partitions = dict(committed.partitions)
    for partition, loss in accepted.items():
        before = partitions.pop(partition, PartitionProgress(committed.delivered_slot, 0))
        if loss.start is not None:
            mark = half_mark = replied = loss.start
            if loss.kind == CUT_SHORT:
                # A raised C would count late timers as done that are still pending.
                mark = min(before.delivered_mark, mark)
                half_mark = min(before.half_mark or 0, half_mark)
                replied = min(before.replied_below, replied)
            partitions[partition] = replace(
                before,
                delivered_mark=mark,
                half_mark=None if before.half_mark is None else half_mark,
                replied_below=replied,
            )
    return replace(
        committed,
        partitions=partitions,
        epochs=committed.epochs.cut({p: loss.start or 0 for p, loss in accepted.items()}),
        topic_ids=_ids_after(committed.topic_ids, accepted, ids),
        epoch=committed.epoch + 1,
        assignment_epoch=committed.assignment_epoch + 1,  # a standby of the shard keeps no files
    )


def _write_pages(directory: DataDirectory, accepted: Losses, ids: Mapping[str, str]) -> None:
    """Runs 4. and 5. of the module's head."""
    state = directory.state
    with directory.locked() as before:
        close = state.close()
        assert close is not None, "the shard has run"
        marks_before, marks = (
            _marks_after(each, accepted) for each in (close.marks_before, close.marks)
        )
        state.restart_close(Close(close.lower, marks_before, close.floor, marks))
        # The checkpoint has marks of the lost topic: a recovery would read from lost offsets.
        directory.fs.remove(directory.path / durable_checkpoint.FILE_NAME)
        after = before._replace(
            marks=_marks_after(before.marks, accepted),
            hours={h: HourLengths.applied(files.lengths) for h, files in before.hours.items()},
            topic_ids=_ids_after(before.topic_ids, accepted, ids),
            applied=False,
        )
        # Both pages: were only the newest written, damage to it would restore the old marks.
        for batch in (before.batch + 1, before.batch + 2):
            state.write_commit(after._replace(batch=batch))
            directory.append_runs(Runs.joined([]), batch)
            state.mark_applied()


def _marks_after(marks: Marks, accepted: Losses) -> dict[TopicPartition, int]:
    """Returns marks of a commit or a close page after the losses."""
    after = {p: o for p, o in marks.items() if p not in accepted}
    for partition, loss in accepted.items():
        if loss.start is not None:
            is_cut = loss.kind == CUT_SHORT
            after[partition] = min(loss.start, marks.get(partition, 0)) if is_cut else loss.start
    return after


def _ids_after(
    topic_ids: Mapping[str, str], accepted: Losses, ids: Mapping[str, str]
) -> dict[str, str]:
    lost = _topics_lost(accepted)
    kept = {topic: topic_id for topic, topic_id in topic_ids.items() if topic not in lost}
    return kept | {topic: ids[topic] for topic in lost if topic in ids}
