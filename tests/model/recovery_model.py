"""The rule of recovery, small enough to be tried against every order of events.

Nothing of the real code runs here: this is what it is meant to do, one function per decision. Times
are slots. Here is what a start decides and where a row is placed; around it `kafka_model`,
`files_model`, `ingest_model` and `dequeue_model`; of cancels, `resolving_model` has what ingest
does and `answering_model` what dequeue does; `upkeep_model` has what happens to files now and then.
`processes`, `faults` and `world` have the runs, `judge` the verdict, `clauses` a switch for every
clause, to see that breaking it is noticed.

Names here and in the code: flag = mark of a cancelled record (MAGIC_CANCELLED) · list =
cancelled/<hour> · segment = cancels/<hour> · word = reply · g = chase_slot · request =
origin_offset of a cancel · held = checkpoints/held_copies.py.

What must hold, after each commit of a progress record:

- a row has left its slot (delivered, rolled, parked, cancelled, dead-lettered) if and only if the
  record says *done* (`is_done`);
- of the rows of a closed slot n, exactly those below C_n whose own slot is n or earlier are in
  slots up to n: late ones go above what is closed, those read again go where they were closed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.model.clauses import Clauses
from tests.model.files_model import Close, Directory, Files, Keep, Recovery
from tests.model.kafka_model import (
    Kafka,
    Progress,
    is_done,
)

MARGIN = 2  # how far a record's timestamp may lie in the past


def decide(
    directory: Directory, progress: Progress, incarnation: int, clauses: Clauses
) -> Progress:
    """Dequeue's part of a start: what is kept, and the close page it goes on with.

    Args:
        incarnation: a name for the local history from here on.

    Returns:
        The progress to publish before anything else happens.
    """
    keep = _kept(directory, progress, clauses)
    base = _kept_base(directory, keep)
    follows = directory.standby and not _is_own(directory, progress, clauses)
    if base is not None and follows:
        base = _close_at(progress, progress.r, clauses)
    if base is not None and _within(base, progress):
        close = base
        if not clauses.floor_is_that_of_the_close_page and directory.close is not None:
            close = replace(base, floor=max(base.floor, directory.close.floor))
        if not clauses.floor_of_what_is_kept_counts and keep is Keep.DURABLE:
            close = _close_at(progress, progress.r, clauses)
    else:
        floor = max((p.floor for p in (base, directory.close) if p), default=progress.r)
        close = _close_at(progress, floor, clauses)
    rebased = _rebased(progress, close)
    changed = close != directory.close and not follows
    recovers = directory.is_pending or keep is not Keep.ALL or changed
    if recovers:
        directory.recovery = Recovery(keep)
        directory.generation += 1
    if recovers or clauses.incarnation_is_new_at_each_start:
        if not clauses.incarnation_is_never_used_twice:
            incarnation = directory.incarnation + 1
        directory.incarnation, directory.incarnation_before = incarnation, progress.incarnation
    directory.mirror = rebased
    directory.write_close(close)
    directory.page_cache_lost = False
    directory.epoch = max(directory.epoch, progress.epoch) + 1
    return replace(
        rebased, owner=directory.uuid, epoch=directory.epoch, incarnation=directory.incarnation
    )


def begin_to_follow(directory: Directory, progress: Progress, clauses: Clauses) -> None:
    """A standby's start: what is kept does not depend on who has written the progress."""
    keep = _whole(directory, clauses)
    followed = directory.standby and _is_of_the_same_assignment(directory, progress, clauses)
    if not followed and clauses.standby_begins_with_nothing:
        keep = Keep.NOTHING
    if directory.is_pending or keep is not Keep.ALL:
        directory.recovery = Recovery(keep)
        directory.generation += 1
    if clauses.blind_is_raised_at_a_start:
        directory.blind = {}  # it is the dequeue that takes over that asks for log ends
    directory.standby = True
    directory.page_cache_lost = False
    follow(directory, progress, clauses)


def follow(directory: Directory, progress: Progress, clauses: Clauses) -> None:
    """A standby's step: mirror and close page of the newest progress."""
    directory.mirror = progress
    directory.write_close(_close_at(progress, progress.r, clauses))


def _kept(directory: Directory, progress: Progress, clauses: Clauses) -> Keep:
    keep = _whole(directory, clauses)
    follows = directory.standby and _is_of_the_same_assignment(directory, progress, clauses)
    return keep if follows or _is_own(directory, progress, clauses) else Keep.NOTHING


def _is_of_the_same_assignment(directory: Directory, progress: Progress, clauses: Clauses) -> bool:
    """Whether a standby's files have followed these partitions since they are in this shard."""
    same = (
        directory.mirror is not None
        and directory.mirror.assignment_epoch == progress.assignment_epoch
    )
    return same or not clauses.standby_is_of_the_same_assignment


