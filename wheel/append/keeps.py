"""Decides which timers with `TIMER_IF_PENDING: keep` are dropped: those that find a timer pending.

This module reads and writes no file. A timer of the same partition and id *blocks* the later ones
from its own offset to the offset from which it is not pending any more (`until`):

    cancelled before                the offset of the cancel, if that is in the batch; else none
    slot up to the bound            none: it counts as delivered. The bound is that of a cancel:
                                    the floor; R where a timer is read again (cancel_matches.py)
    slot up to the floor, above R   C of the partition: rows below C were taken before that slot was
                                    closed, so they found the timer pending, and find it again
    any other                       no end

A timer without `keep` blocks in any case, one with `keep` only if it is not dropped itself. So
among timers with `keep` the first one stays, then the first one after its end, and so on. An
example, all with `keep` and one id; a cancel comes at offset 3:

    offset     0   1   2       4   5
    until      3   3   3       -   -
    dropped        x   x           x

A decision is made before engine.lock, by the close page that also decides the slots, and dropped
rows are never written. It is final with the commit page. Until then no one has seen it; rows that
are read again after a loss are decided again.
"""

from __future__ import annotations

import numpy as np

from duewheel.schemas.arrays import Bool, Int64
from duewheel.wheel.append.cancel_matches import NO_CANCEL, Cancels, Timers, count_before

NEVER = np.iinfo(np.int64).max  # above every offset
NOT_PENDING = -1  # below every offset


def blocks_until(
    cancels: Cancels,
    asking: Cancels,
    timers: Timers,
    cancelled_by: Int64,
    closed: tuple[int, Int64],
) -> Int64:
    """Computes `until` of each timer. `cancelled_by` is the index in `cancels`, or NO_CANCEL;
    `asking` are the timers with `keep`; `closed` is the floor, and C of each one's partition.
    """
    floor, c = closed
    groups = int(max(timers.group.max(initial=-1), asking.group.max(initial=-1))) + 1
    bound_of, c_of = np.full(groups, floor), np.zeros(groups, np.int64)
    np.minimum.at(bound_of, asking.group, asking.bound)
    c_of[asking.group] = c
    until = np.full(len(timers), NEVER)
    stopped = cancelled_by != NO_CANCEL
    until[stopped] = cancels.offset[cancelled_by[stopped]]
    was_open = timers.slot <= floor
    until[was_open] = np.minimum(until[was_open], c_of[timers.group[was_open]])
    until[timers.cancelled | (timers.slot <= bound_of[timers.group])] = NOT_PENDING
    return until


def dropped(group: Int64, offset: Int64, until: Int64, keeps: Bool) -> Bool:
    """Selects the timers with `keep` that find another one pending. Takes all timers of their
    partitions and ids, those without `keep`, too.
    """
    count = len(group)
    order = np.lexsort((offset, group))
    # In this order a timer blocks the rows after it up to `end`, all of its own group.
    end = count_before(group, offset, group, until)[order]
    keep, place = keeps[order], np.arange(count)
    plain_end = np.maximum.accumulate(np.where(keep, 0, end))
    is_free = keep & (np.append(0, plain_end)[:count] <= place)
    # The first free row stays, then the first one that it does not block, and so on.
    free = np.append(np.flatnonzero(is_free), count)
    following = free[np.searchsorted(free, np.maximum(end, place + 1))]
    stays = _chain(np.append(following, count), int(free[0]))
    result = np.zeros(count, np.bool_)
    result[order] = keep & ~stays[:count]
    return result


def _chain(following: Int64, first: int) -> Bool:
    """Selects the rows of a chain: `first`, the row that follows it, and so on, to the last row,
    which follows itself. Doubles the length in each step: 300,000 links take 20.
    """
    chain = np.zeros(len(following), np.bool_)
    chain[first] = True
    while following[first] != len(following) - 1:
        chain[following[chain]] = True
        following = following[following]
    return chain
