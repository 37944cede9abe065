"""Starts dequeue: takes the shard, decides how much of the files is kept, and informs ingest.

    1. reads the newest progress without taking the shard: its owner may be alive
    2. takes the shard (which ends an open transaction of a predecessor), and reads the progress
       again
    3. under engine.lock progress and files are compared (wheel/recovery/kept_files.py). Then
       are written, in this order: cancel bounds, except after a kill with a new mirror; a higher
       generation, if a recovery is necessary; recovery record; mirror; close page. The decision was
       made from the last two, so the record comes before them. A running ingest sees the generation
       and stops; a starting one applies the record. Last of all an incarnation is claimed locally,
       and a request for other settings ends: ingest, which has waited since it, then sees the
       incarnation, and compares the settings epochs of the mirror with those of its batch
    4. the caller publishes that incarnation with the progress, before anything else

After a kill in between the next start decides the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import structlog

from duewheel.checkpoints.cancel_bounds import CancelBounds
from duewheel.checkpoints.config_epochs import Epochs
from duewheel.checkpoints.held_copies import named
from duewheel.checkpoints.local_state import Local, RecoveryRecord, read_local_state
from duewheel.checkpoints.ownership import require_may_own
from duewheel.checkpoints.progress import PartitionProgress, Progress
from duewheel.checkpoints.progress_mirror import UNCOUNTED, Mirror
from duewheel.errors import RecoveryRefused
from duewheel.schemas.batches import TopicPartition
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.publisher_protocol import Publisher, publish_progress
from duewheel.wheel.recovery.kept_files import Decision, decide
from duewheel.wheel.slots import closable_slot
from duewheel.wheel.storage.cross_file_damage import survey_files
from duewheel.wheel.storage.data_directory import LOCK_DEADLINE_S, DataDirectory

NO_PROGRESS = (
    "Kafka has no progress for this shard, and it is not a new one: run `duewheel init` if nothing "
    "was ever scheduled with these topics"
)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Started:
    """The outcome of a start: where the loop begins."""

    decision: Decision
    committed: Progress  # the progress as it is in Kafka
    # The same with this owner, incarnation and epoch, which the loop publishes first
    progress: Progress
    begun_s: float  # when the start began, by `time.monotonic`


def start(
    directory: DataDirectory,
    publisher: Publisher,
    config: DequeueConfig,
    first: Progress | None,
    *,
    take_over: bool,
    before_claim: Callable[[], None] = lambda: None,
) -> Started:
    """Runs the four steps of the module's head.

    Args:
        first: progress of a shard that never had any; None if it may have had some.
        take_over: the operator has given --take-over.
        before_claim: called between 1. and 2.; its errors are raised.

    Raises:
        Fenced: the shard is another directory's; nothing has been changed.
        RecoveryRefused: its progress and the files contradict each other; nothing has been changed.
        RecoveryPending: another instance may own the shard; try again later.
        KafkaUnavailable: no answer in time.
        PublishDoubt: the outcome of publishing `first` is unknown; start again.
    """
    begun_s = time.monotonic()
    seen = publisher.peek()
    if seen is not None:
        _require_may_own(directory, publisher, config, seen, take_over)
    before_claim()
    committed = publisher.start()
    if committed is None:
        committed = _without_progress(directory, publisher, config, first, take_over=take_over)
    elif seen is None or committed.encode() != seen.encode():
        _require_may_own(directory, publisher, config, committed, take_over)
    state, incarnation = directory.state, directory.fs.random_bits(62)
    claimed = committed.incarnation, incarnation
    decision = publish_decision(directory, committed, decide, claimed)
    progress = replace(
        committed, owner=state.uuid, incarnation=incarnation, epoch=committed.epoch + 1
    )
    return Started(decision, committed, progress, begun_s)


def _require_may_own(
    directory: DataDirectory,
    publisher: Publisher,
    config: DequeueConfig,
    progress: Progress,
    take_over: bool,
) -> None:
    config.require_fits(progress, directory.config)
    require_may_own(
        progress,
        read_local_state(directory.state, directory.path),
        age_ms=publisher.age_ms,
        take_over_after_ms=config.take_over_after_ms,
        take_over=take_over,
    )


def _without_progress(
    directory: DataDirectory,
    publisher: Publisher,
    config: DequeueConfig,
    first: Progress | None,
    *,
    take_over: bool,
) -> Progress:
    """Returns the progress to start from if Kafka has none: the mirror, else a new shard's."""
    mirror = directory.state.mirror()
    if directory.state.standby and not take_over:
        raise RecoveryRefused(
            "the state topic has lost the progress: start the owner, whose copy is newer than that "
            "of this standby; if it is gone for good, start here with --take-over"
        )
    if mirror is not None:
        log.error(
            "the state topic has lost the progress: continuing from the mirror, which may lack "
            "the last transaction",
            slot=mirror.delivered_slot,
        )
        copy = mirror.progress
        config.require_fits(copy, directory.config)
        if copy.held:
            log.error("the copies held in it are lost, too", copies=named(copy.held))
        return replace(copy, held={})
    if first is None:
        raise RecoveryRefused(NO_PROGRESS)
    publish_progress(publisher, first)
    return first


def publish_decision(
    directory: DataDirectory,
    committed: Progress,
    deciding: Callable[[Progress, Local], Decision],
    claimed: tuple[int, int],
    *,
    follows: bool = False,
) -> Decision:
    """Runs 3. of the module's head. `claimed` is the incarnation of `committed`, and the one that
    this start will publish; zeros for a standby, which publishes none. `follows`: the directory
    becomes a standby.
    """
    state = directory.state
    with directory.engine_lock.held(LOCK_DEADLINE_S):
        local = survey_files(directory)
        decision = deciding(committed, local)
        if decision.case != "intact" or local.mirror != committed:
            # The files may lack logs of copies, also those of a backup that was restored: ingest
            # would decide a cancel without them, and its timer would be delivered after the reply.
            CancelBounds.blind_of(decision.delivered_slot, committed.partitions).write(
                directory.path, directory.fs
            )
        generation = state.recovered
        if not decision.is_whole:
            generation = max(generation, state.generation) + 1
            # Before record and pages: an ingest of the former generation must not read those with
            # its files.
            state.set_generation(generation)
        RecoveryRecord(
            decision.case, decision.keep, generation, state.boot_id, state.dequeue_starts
        ).write(directory.path, directory.fs)
        state.write_mirror(Mirror.of(committed, UNCOUNTED))
        if decision.close != local.close or not decision.is_whole:
            state.restart_close(decision.close)
        # Under the same lock as the decision: ingest must not see one without the other.
        if follows and not state.standby:
            state.set_standby(on=True)
        # Last: ingest has waited for it, and compares the epochs of the mirror above with its own.
        state.claim(*claimed)
        state.live.want_settings(0)
    return decision


def first_progress(
    directory: DataDirectory,
    config: DequeueConfig,
    starts: Mapping[TopicPartition, int],
    now_ms: int,
) -> Progress:
    """Makes the progress of a new shard: R is now, offsets below `starts` are done."""
    r = closable_slot(now_ms, directory.config.precision_ms)
    partitions = {
        partition: PartitionProgress(r, offset, replied_below=offset)
        for partition, offset in starts.items()
    }
    owner = directory.state.uuid
    incarnation = directory.state.incarnations[1]
    epochs = Epochs.first(config.slot_values(directory.config))
    return Progress(config.shard, config.shards, owner, incarnation, 0, epochs, partitions)
