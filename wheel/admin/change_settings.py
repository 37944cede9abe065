"""Gives a shard another slot configuration from the next row on: `duewheel reconfigure`.

    1. ingest commits no batch: either the locks of both processes are held, so that neither runs
       nor can start; or dequeue runs this, and `state` has the request for it, which lasts until
       dequeue has started with the new settings (src/duewheel/runtime/take_settings.py)
    2. the newest progress is read. The change is refused unless this directory is its owner's,
       whole, and has caught up: only then are its marks above every row that was ever placed
    3. the transactional id is taken, and 2 done again: a forgotten instance elsewhere is fenced
    4. one transaction: the same progress, with an epoch that begins at max(marks, C) in every
       partition, and without the epochs that no recovery reads any more. A new key for copies
       holds from the partition's end: below it are copies of the former one, or unsigned ones
    5. the progress is mirrored

A kill leaves the old progress or the new one, which the next start of dequeue mirrors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.checkpoints.config_epochs import PRECISION
from duewheel.checkpoints.local_state import Local, is_own
from duewheel.checkpoints.ownership import require_same_shard
from duewheel.checkpoints.progress import RECORD_BYTES_MAX, Progress
from duewheel.checkpoints.progress_mirror import UNCOUNTED, Mirror
from duewheel.errors import ConfigError, Fenced, KafkaUnavailable, RecoveryRefused
from duewheel.schemas.batches import TopicPartition, is_retired
from duewheel.schemas.partition_names import partition_name
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.doubt_resolution import CommitOutcome, Ledger
from duewheel.wheel.publisher_protocol import Publisher, publish_progress
from duewheel.wheel.recovery.first_offsets import OffsetsAt, first_marks
from duewheel.wheel.recovery.kept_files import decide
from duewheel.wheel.slots import WheelConfig
from duewheel.wheel.storage.cross_file_damage import survey_files
from duewheel.wheel.storage.data_directory import LOCK_DEADLINE_S, DataDirectory

_ATTEMPTS_MAX = 20  # each with a producer of its own; a broker may refuse the record for good


@dataclass(frozen=True, slots=True)
class Rotation:
    """A new key for copies."""

    draw: Callable[[int], int]  # draws its bits
    # The ends of these partitions in Kafka: no copy of the former key is above them once the
    # transactional id is taken.
    ends: Callable[[Collection[TopicPartition]], Marks]


@dataclass(frozen=True, slots=True)
class Plan:
    """A change of settings before its commit."""

    committed: Progress  # the progress before it
    # Old and new value of every changed setting; empty without a change
    changes: Mapping[str, tuple[Any, Any]]
    since: Marks  # the first offsets of the new epoch
    dropped: int  # the number of dropped epochs
    progress: Progress  # with the new epoch; equal to `committed` without a change


def plan(
    committed: Progress | None,
    local: Local,
    wheel: WheelConfig,
    config: DequeueConfig,
    offsets_at: OffsetsAt,
    record_bytes_max: int = RECORD_BYTES_MAX,
    rotation: Rotation | None = None,
    *,
    runs: bool = False,
) -> Plan:
    """Plans 2. and 4. of the module's head; changes nothing.

    Args:
        committed: the newest progress in Kafka.
        rotation: None: the keys of copies stay.
        runs: dequeue runs, and decides itself whether the directory is whole.

    Raises:
        RecoveryRefused: the shard must run first, or is another directory's; or it has had too many
            changes; or a new key comes while copies are held.
        ConfigError: a setting does not permit this change.
    """
    progress = require_settled(committed, local, config, runs=runs)
    old, values = progress.epochs, config.slot_values(wheel)
    changes = config.changes(progress, wheel)
    if not changes and rotation is None:
        return Plan(progress, {}, {}, 0, progress)
    if PRECISION in changes:
        raise ConfigError(
            f"timer.precision_ms was {changes[PRECISION][0]}, is {changes[PRECISION][1]}: the "
            "progress counts in slots of that length. Restore it, or let everything that is "
            "pending run out and start over: another app.id, an empty data directory"
        )
    since: Marks = taken_until(progress, local)
    lowest = first_marks(wheel, progress, offsets_at)
    wanted_epochs = old
    if changes:
        wanted_epochs = old.extended_by(values, since)
        since = wanted_epochs.newest.since
    if rotation is not None:
        _require_none_held(progress)
        ends = rotation.ends(since)
        since = {p: max(taken, ends.get(p, 0)) for p, taken in since.items()}
        wanted_epochs = wanted_epochs.extended_by(values, since).drawing_key(rotation.draw)
    epochs = wanted_epochs.reaching(lowest)
    dropped = len(wanted_epochs) - len(epochs)
    wanted = replace(progress, epochs=epochs, epoch=progress.epoch + 1)
    wanted.require_room(record_bytes_max)
    return Plan(progress, changes, since, dropped, wanted)


def _require_none_held(progress: Progress) -> None:
    """Refuses held copies: they come to their partition later, signed with the former key."""
    for partition, held in progress.held.items():
        raise RecoveryRefused(
            f"{held.copies} copies for {partition_name(partition)} are held, which took no writes "
            "when they left: run the shard until the partition has them, then draw the new key"
        )


def require_settled(
    committed: Progress | None, local: Local, config: DequeueConfig, *, runs: bool = False
) -> Progress:
    """Returns the progress, if this directory is its owner's and whole; `runs` as for `plan`.

    Raises:
        RecoveryRefused: this is another directory, or one that must recover.
    """
    if committed is None:
        raise RecoveryRefused("Kafka has no progress for this shard: there is nothing to change")
    require_owned(committed, local, config)
    if runs:
        return committed
    decision = decide(committed, local)
    missing = decision.close.missing(local.commit.marks)
    if not decision.is_whole or missing:
        reason = f"case {decision.case!r}" if not decision.is_whole else f"missing {dict(missing)}"
        raise RecoveryRefused(
            f"the data directory has to recover first ({reason}): start the shard, wait until "
            "`duewheel status` shows no recovery, stop it, and try again"
        )
    return committed


def require_owned(committed: Progress, local: Local, config: DequeueConfig) -> None:
    """Refuses a directory that is not the owner's.

    Raises:
        RecoveryRefused: with the owner; or the progress is another shard's.
    """
    require_same_shard(committed, shard=config.shard, shards=config.shards)
    if local.standby or not is_own(committed, local):
        raise RecoveryRefused(
            f"shard {committed.shard} belongs to the data directory {committed.owner}, not to this "
            "one: run this where its owner ran last"
        )


def taken_until(progress: Progress, local: Local) -> dict[tuple[str, int], int]:
    """Returns for each partition the offset above the last placed row."""
    closed = local.close.marks if local.close else {}
    parts = progress.partitions
    return {
        p: max(
            local.commit.marks.get(p, 0),
            closed.get(p, 0),
            parts[p].closed_mark if p in parts else 0,
        )
        for p in local.commit.marks.keys() | closed.keys() | parts.keys()
        if not is_retired(p[0])
    }


def take(
    directory: DataDirectory,
    publisher: Publisher,
    config: DequeueConfig,
    offsets_at: OffsetsAt,
    record_bytes_max: int = RECORD_BYTES_MAX,
    rotation: Rotation | None = None,
) -> Plan:
    """Runs all steps but the first; takes and commits nothing without a change. The directory is
    started as DEQUEUE, while ingest commits no batch; the other arguments are those of `plan`.

    Raises:
        RecoveryRefused, ConfigError: as `plan`.
        KafkaUnavailable: no answer in time; the next run shows whether it was committed.
        Fenced: another instance has taken the shard meanwhile.
    """
    wheel = directory.config
    terms = (wheel, config, offsets_at, record_bytes_max, rotation)
    planned = plan(publisher.peek(), _survey(directory), *terms)
    if not planned.changes and rotation is None:
        return planned
    planned = plan(publisher.start(), _survey(directory), *terms)
    commit(directory, publisher, planned.committed, planned.progress)
    return planned


def _survey(directory: DataDirectory) -> Local:
    with directory.engine_lock.held(LOCK_DEADLINE_S):
        return survey_files(directory)


def commit(
    directory: DataDirectory, publisher: Publisher, committed: Progress, wanted: Progress
) -> None:
    """Replaces `committed` by `wanted`, in Kafka and then locally.

    Raises:
        Fenced: another instance has committed a progress in between.
        KafkaUnavailable: no answer in time.
    """

    def publish(_: None, progress: Progress) -> int | None:
        return publish_progress(publisher, progress)

    ledger = Ledger(lambda _: publisher.start(), publish, committed)
    for _ in range(_ATTEMPTS_MAX):
        result = ledger.commit(None, wanted)
        if result.outcome is CommitOutcome.COMMITTED:
            break
        if result.outcome is CommitOutcome.ANOTHERS:
            raise Fenced("another instance has written the progress meanwhile") from result.doubt
    else:
        raise KafkaUnavailable(
            f"nothing was changed: {_ATTEMPTS_MAX} transactions were aborted: {result.doubt}"
        ) from result.doubt
    state = directory.state
    with directory.engine_lock.held(LOCK_DEADLINE_S):
        mirror = state.mirror()
        # Only after the commit: a mirror ahead of Kafka would make deliveries seem done that never
        # were.
        state.write_mirror(Mirror.of(wanted, mirror.delivered_rows if mirror else UNCOUNTED))
