"""Bounds the time that rows for costly targets take, for each timer topic by itself.

Each row of a transaction waits for the slowest append, and the owner of a costly target decides how
slow that is (kafka/targets/costly_targets.py). So a timer topic has a budget for such rows, in ms
that their appends are expected to take:

- Costs are a debt. The timer topics that have one share a tenth of the time equally, to pay it.
- They share 250 ms of each transaction equally. Rows leave until debt and costs reach the share:
  so a row of any cost leaves at some time. The timer topics that need least spend first, until
  500 ms are spent; the others wait for a second.
- Other rows wait as copies in their timer topic. Each target partition is in one of 64 *lanes* of
  the timer topic. All rows that wait in a lane, also those that come later, wait for one instant,
  its *visit*: none overtakes another, and the rows of a partition share an append.
- The cost of a visit, up to a share, is a debt from the moment that its instant is set. So later
  rows of other lanes cannot spend it, and the lanes take turns.

Order: rows of a partition overtake none but copies that ingest takes a second after their instant,
or that are in the slot of a visit with higher offsets, and wait for the next one.

Pure functions over columns: no client, any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import numpy as np

from duewheel.schemas.arrays import Bool, Float64, Int64
from duewheel.schemas.batches import ANY_TIME, Deliveries, topic_numbers
from duewheel.schemas.columns import lengths
from duewheel.wheel.encoded import LANES, NO_BUDGET, Budget, Budgets, Spending
from duewheel.wheel.target_rules import Target

_SHARED_MS = 250  # of a transaction
_SPENT_MS = 500  # in a transaction; then no further timer topic spends
_LEAST_MS = 50  # of a timer topic: an append, and the rows in it
# A visit is expected to cost this at least; and may cost so much more, for rows that come later.
_APPEND_MS = 25
_PACE = 10  # 1 ms is paid in 10 ms
# A visit writes all rows again that it leaves in the lane: so it waits for a part of their costs.
_VISITS = 20
# After a shorter wait copies may come late; after a longer one the settings may be others.
_WAIT_MS = (1_000, 300_000)
_LATE_MS = 1_000  # how late the copies of a visit may come: until then new rows let them pass


def spend(
    deliveries: Deliveries,
    targets: Sequence[Target],
    partition: Int64,
    leaving: Bool,
    budgets: Budgets,
    now_ms: int,
) -> Spending | None:
    """Decides which of the `leaving` rows wait for their budget; None: no target is costly. The
    targets are those of the deliveries, by index; `partition` is the number of each row's.
    """
    costly = np.array([target.cost.append_ms > 0 for target in targets], np.bool_)
    rows = np.flatnonzero(leaving & costly[deliveries.target])
    if not len(rows):
        return None
    topics, topic_of = topic_numbers(deliveries.source_partitions)
    number, topic = np.unique(topic_of[deliveries.source_partition[rows]], return_inverse=True)
    names = [topics[each] for each in number.tolist()]
    late_ms = now_ms - _LATE_MS
    in_use = {name: each for name, each in budgets.items() if each.until_ms > late_ms}
    own = [in_use.get(name, NO_BUDGET) for name in names]
    users = len(in_use.keys() | set(names))
    hashes = np.array([crc32(name.encode()) for name in deliveries.targets])
    lane = (hashes[deliveries.target] + partition)[rows] % LANES + topic * LANES

    visit_ms = np.concatenate([each.visit_ms for each in own])
    is_due = (np.concatenate([each.due for each in own]) > 0) & (visit_ms > late_ms)
    # Copies come first: some of them may be late, or in this slot with higher offsets.
    stays = is_due[lane] & (deliveries.retries[rows] == 0)
    is_free = visit_ms <= now_ms
    is_free[is_due] &= np.bincount(lane, ~stays, len(is_due))[is_due] > 0
    free = np.flatnonzero(is_free[lane])
    place = (partition[rows], deliveries.target[rows], stays, lane)
    free = free[np.lexsort([column[free] for column in place])]
    cost = _costs(deliveries, targets, partition, rows[free], lane[free])
    leaves, after = _decided(cost, lane[free], stays[free], own, users, now_ms)

    until_ms = np.concatenate([each.visit_ms for each in after])[lane]
    until_ms[free[leaves]] = ANY_TIME
    not_before_ms = np.full(len(deliveries), ANY_TIME)
    not_before_ms[rows] = until_ms
    return Spending(not_before_ms, budgets, in_use | dict(zip(names, after, strict=True)))


def _costs(
    deliveries: Deliveries,
    targets: Sequence[Target],
    partition: Int64,
    rows: Int64,
    lane: Int64,
) -> Float64:
    """The expected ms of each of these rows, which are sorted by lane and partition: the first one
    of a partition pays for an append, and each for its part of further ones.
    """
    size = (lengths(deliveries.key_value) + lengths(deliveries.headers))[rows]
    append_ms, mib_ms, batch_bytes = np.array(
        [(*target.cost[1:], max(1, target.batch_bytes)) for target in targets]
    )[deliveries.target[rows]].T
    place = np.stack([lane, deliveries.target[rows], partition[rows]])
    is_first = np.append(True, (place[:, 1:] != place[:, :-1]).any(0))[: len(rows)]
    cost: Float64 = append_ms * is_first + size * (append_ms / batch_bytes + mib_ms / 2**20)
    return cost


def _decided(
    cost: Float64, lane: Int64, stays: Bool, own: Sequence[Budget], users: int, now_ms: int
) -> tuple[Bool, list[Budget]]:
    """The rows that leave, and the budgets with the visits of the others. Of a lane, the last rows
    wait.

    Args:
        cost, lane: of each row, sorted by lane. Their lanes wait no longer.
        stays: the rows that wait at any rate, the last ones of their lanes.
        own: the budget of each timer topic, whose lanes are neighbours.
        users: the number of timer topics that share the time.
    """

    def by_lane(values: Float64 | Bool) -> Float64:
        sums = np.bincount(lane, values, len(own) * LANES)
        return sums.astype(np.float64).reshape(-1, LANES)

    share, pace = max(_SHARED_MS / users, _LEAST_MS), _PACE * users
    debt = np.array([[max(0, each.paid_ms - now_ms) / pace] for each in own])
    visit_ms = np.stack([each.visit_ms for each in own])
    due = np.stack([each.due for each in own])
    is_here = by_lane(np.ones_like(cost)) > 0
    is_visit = is_here & (due > 0)

    most = np.where(is_visit, due + _APPEND_MS, share)
    takes = (_before(cost, lane) < most.ravel()[lane]) & ~stays
    taken = by_lane(cost * takes)
    visits, others = taken * is_visit, taken * ~is_visit
    goes = np.where(is_visit, _sums(visits), debt + _sums(others)) < share
    spent = (taken * goes).sum(1)
    order = np.argsort(spent, kind="stable")
    over = order[np.cumsum(spent[order]) - spent[order] >= _SPENT_MS]
    goes[over] = False
    leaves = takes & goes.ravel()[lane]

    left = by_lane(cost * ~leaves)
    waiting, first = np.unique(lane[~leaves], return_index=True)
    new = np.zeros_like(due)
    least = np.clip(left.ravel()[waiting], _APPEND_MS, share)
    new.ravel()[waiting] = np.maximum(least, cost[~leaves][first])
    debt = np.maximum(0, debt + (taken * goes - due * is_visit).sum(1, keepdims=True))
    wait_ms = np.maximum(debt + _sums(new) - share, left / _VISITS) * pace
    visit_ms = np.where(new > 0, now_ms + np.clip(wait_ms, *_WAIT_MS).astype(np.int64), visit_ms)
    paid_ms = now_ms + np.ceil((debt + new.sum(1, keepdims=True)) * pace).astype(np.int64)
    due = np.where(is_here, new, due)
    after = zip(paid_ms.ravel().tolist(), visit_ms, due, strict=True)
    return leaves, [Budget(*each) for each in after]


def _before(cost: Float64, lane: Int64) -> Float64:
    """The costs of the rows before each in its lane."""
    sums = np.cumsum(cost) - cost
    before: Float64 = sums - sums[np.searchsorted(lane, lane)]
    return before


def _sums(costs: Float64) -> Float64:
    """The costs of the lanes before each in its timer topic."""
    sums: Float64 = np.cumsum(costs, 1) - costs
    return sums
