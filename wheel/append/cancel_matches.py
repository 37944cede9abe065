"""Resolves the cancels of a batch: which timers each one cancels, and its outcome.

This module reads and writes no file. A cancel at offset q *matches* a timer of its partition and id
if the timer is below q and its first copy is below the cancel's request; or only the timer that the
cancel names. A user's cancel is its own request; a *chase* was written by dequeue for a request at
a lower offset (cancel_replies.py).

1. A cancel stops every matching timer in a slot above its *bound*. The bound is the floor. For a
   cancel that is read again after a loss, and in a standby, it is R, the last slot delivered in
   full: the cancel has stopped timers in closed slots before, and must stop the same ones again.
2. A timer at or below the floor that is not cancelled may have been delivered, rolled or parked; a
   copy may then be before the cancel or after it. A cancel is *undecided* if the last copy of any
   matching timer is such a timer. For a chase, a timer with a slot up to `chase_slot` is *out*: all
   copies of it are below the chase, and would be in the log. An undecided cancel is chased (again),
   even if it has stopped other timers of the id. So is one without a provable outcome
   (`must_chase`).
3. Any other cancel has an outcome. `cancelled`: it or an earlier chase has cancelled a timer.
   `unknown`: no timer matches, or the log may lack timers that do (`blind`). Otherwise the timer
   that was written last decides between `cancelled` (by another cancel) and `already_delivered`;
   if the log may lack one that was written later, the outcome is `unknown` instead of `cancelled`.

Partition and id of a cancel are a *group*. An example, with the floor at slot 20:

    offset        0 timer a   1 timer b   2 cancel a   3 cancel b   4 timer b   5 cancel b
    group         0           1           0            1            1           1
    slot          10          30                                    40
    cancelled by  none        cancel 3                              cancel 5
    outcome                               chase        cancelled                cancelled

Work grows with the number of cancels and timers, not with the product of both, however many of them
have one id: each timer is cancelled by the first cancel after it that matches, and the rest follows
from sums and maxima over timers sorted by offset. Only outcomes of chases need each timer of their
id; those with the most are chased again once a batch has compared enough. A cancel that must be
chased needs no outcome, and stops timers nevertheless: so one that is read again costs no more,
though it has no bound. For cancels that name a timer, its copies take the place of the timers of an
id.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import numpy as np

from duewheel.schemas.arrays import Bool, Int32, Int64, ranges
from duewheel.schemas.batches import ANY_OFFSET
from duewheel.wheel.storage.cancel_log import (
    ALREADY_DELIVERED,
    CANCELLED,
    CHASE,
    CHASE_FOUND,
    UNKNOWN,
)

NO_CANCEL = np.iinfo(np.int64).max  # above every index: the minimum is the first cancel
_NO_COPY = np.iinfo(np.int64).max  # above every offset
PAIRS_AT_ONCE = 1 << 20
PAIRS_MAX = 1 << 21


@dataclass(frozen=True, slots=True)
class Cancels:
    """The cancels of a batch; those of a partition in offset order."""

    group: Int64  # equal where partition and id are
    offset: Int64
    request: Int64  # offset of the request
    named: Int64  # first offset of the only timer that it matches, or ANY_OFFSET
    chase_slot: Int64  # of a chase: last slot delivered in full when it was written
    has_cancelled: Bool  # whether an earlier chase has cancelled a timer
    bound: Int64  # timers in slots up to this one can no longer be cancelled
    # Whether no outcome can be proved: the log may lack originals of copies in flight (the cancel
    # is below `blind`); or the cancel is read again, or by a standby, and an earlier owner may have
    # delivered a timer that is pending in the log.
    must_chase: Bool
    blind: Int64  # the log may lack timers below this offset

    def __len__(self) -> int:
        return len(self.offset)

    def take(self, rows: Int64) -> Cancels:
        """Returns only the cancels with these indexes."""
        return Cancels(*(getattr(self, each.name)[rows] for each in fields(self)))


@dataclass(frozen=True, slots=True)
class Timers:
    """Timers with the partition and id of a cancel, in any order. Fields as in LoggedTimers."""

    group: Int64
    first_offset: Int64
    offset: Int64
    slot: Int64
    cancelled: Bool

    def __len__(self) -> int:
        return len(self.offset)


@dataclass(frozen=True, slots=True)
class Resolved:
    """The result: outcomes of the cancels, and the timers that they stop."""

    outcome: Int32  # index in OUTCOMES
    cancelled_by: Int64  # by timer: index of the cancel that cancels it, or NO_CANCEL


def resolve(
    cancels: Cancels,
    timers: Timers,
    floor: int,
    pairs_max: int = PAIRS_MAX,
    pairs_at_once: int = PAIRS_AT_ONCE,
) -> Resolved:
    """Resolves the cancels of a batch by the rules of the module's head. At most `pairs_max` pairs
    of a chase and a timer are compared: the other chases are chased again. `pairs_at_once` bounds
    the memory, unless one cancel has more.
    """
    cancelled_by = np.full(len(timers), NO_CANCEL)
    naming, is_chase = cancels.named != ANY_OFFSET, cancels.request != cancels.offset
    kinds = [(cancels, timers, ~naming)]
    if naming.any():
        kinds.append((*_of_timers(cancels, timers), naming))
    # `_cancel_by_first` needs one bound per group: first the cancels read again (R), then the
    # others (the floor).
    for each, among, rows in kinds:
        for of_bound in (cancels.bound < floor, cancels.bound >= floor):
            _cancel_by_first(each, np.flatnonzero(rows & of_bound), among, cancelled_by)
    has_cancelled = cancels.has_cancelled.copy()
    has_cancelled[cancelled_by[cancelled_by != NO_CANCEL]] = True
    outcome = np.full(len(cancels), CHASE, np.int32)
    for each, among, rows in kinds:
        rows = rows & ~cancels.must_chase
        plain = np.flatnonzero(rows & ~is_chase)
        outcome[plain] = _outcome_of_plain(each, plain, among, cancelled_by, floor)
        compared = _within(each, np.flatnonzero(rows & is_chase), among, pairs_max)
        for part in _parts(each, compared, among, pairs_at_once):
            outcome[part] = _outcome_of_chases(each, part, among, cancelled_by)
    decides = outcome != CHASE
    outcome[decides & has_cancelled] = CANCELLED
    outcome[~decides] = np.where(has_cancelled[~decides], CHASE_FOUND, CHASE)
    return Resolved(outcome, cancelled_by)


def _cancel_by_first(cancels: Cancels, rows: Int64, timers: Timers, cancelled_by: Int64) -> None:
    """Makes the first of these cancels that matches a timer cancel it, unless its slot is closed.
    Those of a group in `rows` have one bound. Changes `cancelled_by`.
    """
    if not len(rows) or not len(timers):
        return
    rows = rows[np.lexsort((cancels.offset[rows], cancels.group[rows]))]
    group, request = cancels.group[rows], cancels.request[rows]
    offsets, rank = np.unique(cancels.offset[rows], return_inverse=True)
    count = len(offsets) + 1
    after = np.searchsorted(offsets, timers.offset, "right")
    at = np.searchsorted(group * count + rank, timers.group * count + after)
    end = np.searchsorted(group, timers.group, "right")
    at = _first_above(request, timers.first_offset, at, end)
    some = np.flatnonzero((at < end) & ~timers.cancelled)
    first = rows[at[some]]
    stops = timers.slot[some] > cancels.bound[first]
    some, first = some[stops], first[stops]
    cancelled_by[some] = np.minimum(cancelled_by[some], first)


def _first_above(values: Int64, least: Int64, begin: Int64, end: Int64) -> Int64:
    """Returns for each range [begin, end) the index of its first value above `least`, or its end.

    Maxima of 1, 2, 4, … values from each index on; a range is passed in steps of such a length, the
    longest first, as long as no value in the step is above.
    """
    maxima = [values]
    while 2 ** len(maxima) <= len(values):
        half = 2 ** (len(maxima) - 1)
        maxima.append(np.maximum(maxima[-1][:-half], maxima[-1][half:]))
    at = begin.copy()
    for level in reversed(range(len(maxima))):
        fits = np.flatnonzero(at + 2**level <= end)
        passed = fits[maxima[level][at[fits]] <= least[fits]]
        at[passed] += 2**level
    return at


def _outcome_of_plain(
    cancels: Cancels, rows: Int64, timers: Timers, cancelled_by: Int64, floor: int
) -> Int32:
    """Applies rules 2 and 3 to users' cancels, without `has_cancelled`."""
    group, offset = cancels.group[rows], cancels.offset[rows]
    if not len(timers) or not len(rows):
        return np.full(len(rows), UNKNOWN, np.int32)
    is_cancelled = timers.cancelled | (cancelled_by != NO_CANCEL)
    # Timers by id, each one's copies in offset order: the last one of a timer decides.
    rank_order = np.lexsort((timers.offset, timers.first_offset, timers.group))
    rank = np.empty(len(timers), np.int64)
    rank[rank_order] = np.arange(len(timers))
    # A timer in a closed slot that is not cancelled may have a copy in flight: all cancels of the
    # id up to its next copy are undecided; without a next copy, all are.
    unsettled = np.flatnonzero(~is_cancelled & (timers.slot <= floor))
    until = np.full(int(max(timers.group.max(), group.max(initial=-1))) + 1, -1)
    np.maximum.at(until, timers.group[unsettled], _next_copy(timers, rank_order)[unsettled])
    undecided = offset <= until[group]
    # The timer that was written last, of all below each cancel.
    by_offset = np.lexsort((timers.offset, timers.group))
    newest = rank_order[np.maximum.accumulate(rank[by_offset])]
    before = count_before(timers.group, timers.offset, group, offset)
    last = newest[np.maximum(before - 1, 0)]
    matches = (before > 0) & (timers.group[last] == group)
    # Of a named timer a copy that was written later may be missing.
    matches &= (cancels.named[rows] == ANY_OFFSET) | (offset >= cancels.blind[rows])
    known = _by_newest(cancels, rows, timers, last, is_cancelled[last])
    outcome = np.where(matches, known, UNKNOWN)
    return np.where(undecided, CHASE, outcome).astype(np.int32)


