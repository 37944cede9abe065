"""The policy for hot slots: timers in excess of a slot's limit leave later, or not at all.

Let i be a row's rank among the rows of its timer topic in its slot, from 0, in delivery order, and
c the limit: one topic's timers hold up no other's. The row is in excess with the probability

    0 for i <= c        (i - c) / c between        1 for i >= 2c

A hash u of its key, or of its id without a key, decides: the row is in excess if u is below the
probability. That rises with i, so once a row of a key is in excess, the key's later rows in the
slot are, too; and a transaction that is tried again selects the same rows.

    spread       the row is postponed by one slot and a part of the window, by another hash of the
                 same key (`spread_ms`)
    dead-letter  it becomes a dead letter, with the code `hot_slot`

- Copies that were postponed or parked before are never in excess: a timer is spread once, whatever
  slot the copy comes to, so its wait is bounded; and an outage of a target makes no dead letters.
- A restart selects the same rows: their ranks do not change (slot_ranks.py).
- Order: the timers of a key in one slot keep their order, those in excess after the others. Timers
  of two hot slots keep it as well, while the window is the same. Not kept: a timer of a later slot
  that is not in excess there does not wait for a timer that was spread beyond its due time.
- The window begins at the slot, not at the delivery: of a slot that is delivered later than its
  window, the excess returns at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
import numpy.typing as npt

from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import ANY_TIME, NEVER
from duewheel.wheel.policies.policy import HALF_BITS, DueRows, Policy, PolicySettings, spread_ms

Action = Literal["spread", "dead-letter"]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class HotSlots(Policy):
    """The policy for hot slots."""

    action: Action = "spread"  # as in the module's head
    limit: int = 10_000  # c
    window_ms: int = 60_000  # the time over which the excess is spread; below 2**31
    name = "hot_slot"
    refusal = "more timers were due with it than `dequeue.hot_slot_limit` lets leave"

    @classmethod
    def configured(cls, settings: PolicySettings) -> Self | None:
        keys = ("dequeue.hot_slot", "dequeue.hot_slot_limit", "dequeue.hot_slot_window")
        action, limit, window_ms = map(settings.of, keys)
        return None if action == "none" else cls(action, limit, window_ms)

    def not_before_ms(self, rows: DueRows) -> Int64 | None:
        """Computes the instants of the rows in excess: see the module's head."""
        candidates = np.flatnonzero((rows.rank > self.limit) & ~rows.waited)
        if not len(candidates):
            return None
        bits = rows.key_bits(candidates)
        excess = (bits >> HALF_BITS) / 2.0**32 < self.probability(rows.rank[candidates])
        chosen, bits = candidates[excess], bits[excess]
        instants = np.full(len(rows.slot), ANY_TIME)
        if self.action == "spread":
            later_ms = spread_ms(bits, self.window_ms)
            instants[chosen] = (rows.slot[chosen] + 1) * rows.precision_ms + later_ms
        else:
            instants[chosen] = NEVER
        return instants

    def probability(self, rank: Int64) -> Float64:
        """Computes the probability that the row of each rank is in excess."""
        risen: Float64 = (rank - self.limit) / self.limit
        return np.clip(risen, 0.0, 1.0)
