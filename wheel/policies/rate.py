"""The policy of rates: the excess of a target's rate leaves later, and no other target waits.

A timer is charged once, when its chunk is made: `charged` rises by 1/rate, and is the timer's
*turn*. A transaction that is aborted is tried again with the same chunk. If a turn is ahead of now,
the timer waits: its copy returns at the turn, and leaves without a charge. So within any time t at
most rate × (t + burst + lead) + 1 leave; after a stop also those at once whose turns came
meanwhile. Copies that were postponed or parked before are free, as in hot_slots.py.

- Order of a key: while an earlier timer's turn is ahead, a timer waits, too. `turns_ms` has the
  last turn by bucket of the key's hash. After a start both are the last turn of all, from the
  progress record: new timers come after all that wait.
- A turn is a lead ahead at least, in which ingest takes the copy.
- The queue is half a roll window long at most, so no copy has to hop (policy.py). A timer that
  would wait longer becomes a dead letter.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from duewheel.schemas.arrays import Int64, bounds_of
from duewheel.schemas.batches import ANY_TIME, NEVER, NO_POLICY
from duewheel.wheel.policies.policy import DueRows, Policy, PolicySettings, RateQueue
from duewheel.wheel.slots import slot_of

BURST_US = 1_000_000  # unused rate that is kept
BUCKETS = 1 << 14


def queue_of(charged_ms: int, now_ms: int, per_second: float) -> tuple[int, int]:
    """How many timers of a target wait, and for how many milliseconds the last one does."""
    wait_ms = max(0, charged_ms - now_ms)
    return math.ceil(wait_ms * per_second / 1_000), wait_ms


@dataclass(frozen=True, slots=True)
class Rate(Policy):
    """The policy of rates."""

    per_second: Mapping[str, float]  # of this shard, by target
    lead_ms: int = 1_000
    name = "rate"
    is_last = True
    refusal = (
        "more timers wait for its target than may leave, at the target's `rate`, within half of "
        "`timer.roll_window`"
    )

    @classmethod
    def configured(cls, settings: PolicySettings) -> Self | None:
        rates = settings.of("rates")
        return cls(rates) if rates else None

    def not_before_ms(self, rows: DueRows) -> Int64 | None:
        """Computes the turns of the rows that wait: see the module's head."""
        of = rows.deliveries
        if self.per_second.keys().isdisjoint(of.targets):
            return None
        instants = np.full(len(rows.slot), ANY_TIME)
        new = rows.pending & ~rows.waited & (of.policy == NO_POLICY)
        new &= ~of.is_copy & ~of.dead_letter
        # Sorted once: a pass over all rows for each target would take seconds with thousands.
        rated = np.array([target in self.per_second for target in of.targets])
        mine: Int64 = np.flatnonzero(new & rated[of.target])
        mine = mine[np.argsort(of.target[mine], kind="stable")]
        numbers, counts = np.unique(of.target[mine], return_counts=True)
        bounds = itertools.pairwise(bounds_of(counts).tolist())
        for number, (first, end) in zip(numbers.tolist(), bounds, strict=True):
            target, some = of.targets[number], mine[first:end]
            queue = rows.queues.setdefault(target, RateQueue())
            instants[some] = self._turns(rows, some, 1e6 / self.per_second[target], queue)
        return instants

    def _turns(self, rows: DueRows, mine: Int64, gap_us: float, queue: RateQueue) -> Int64:
        """Computes the instants of these new timers of one target, and charges its queue."""
        now_us, index = rows.now_ms * 1_000, np.arange(len(mine))
        bucket = (rows.key_bits(mine) % np.uint64(BUCKETS)).astype(np.int64)
        if queue.turns_ms is None:
            queue.turns_ms = np.full(BUCKETS, queue.charged_us // 1_000)
        turns_ms = queue.turns_ms
        before_us = max(queue.charged_us, now_us - BURST_US)
        turn_us = np.rint(before_us + gap_us * (index + 1)).astype(np.int64)
        is_over = turn_us > now_us + rows.window_ms * 1_000 // 2
        waits = turn_us > now_us
        waits |= slot_of(turns_ms[bucket], rows.precision_ms) >= rows.slot[mine]
        first = np.full(BUCKETS, len(mine))  # row that waits, by bucket
        np.minimum.at(first, bucket[waits], index[waits])
        waits |= first[bucket] < index
        turn_ms = np.maximum(-(-turn_us // 1_000), rows.now_ms + self.lead_ms)
        turn_ms = np.maximum(turn_ms, turns_ms[bucket])
        np.maximum.at(turns_ms, bucket[waits & ~is_over], turn_ms[waits & ~is_over])
        queue.charged_us = int(turn_us.max(where=~is_over, initial=before_us))
        return np.where(is_over, NEVER, np.where(waits, turn_ms, ANY_TIME))
