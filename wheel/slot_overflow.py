"""Hot slots: selects the timers in excess of the limit of a slot, and applies the policy to them.

Let i be a row's rank among the rows of its timer topic in its slot, from 0, in delivery order, and
c the limit: one topic's timers hold up no other's. The row is in excess with the probability

    0 for i <= c        (i - c) / c between        1 for i >= 2c

A hash u of its key, or of its id without a key, decides: the row is in excess if u is below the
probability. That rises with i, so once a row of a key is in excess, the key's later rows in the
slot are, too; and a transaction that is tried again selects the same rows.

    spread       the row goes back to its timer topic (requeue.py), not to be delivered before the
                 end of the slot, one more slot, and a part of the window by another hash of the
                 same key: rows of a key that are in excess keep together, and in order
    dead-letter  it becomes a dead letter, with the code `hot_slot`

- Rolled rows, dead letters, and copies that were spread or parked before are never in excess. So a
  timer is spread once, whatever slot the copy comes to, and its wait is bounded.
- i counts the topic's rows in the log, whether they are delivered or not. The progress has the
  number of its rows of a half-delivered slot that are out (n in checkpoints/progress.py): after a
  loss the log has only the pending rows of such a slot.
- Order: the timers of a key in one slot keep their order, those in excess after the others. Timers
  of two hot slots keep it as well, while the window is the same. Not kept: a timer of a later slot
  that is not in excess there does not wait for a timer that was spread beyond its due time.
- The window begins at the slot, not at the delivery: of a slot that is delivered later than its
  window, the excess returns at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from duewheel.schemas.arrays import Bool, Int64
from duewheel.schemas.batches import ANY_TIME, NEVER, NO_KEY, Deliveries
from duewheel.schemas.columns import Column, take
from duewheel.schemas.hashing import id_hashes

Policy = Literal["none", "spread", "dead-letter"]
Float64 = npt.NDArray[np.float64]
Uint64 = npt.NDArray[np.uint64]

# The finaliser of splitmix64. Without it the hashes of a timer partition would not be uniform: bits
# of a key's murmur2 also choose its partition, so they are equal in all keys of the partition.
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = np.uint64(31)
_HALF_BITS = np.uint64(32)
_HALF_MASK = np.uint64((1 << 32) - 1)


@dataclass(frozen=True, slots=True)
class HotSlots:
    """The policy for hot slots."""

    policy: Policy = "none"  # as in the module's head; "none": no row is in excess
    limit: int = 10_000  # c
    window_ms: int = 60_000  # the time over which the excess is spread; below 2**31

    def mark_overflow(
        self, deliveries: Deliveries, slot: Int64, rank: Int64, precision_ms: int
    ) -> Deliveries:
        """Sets `not_before_ms` of the rows in excess. `slot` is the one that each row is in, `rank`
        is i.
        """
        if self.policy == "none":
            return deliveries
        exempt = deliveries.is_copy | deliveries.dead_letter | (deliveries.retries > 0)
        rows = np.flatnonzero((rank > self.limit) & ~exempt)
        if not len(rows):
            return deliveries
        fraction, other = _fractions(deliveries, rows)
        excess = fraction < self.probability(rank[rows])
        rows, other = rows[excess], other[excess]
        not_before_ms = deliveries.not_before_ms.copy()
        if self.policy == "spread":
            later_ms = ((other * np.uint64(self.window_ms)) >> _HALF_BITS).astype(np.int64)
            not_before_ms[rows] = (slot[rows] + 1) * precision_ms + later_ms
        else:
            not_before_ms[rows] = NEVER
        return replace(deliveries, not_before_ms=not_before_ms)

    def probability(self, rank: Int64) -> Float64:
        risen: Float64 = (rank - self.limit) / self.limit
        return np.clip(risen, 0.0, 1.0)


def overflow_rows(deliveries: Deliveries) -> Bool:
    """Selects the rows that `mark_overflow` has marked."""
    rows: Bool = deliveries.not_before_ms != ANY_TIME
    return rows


def spread_rows(deliveries: Deliveries) -> Bool:
    """Selects the rows in excess that go back to their timer topic."""
    rows: Bool = overflow_rows(deliveries) & (deliveries.not_before_ms != NEVER)
    return rows


class RankCounter:
    """Counts the rows of each topic in one slot after another, from chunk to chunk. `out` is the
    number of rows that are out, by timer topic and half-delivered slot. Not thread-safe.
    """

    def __init__(self, out: Mapping[tuple[str, int], int]) -> None:
        self._out = out
        self._slot: int | None = None
        self._counted: dict[str, int] = {}

    def of(self, slot: Int64, topics: Sequence[str], topic: Int64, counted: Bool) -> Int64:
        """Computes the ranks of the rows of the next chunk. `slot` never falls, within a chunk and
        from chunk to chunk; `topic` is an index in `topics`. Rows that are not `counted` are out,
        and counted in `out`.
        """
        run = np.cumsum(np.diff(slot, prepend=slot[0]) != 0)
        group = run * len(topics) + topic
        order = np.argsort(group, kind="stable")
        is_counted, group = counted[order], group[order]
        before: Int64 = np.cumsum(is_counted) - is_counted
        firsts = np.flatnonzero(np.diff(group, prepend=-1))
        names = [topics[index] for index in topic[order[firsts]].tolist()]
        places = list(zip(names, slot[order[firsts]].tolist(), strict=True))
        base = np.array([self._base(*place) for place in places], np.int64)
        in_order = before + np.repeat(base - before[firsts], np.diff(firsts, append=len(slot)))
        rank = np.empty(len(slot), np.int64)
        rank[order] = in_order
        lasts = np.append(firsts[1:], len(slot)) - 1
        reached = (in_order[lasts] + is_counted[lasts]).tolist()
        if self._slot != slot[-1]:
            self._slot, self._counted = int(slot[-1]), {}
        self._counted |= {
            name: count
            for (name, at), count in zip(places, reached, strict=True)
            if at == self._slot
        }
        return rank

    def _base(self, topic: str, slot: int) -> int:
        counted = self._counted.get(topic) if slot == self._slot else None
        return self._out.get((topic, slot), 0) if counted is None else counted


def _fractions(deliveries: Deliveries, rows: Int64) -> tuple[Float64, Uint64]:
    """Computes u in [0, 1) of each of these rows, and another hash of the same bytes as 32 bits."""
    hashes = deliveries.key_hash[rows].astype(np.int64)
    keyless = np.flatnonzero(hashes == NO_KEY)
    if len(keyless):
        ids: Column = take(deliveries.timer_id, rows[keyless])
        hashes[keyless] = id_hashes(ids)
    mixed = hashes.astype(np.uint64)
    for shift, factor in _MIX:
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> _LAST_SHIFT
    return (mixed >> _HALF_BITS) / 2.0**32, mixed & _HALF_MASK
