"""Whether a process may go on with the progress of a shard: refusals, each with its way out.

    sealed      nobody may: its partitions are being reassigned to another number of shards
    shard       it was written as that one, of as many as the configuration says
    settings    those that decide when a timer is due are the same as in its newest epoch
    owner       it is this directory's own; or its owner is nobody, is said to be gone, or has been
                silent for so long that a standby, an empty directory or an older copy may follow

What becomes of the local files then is another question (recovery_decision.py). Nothing is changed
here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from duewheel.checkpoints.progress import NOBODY, Progress
from duewheel.checkpoints.recovery_decision import Local, is_own
from duewheel.errors import Fenced, RecoveryPending, RecoveryRefused


def require_same_settings(
    progress: Progress, *, shard: int, shards: int, slot_config: Mapping[str, Any]
) -> None:
    """Refuse to go on with a progress record under other settings than those that hold now.

    Raises:
        RecoveryRefused: with both sides.
    """
    require_same_shard(progress, shard=shard, shards=shards)
    changes = progress.epochs.newest.changes(slot_config)
    if changes:
        sides = "; ".join(f"{key}: was {old!r}, is {new!r}" for key, (old, new) in changes.items())
        raise RecoveryRefused(
            f"settings that decide when a timer is due have changed ({sides}): run `duewheel "
            "reconfigure`, with both processes stopped, or restore the old values"
        )


def require_same_shard(progress: Progress, *, shard: int, shards: int) -> None:
    """Refuse a progress record of another shard, or of one among more or fewer.

    Raises:
        RecoveryRefused: with both sides.
    """
    require_not_sealed(progress)
    if (progress.shard, progress.shards) != (shard, shards):
        raise RecoveryRefused(
            f"the progress was written as shard {progress.shard} of {progress.shards}, the "
            f"configuration says {shard} of {shards}: `duewheel reshard` changes their number"
        )


def require_not_sealed(progress: Progress) -> None:
    """Refuse a shard that nobody may own.

    Raises:
        RecoveryRefused: saying why, and what ends that.
    """
    if progress.sealed_for is None:
        return
    if not progress.partitions:
        raise RecoveryRefused(
            f"there is no shard {progress.shard}: `duewheel reshard` has made "
            f"{progress.sealed_for} of them, or is about to"
        )
    raise RecoveryRefused(
        f"shard {progress.shard} is sealed: its partitions are being reassigned to "
        f"{progress.sealed_for} shards; `duewheel reshard --to {progress.sealed_for}` finishes "
        f"that, `--to {progress.shards}` undoes it"
    )


def require_may_own(
    progress: Progress,
    local: Local,
    *,
    age_ms: Callable[[], int],
    take_over_after_ms: int,
    take_over: bool,
) -> None:
    """Refuse a shard that another data directory, or another copy of this one, may be serving.

    Args:
        progress: the newest in Kafka.
        local: this directory.
        age_ms: loads how long ago the progress was written, by the broker's clock.
        take_over_after_ms: a standby, an empty directory, or an old copy of the owner's directory
            may take over from an owner that has been silent for longer.
        take_over: the operator says that the owner is gone.

    Raises:
        Fenced: naming the owner and the way out.
        RecoveryPending: the owner has not been silent for long enough yet: try again later.
    """
    if progress.owner == NOBODY or take_over:
        return
    if is_own(progress, local) or _is_claimed(progress, local):
        return
    silent_ms = age_ms()
    may_follow = local.standby or local.is_fresh or progress.owner == local.uuid
    if may_follow and silent_ms > take_over_after_ms:
        return
    who = (
        f"another copy of the data directory {local.uuid}"
        if progress.owner == local.uuid
        else f"the data directory {progress.owner}, this one is {local.uuid}"
    )
    reason = (
        f"shard {progress.shard} belongs to {who}; its last sign of life is "
        f"{silent_ms / 1000:.0f} s old. If no process serves it any more, start with --take-over"
    )
    if may_follow:
        raise RecoveryPending(f"{reason}. It is followed after {take_over_after_ms / 1000:.0f} s")
    raise Fenced(reason)


def _is_claimed(progress: Progress, local: Local) -> bool:
    """Whether the last start was allowed to follow this very progress, and ended before it said so
    in Kafka. An owner that has started since has drawn another incarnation.
    """
    followed, drawn = local.incarnations
    return drawn != 0 and progress.incarnation == followed
