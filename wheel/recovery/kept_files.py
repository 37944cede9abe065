"""Decides at a start which files are kept; one path serves every case, from a kill to a lost disk.

Dequeue compares Kafka's progress with the local files, decides, and writes the *recovery record*. A
starting ingest waits for the record of the running dequeue, and applies it before Spark starts
(rebuild.py); first_offsets.py has the offsets from which Kafka is read then.

    intact      all files are whole, after a kill or a clean stop: no recovery
    new         the first start of a shard
    standby     all files are whole, and those of a standby (wheel/dequeue/standby.py): no recovery
    power lost  the host has booted without a clean stop: the files are kept as far as the durable
                checkpoint has them
    old copy    all files are kept, and they are older than the progress: a backup was restored; or
                a recovery that keeps all files was killed
    files lost  no file can be kept
    taken over  nothing is kept: another directory, or another copy of this one, has written the
                progress, so these files are no earlier state of it; or it has no owner, after
                partitions have moved between shards
    new standby the same for the first start of a standby

Missing rows are read again from Kafka. Two rules make that exact, whatever files were kept:

    dequeue   neither closes nor delivers while a mark is below C of the close page
    ingest    drops rows below C that are done (checkpoints/progress.py), and places the others at
              max(slot, R + 1), closed or not: where they were before, or earlier

A recovery keeps the close page if the progress is in its range. Otherwise the new page begins at R,
with C_R, and contains the half-delivered slot, if any, with C_{R+1}. Partitions that came from
different shards each have their own R, C and half-delivered slot: the page then begins at the
lowest R and ends at the last slot with rows that may be out. A standby has this close page at every
moment: its files may be kept as long as progress only rises and partitions stay in their shard.
checkpoints/ownership.py decides which directory may *own* the shard.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from duewheel.checkpoints.commit_and_close_pages import Close, Marks
from duewheel.checkpoints.local_state import Keep, Local, is_own
from duewheel.checkpoints.progress import PartitionProgress, Progress
from duewheel.checkpoints.state_file import Damage
from duewheel.errors import RecoveryRefused
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.partition_names import partition_name


@dataclass(frozen=True, slots=True)
class Decision:
    """The files that a start keeps, and where delivery continues."""

    case: str
    keep: Keep
    close: Close  # the closed range in which delivery continues, or ended
    delivered_slot: int  # R, from close.lower to close.floor
    # D of the next slot, for partitions that have delivered half of it. Partitions that are ahead
    # have no row before their own half-delivered slot.
    half_below: Marks

    @property
    def is_whole(self) -> bool:
        """Whether no recovery is needed."""
        return self.case in {"intact", "standby"}


def decide(progress: Progress, local: Local) -> Decision:
    """Compares a progress that this directory may own with the local files.

    Raises:
        RecoveryRefused: Kafka has lost progress that the files have; nothing has changed.
    """
    if _may_keep(progress, local):
        _require_not_older(progress, local)
    keep = _keep(progress, local)
    # `base` and `marks`: closed range and high-water marks of the kept files; None without any.
    base, marks = _kept(local, keep)
    if base is not None and _follows_only(progress, local):
        base = close_at(progress)
        if any(mark > base.marks.get(p, 0) for p, mark in marks.items()):
            keep, base = Keep.NOTHING, None
    if base is not None and not _follows(progress, base, marks):
        keep, base = Keep.NOTHING, None
    parts, slot = progress.partitions, progress.delivered_slot
    if base is not None and progress.closed_slot <= base.floor:
        # Slots up to base.lower were empty when they were closed, which no progress records.
        close, slot = base, max(slot, base.lower)
    else:
        close = close_at(progress)
    half = {
        p: part.half_below
        for p, part in parts.items()
        if part.half_below is not None and part.delivered_slot == slot
    }
    return Decision(_case(progress, local, keep, close), keep, close, slot, half)


def decide_to_follow(progress: Progress, local: Local) -> Decision:
    """Decides for a standby, as `decide`, but without a refusal. If Kafka has lost progress that
    the files have, rows may be pending again that the standby has dropped as done: it keeps
    nothing, and reads the pending rows again.
    """
    mirror = local.mirror
    fallen = mirror is not None and is_older(progress, mirror)
    if local.standby and (fallen or _is_below_durable(progress, local)):
        local = replace(local, damage=Damage.FILES_LOST, mirror=None, durable=None)
    decision = decide(progress, local)
    return decision if local.standby else replace(decision, case="new standby")


def close_at(progress: Progress) -> Close:
    """Derives a close page from a progress alone."""
    marks_before = {p: part.delivered_mark for p, part in progress.partitions.items()}
    marks = {p: part.closed_mark for p, part in progress.partitions.items()}
    return Close(progress.delivered_slot, marks_before, progress.closed_slot, marks)


def _follows_only(progress: Progress, local: Local) -> bool:
    """Returns whether the progress is another directory's, and these files are its standby's."""
    return local.standby and not is_own(progress, local)


def _may_keep(progress: Progress, local: Local) -> bool:
    mirror = local.mirror
    followed = mirror is not None and _assignment(mirror) == _assignment(progress)
    return (local.standby and followed) or is_own(progress, local)


def _assignment(progress: Progress) -> tuple[int, int]:
    """Identifies the assignment of partitions: one `reshard` gives all shards the same epoch."""
    return progress.shard, progress.assignment_epoch


def _keep(progress: Progress, local: Local) -> Keep:
    """Returns how much of the files is whole, and belongs to the history of the progress."""
    if not _may_keep(progress, local):
        return Keep.NOTHING
    keep = Keep.ALL
    if local.close is None or local.damage is Damage.FILES_LOST:
        keep = Keep.NOTHING
    if local.damage is Damage.CACHE_LOST:
        keep = Keep.DURABLE if local.durable and local.durable.close else Keep.NOTHING
    return min(keep, local.pending.keep) if local.pending else keep


def _kept(local: Local, keep: Keep) -> tuple[Close | None, Marks]:
    """Returns the close page and the marks of the kept files; None and no marks without any."""
    if keep is Keep.ALL:
        return local.close, local.commit.marks
    if keep is Keep.DURABLE and local.durable is not None:
        return local.durable.close, local.durable.marks
    return None, {}


def _follows(progress: Progress, base: Close, marks: Marks) -> bool:
    """Returns whether the progress can be of this closed range, or of a later one."""
    parts = progress.partitions
    if progress.closed_slot <= base.floor:
        return all(
            part.half_mark is None or part.closed_slot > base.lower for part in parts.values()
        )
    # Either a later range was closed after all rows of these files; or their histories differ.
    later = {
        p: part.delivered_mark if part.delivered_slot > base.floor else part.half_mark
        for p, part in parts.items()
    }
    return all(mark <= (later.get(p) or 0) for p, mark in marks.items())


def _case(progress: Progress, local: Local, keep: Keep, close: Close) -> str:
    if keep is Keep.ALL:
        if _follows_only(progress, local) and not local.undone:
            return "standby"
        whole = close == local.close and not local.undone
        return "intact" if whole else "old copy"
    if keep is Keep.DURABLE:
        return "power lost"
    if not _may_keep(progress, local):
        return "taken over"
    return "new" if local.is_fresh else "files lost"


# ---- progress that Kafka has lost ---------------------------------------------------------------


def is_older(progress: Progress, seen: Progress) -> bool:
    """Returns whether Kafka has lost progress of any partition since `seen`."""
    return next(_fallen(progress, seen), None) is not None


def _fallen(progress: Progress, seen: Progress) -> Iterator[TopicPartition]:
    newest = max((at.delivered_slot for at in progress.partitions.values()), default=0)
    for partition, before in seen.partitions.items():
        found = progress.partitions.get(partition)
        if found is None:
            # A loss was accepted for it; or the last rows of such a topic are out.
            fallen = (progress.epoch, newest) <= (seen.epoch, before.delivered_slot)
        else:
            fallen = _place(found) < _place(before)
        if fallen:
            yield partition


def _place(part: PartitionProgress) -> tuple[int, int]:
    return part.delivered_slot, part.half_below or 0


def _is_below_durable(progress: Progress, local: Local) -> bool:
    """Returns whether Kafka has lost progress that the durable checkpoint has: the mirror is not
    synced, and may be older than both. No partition is below the lowest R.
    """
    given_up = local.pending is not None and local.pending.keep is Keep.NOTHING
    durable = None if given_up else local.durable
    return durable is not None and progress.delivered_slot < durable.delivered_slot


def _require_not_older(progress: Progress, local: Local) -> None:
    mirror, durable = local.mirror, local.durable
    if mirror is not None and (fallen := next(_fallen(progress, mirror), None)):
        than = (
            f"the local copy of it: {partition_name(fallen)} is at "
            f"{progress.partitions.get(fallen)}, was at {mirror.partitions[fallen]}"
        )
    elif durable is not None and _is_below_durable(progress, local):
        than = (
            f"the durable checkpoint: it has slot {progress.delivered_slot}, the checkpoint slot "
            f"{durable.delivered_slot}"
        )
    else:
        return
    raise RecoveryRefused(
        f"the progress in Kafka is older than {than}. Kafka has lost committed records, "
        "deliveries perhaps among them; this version cannot tell which"
    )