def _next_copy(timers: Timers, rank_order: Int64) -> Int64:
    """Returns the offset of the next copy of each timer, or _NO_COPY."""
    following = np.full(len(timers), _NO_COPY)
    earlier, later = rank_order[:-1], rank_order[1:]
    same = timers.group[earlier] == timers.group[later]
    same &= timers.first_offset[earlier] == timers.first_offset[later]
    following[earlier[same]] = timers.offset[later[same]]
    return following


def _outcome_of_chases(cancels: Cancels, rows: Int64, timers: Timers, cancelled_by: Int64) -> Int32:
    """Applies rules 2 and 3 to chases, without `has_cancelled`."""
    cancel, timer = _matching(cancels, rows, timers)
    # The last copy of each timer, of those that a cancel matches.
    order = np.lexsort((timers.offset[timer], timers.first_offset[timer], cancel))
    cancel, timer = cancel[order], timer[order]
    is_last = np.append(
        (cancel[1:] != cancel[:-1])
        | (timers.first_offset[timer][1:] != timers.first_offset[timer][:-1]),
        True,
    )[: len(cancel)]
    cancel, timer = cancel[is_last], timer[is_last]
    is_cancelled = timers.cancelled[timer] | (cancelled_by[timer] <= cancel)
    is_out = timers.slot[timer] <= cancels.chase_slot[cancel]
    place = np.searchsorted(rows, cancel)
    undecided = np.zeros(len(rows), np.bool_)
    undecided[place[~is_cancelled & ~is_out]] = True
    outcome = np.full(len(rows), UNKNOWN, np.int32)
    # In this order: the timer that was written last comes last.
    outcome[place] = _by_newest(cancels, cancel, timers, timer, is_cancelled)
    outcome[cancels.request[rows] < cancels.blind[rows]] = UNKNOWN
    return np.where(undecided, CHASE, outcome).astype(np.int32)


