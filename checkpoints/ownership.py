"""Decides whether a data directory may own the progress of a shard; each refusal has its remedy.

    sealed      the shard is not sealed: no directory may own one while partitions are reassigned
    shard       the progress has the shard's index, and the number of shards, of the configuration;
                the mirror, if it can be read, has the index, too, which the process checks before
                it starts: a start would discard the files of another shard. A shard that
                begins has the number of the others
    settings    the settings that decide when a timer is due are those of its newest epoch: with
                the shard `require_fits`, which DequeueConfig calls with its own values
    owner       this directory wrote the progress; or the progress has no owner, the operator has
                given --take-over, or the owner has been silent for so long that a standby, an empty
                directory or an older copy may take over

Only this module decides that, at every start of dequeue (wheel/recovery/startup.py). Others only
try a start: a standby after silence or a promotion (`Verdict` in wheel/dequeue/standby.py), an
empty directory again and again (src/duewheel/runtime/dequeue_process.py). Of two directories that
may own the shard, the later one's claim fences the other.

This module changes nothing. wheel/recovery/kept_files.py decides which local files are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from duewheel.checkpoints.local_state import Local, is_own
from duewheel.checkpoints.progress import NOBODY, Progress
from duewheel.errors import Fenced, OwnerAlive, RecoveryRefused


def require_fits(
    progress: Progress, *, shard: int, shards: int, slot_config: Mapping[str, Any]
) -> None:
    """Refuses a progress record with other settings than the present ones.

    Raises:
        RecoveryRefused: with both values.
    """
    require_same_shard(progress, shard=shard, shards=shards)
    changes = progress.epochs.newest.changes(slot_config)
    if changes:
        sides = "; ".join(f"{key}: was {old!r}, is {new!r}" for key, (old, new) in changes.items())
        raise RecoveryRefused(
            f"settings that decide when a timer is due have changed ({sides}): run `duewheel "
            "reconfigure`, or restore the old values"
        )


def require_same_shard(progress: Progress, *, shard: int, shards: int) -> None:
    """Refuses a progress record of another shard, or of another number of shards.

    Raises:
        RecoveryRefused: with both values.
    """
    require_not_sealed(progress)
    if (progress.shard, progress.shards) != (shard, shards):
        raise RecoveryRefused(
            f"the progress was written as shard {progress.shard} of {progress.shards}, the "
            f"configuration says {shard} of {shards}: `duewheel reshard` changes their number"
        )


def require_as_many(shards: Iterable[Progress], count: int) -> None:
    """Refuses to begin a shard while others count their shards differently.

    Raises:
        RecoveryRefused: naming both numbers.
    """
    for each in shards:
        if each.partitions and each.shards != count:
            raise RecoveryRefused(
                f"shard {each.shard} is one of {each.shards}, the configuration says {count}: "
                f"`duewheel reshard --to {count}` reassigns the partitions"
            )


def require_own_files(local: Local, shard: int, path: Path) -> None:
    """Refuses the files of another shard, whatever the options: that shard may be started again.
    Those of its standby are a copy, which a start may discard.

    Raises:
        RecoveryRefused: with both shards.
    """
    if local.mirror is not None and local.mirror.shard != shard and not local.standby:
        raise RecoveryRefused(
            f"{path} has the files of shard {local.mirror.shard}, the configuration says shard "
            f"{shard}: set shard.index or storage.data_dir to those that belong together, or "
            "start with an empty directory"
        )


def require_not_sealed(progress: Progress) -> None:
    """Refuses a sealed shard.

    Raises:
        RecoveryRefused: with the reason and the remedy.
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
    """Refuses a shard that another data directory, or another copy of this one, may be serving.

    Args:
        age_ms: loads the age of the progress, by the brokers' clock.
        take_over_after_ms: the silence after which a standby, an empty directory, or an old copy of
            the owner's directory may take over.
        take_over: the operator has given --take-over.

    Raises:
        Fenced: with the owner and the remedy.
        OwnerAlive: the owner's silence is still too short: try again later.
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
        f"shard {progress.shard} belongs to {who}; its last heartbeat is "
        f"{silent_ms / 1000:.0f} s old. If no process serves it any more, start with --take-over"
    )
    if may_follow:
        raise OwnerAlive(
            f"{reason}. Takes over after {take_over_after_ms / 1000:.0f} s",
            take_over_after_ms - silent_ms,
        )
    raise Fenced(reason)


def _is_claimed(progress: Progress, local: Local) -> bool:
    """Returns whether the last start was allowed to own this very progress, and died before it
    wrote its own to Kafka. An owner that started since has drawn another incarnation.
    """
    followed, drawn = local.incarnations
    return drawn != 0 and progress.incarnation == followed
