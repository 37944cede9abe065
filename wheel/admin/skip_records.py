"""Plans which records ingest makes dead letters of without parsing them: `reconfigure --skip`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.checkpoints.local_state import Local
from duewheel.checkpoints.progress import Progress, shard_of
from duewheel.errors import ConfigError, RecoveryRefused
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.partition_names import partition_name
from duewheel.wheel.admin.change_settings import require_owned, taken_until
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.recovery.first_offsets import OffsetsAt, first_marks
from duewheel.wheel.slots import WheelConfig

SKIPPED_MAX = 100  # each is in every commit of the progress


def skip(
    named: Collection[tuple[TopicPartition, int]],
    committed: Progress | None,
    local: Local,
    wheel: WheelConfig,
    config: DequeueConfig,
    offsets_at: OffsetsAt,
    ends: Marks,
) -> Progress:
    """Plans to skip the records with these partitions and offsets; changes nothing. Ingest need not
    have caught up: only a row that was never placed can be skipped, because a placed one may be
    delivered already. `committed` and `ends` (of the timer partitions) come from Kafka;
    `offsets_at` as for `plan`.

    Raises:
        RecoveryRefused: ingest has taken one, or the shard is another directory's; or the progress
            has no room.
        ConfigError: a record does not exist yet, or too many would be skipped.
    """
    if committed is None:
        raise RecoveryRefused("Kafka has no progress for this shard: there is no record to skip")
    require_owned(committed, local, config)
    taken_below = taken_until(committed, local)
    for partition, offset in sorted(named):
        name, taken = f"{partition_name(partition)}@{offset}", taken_below.get(partition, 0)
        if partition not in ends or shard_of(partition, config.shards) != config.shard:
            raise ConfigError(f"--skip {name}: this shard reads no such partition")
        if offset >= ends[partition]:
            raise ConfigError(f"--skip {name}: the partition ends at {ends[partition]}")
        if offset < taken and offset not in committed.epochs.skipped.get(partition, ()):
            raise RecoveryRefused(
                f"--skip {name}: taken already, as everything below {taken}. Its timer can be "
                "cancelled (`duewheel cancel`)"
            )
    epochs = committed.epochs.reaching(first_marks(wheel, committed, offsets_at)).skipping(named)
    count = sum(map(len, epochs.skipped.values()))
    if count > SKIPPED_MAX:
        raise ConfigError(f"--skip: {count} records would be skipped, {SKIPPED_MAX} may be")
    if epochs == committed.epochs:
        return committed
    wanted = replace(committed, epochs=epochs, epoch=committed.epoch + 1)
    wanted.require_room()
    return wanted