def _by_newest(
    cancels: Cancels, cancel: Int64, timers: Timers, timer: Int64, is_cancelled: Bool
) -> Int32:
    """Decides the outcome of each of these cancels by the timer that was written last. If that was
    cancelled before, a newer timer may have been delivered whose log is unlinked.
    """
    is_newest = timers.first_offset[timer] >= cancels.blind[cancel]
    is_newest |= cancels.named[cancel] != ANY_OFFSET
    by_cancelled = np.where(is_newest, CANCELLED, UNKNOWN)
    return np.where(is_cancelled, by_cancelled, ALREADY_DELIVERED).astype(np.int32)


# ---- pairs ---------------------------------------------------------------------------------------


def _within(cancels: Cancels, rows: Int64, timers: Timers, most: int) -> Int64:
    """Returns the cancels with up to `most` timers of their groups together, the fewest first: the
    cancels of another producer need not wait for those with many.
    """
    if not len(rows):
        return rows
    count = _group_sizes(cancels, timers)[cancels.group[rows]]
    order = np.argsort(count, kind="stable")
    # The first one in any case: it would never be compared.
    end = max(int(np.searchsorted(np.cumsum(count[order]), most, "right")), 1)
    return np.sort(rows[order[:end]])


def _of_timers(cancels: Cancels, timers: Timers) -> tuple[Cancels, Timers]:
    """Returns cancels and timers grouped by timer instead of id: a cancel that names a timer is
    compared with its copies only.
    """
    first = np.unique(np.append(timers.first_offset, cancels.named), return_inverse=True)[1]
    group = np.append(timers.group, cancels.group) * len(first) + first
    group = np.unique(group, return_inverse=True)[1]
    count = len(timers)
    return replace(cancels, group=group[count:]), replace(timers, group=group[:count])