def _is_own(directory: Directory, progress: Progress, clauses: Clauses) -> bool:
    """Whether an earlier state of these files is what the progress was written for."""
    if progress.owner != directory.uuid:
        return False
    if clauses.incarnation_is_never_used_twice:
        same = progress.incarnation in {directory.incarnation, directory.incarnation_before}
    else:
        same = progress.incarnation <= directory.incarnation
    return same or not clauses.other_incarnation_is_dropped


def _whole(directory: Directory, clauses: Clauses) -> Keep:
    """How much of the files is whole."""
    keep = Keep.ALL
    if directory.page_cache_lost and clauses.lost_page_cache_is_noticed:
        keep = Keep.DURABLE
    if directory.is_pending and directory.recovery and clauses.pending_recovery_is_finished:
        recorded = directory.recovery.keep
        keep = min(keep, recorded) if clauses.pending_recovery_keeps_the_lesser else recorded
    if directory.close is None and keep is Keep.ALL:
        keep = Keep.DURABLE
    if directory.durable is None and keep is Keep.DURABLE:
        keep = Keep.NOTHING
    return keep


def _kept_base(directory: Directory, keep: Keep) -> Close | None:
    """The close page of what is kept."""
    if keep is Keep.DURABLE:
        assert directory.durable is not None
        return directory.durable[1]
    return directory.close if keep is Keep.ALL else None


def _within(base: Close, progress: Progress) -> bool:
    """Whether all that has been delivered was delivered from this range, or before it."""
    return all(p.closed <= base.floor for p in progress.partitions.values())


def _close_at(progress: Progress, floor: int, clauses: Clauses) -> Close:
    """A close page made of nothing but the progress."""
    known = progress.partitions
    ends = [p.closed for p in known.values()]
    floor = max(floor, max(ends) if clauses.floor_of_a_shard_is_its_highest else min(ends))
    before = {number: p.c for number, p in known.items()}
    c = {number: p.closed_c for number, p in known.items()}
    return Close(progress.r, before, floor, c if clauses.half_slot_keeps_its_c else before)


def _rebased(progress: Progress, close: Close) -> Progress:
    """The progress with the slots that were empty when they were closed, and told no one."""
    partitions = {
        number: p
        if p.r >= close.lower
        else replace(p, r=close.lower, c=close.c_before.get(number, 0), c1=None, d=0)
        for number, p in progress.partitions.items()
    }
    return replace(progress, partitions=partitions)


def start_offsets(kafka: Kafka, progress: Progress, clauses: Clauses) -> dict[int, int]:
    """From where a shard whose files are lost reads again: nothing pending lies below, nor a cancel
    without its answer.
    """
    offsets = {}
    for number, p in progress.partitions.items():
        windows = [window for _, window in progress.windows_of(number)]
        longest = max(windows) if clauses.reading_starts_by_the_longest_window else windows[-1]
        starts = [len(kafka.topic[number])]
        if clauses.reading_starts_at_c:
            starts.append(p.c)
        if clauses.reading_starts_a_window_before_r:
            starts.append(kafka.offset_for_time(number, p.r - longest - MARGIN))
        if clauses.reading_starts_at_a:
            starts.append(p.a)
        offsets[number] = min(starts)
    return offsets


def carry_out(
    directory: Directory, kafka: Kafka, clauses: Clauses, dies: Callable[[], bool]
) -> bool:
    """Ingest's part of a recovery: cut the files. Returns whether it lived to the end.

    Everything is done again by the next start if this one dies.
    """
    recovery, mirror = directory.recovery, directory.mirror
    assert recovery is not None
    assert mirror is not None
    if recovery.keep is not Keep.ALL:
        directory.redo = set()
    if recovery.keep is Keep.NOTHING:
        if clauses.durable_goes_before_the_files:
            directory.durable = None
        directory.files = Files(start_offsets(kafka, mirror, clauses))
    elif recovery.keep is Keep.DURABLE:
        assert directory.durable is not None
        directory.files = directory.durable[0].copy()
    if clauses.flags_are_made_again_from_the_lists:
        directory.files.flags = set(directory.files.cancelled)
    if dies():
        return False
    directory.recovered = directory.generation
    return True


def placed(
    close: Close, mirror: Progress, partition: int, offset: int, slot: int, clauses: Clauses
) -> int | None:
    """Where ingest puts a row whose own slot is `slot`; None if it is done.

    Below C only rows are found that are read again: their slots are closed, and they belong there.
    """
    late = max(slot, close.floor + 1)
    if offset >= close.c.get(partition, 0) and clauses.late_rows_go_above_the_floor:
        return late
    progress = mirror.partitions.get(partition)
    if is_done(progress, offset, slot) and clauses.done_rows_are_dropped:
        return None
    if not clauses.pending_rows_below_c_stay_below_the_floor:
        return late
    return max(slot, (progress.r if progress else close.lower) + 1)