def _group_sizes(cancels: Cancels, timers: Timers) -> Int64:
    sizes: Int64 = np.bincount(timers.group, minlength=int(cancels.group.max()) + 1)
    return sizes


def _parts(cancels: Cancels, rows: Int64, timers: Timers, at_once: int) -> Iterator[Int64]:
    """Splits the cancels into parts with a bounded number of timers to compare."""
    if not len(rows):
        return
    ends = np.cumsum(_group_sizes(cancels, timers)[cancels.group[rows]])
    part = ends // at_once
    yield from np.split(rows, np.flatnonzero(np.diff(part)) + 1)


def _matching(cancels: Cancels, rows: Int64, timers: Timers) -> tuple[Int64, Int64]:
    """Returns every pair of one of these cancels and a timer that it matches. The group of one that
    names a timer has the copies of that timer alone (`_of_timers`).
    """
    order = np.argsort(timers.group, kind="stable")
    groups = timers.group[order]
    first = np.searchsorted(groups, cancels.group[rows], "left")
    count = np.searchsorted(groups, cancels.group[rows], "right") - first
    cancel = np.repeat(rows, count)
    timer = order[ranges(first, count)]
    matches = timers.offset[timer] < cancels.offset[cancel]
    matches &= timers.first_offset[timer] < cancels.request[cancel]
    return cancel[matches], timer[matches]


def count_before(group: Int64, at: Int64, wanted_group: Int64, wanted_at: Int64) -> Int64:
    """Counts for each wanted key the rows with a lower (group, at)."""
    count = len(group)
    joint_group, joint_at = np.append(group, wanted_group), np.append(at, wanted_at)
    is_wanted = np.arange(len(joint_group)) >= count
    order = np.lexsort((~is_wanted, joint_at, joint_group))
    running = np.cumsum(~is_wanted[order])
    before = np.empty(len(joint_group), np.int64)
    before[order] = running
    counts: Int64 = before[count:]
    return counts
